// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"maps"
	"sync"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
	"github.com/weft-storage/weft/internal/text"
)

// A record that is being recovered is not believed: no mirror is started from it. The node of a mover that is to read
// connects to the replicas that admit it, reads their headers, disconnects, and stores what they say. It writes nothing
// to them. What it connects to is recorded first, so that it is found again after a restart, and taken away.

// longestHeaderError is the bound of header.error in an NvmfMirror.
const longestHeaderError = 256

// readForRecovery reads the headers of a volume's replicas for an attachment, and stores them.
func (s *Service) readForRecovery(ctx context.Context, volume, attachment string) error {
	st, err := s.moverStaging(ctx, volume, attachment)
	if err != nil {
		return err
	}
	if past, err := st.past(ctx); err != nil {
		return err
	} else if past {
		if err := s.clearMirror(ctx, volume, st.at); err != nil {
			return fmt.Errorf("%w: %w", fabrics.ErrPast, err)
		}
	}
	if err := s.records().put(volume, st.at); err != nil {
		return fmt.Errorf("record what the headers are read of: %w", err)
	}
	headers, err := st.readHeaders(ctx)
	if err != nil {
		return err
	}
	if err := s.records().remove(volume); err != nil {
		return err
	}
	return s.reportHeaders(ctx, volume, attachment, headers)
}

// readHeaders of all replicas that admit this node, and disconnect from them. One that cannot be connected to, or read,
// says why in place of its header. It fails if it cannot disconnect.
func (st staging) readHeaders(ctx context.Context) (map[string]v1alpha1.MirrorHeader, error) {
	names := newReplicaNames(st.at)
	slices := &mirrorSlices{Service: st.Service, names: names}
	legs := &mirrorLegs{mirrorSlices: slices, volume: st.volume, at: st.at}
	on := &mirrorHeaders{Service: st.Service, volume: st.volume, uuid: st.at.UUID, slices: slices}
	var (
		all     sync.WaitGroup
		mu      sync.Mutex
		headers = map[string]v1alpha1.MirrorHeader{}
		failed  error
	)
	for _, r := range st.at.Replicas {
		if r.Identity == "" || len(r.Portals) == 0 {
			continue // it does not admit this node, and was not asked
		}
		all.Go(func() {
			is, err := readHeader(ctx, legs, on, r)
			mu.Lock()
			defer mu.Unlock()
			headers[r.Name] = is
			if err != nil {
				failed = fmt.Errorf("disconnect from %s: %w", r.Name, err)
			}
		})
	}
	all.Wait()
	return headers, failed
}

// readHeader of a replica, and disconnect from it. One that stops answering while it is read is disconnected from after
// a while, too: nothing else ends the read, and the volume would be busy here until the replica is back.
func readHeader(ctx context.Context, legs *mirrorLegs, on *mirrorHeaders, r replica) (v1alpha1.MirrorHeader, error) {
	var h mirror.Header
	var read error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if read = legs.Connect(ctx, r.Name, r.leg()); read == nil {
			h, read = on.Read(ctx, r.Name)
		}
	}()
	err := legs.endsInTime(ctx, ended)
	deleted := legs.Delete(ctx, r.Name)
	if err == nil {
		err = read
	}
	if err != nil {
		return v1alpha1.MirrorHeader{Error: text.Clip(err.Error(), longestHeaderError)}, deleted
	}
	h.Blank = r.blank
	return mirror.Reported(h), deleted
}

// endsInTime fails if a replica is not connected to and read within twice legTimeout, or when ctx ends.
func (l *mirrorLegs) endsInTime(ctx context.Context, ended <-chan struct{}) error {
	until := l.now().Add(2 * legTimeout)
	return wait.PollUntilContextCancel(ctx, givingUpInterval, true, func(context.Context) (bool, error) {
		select {
		case <-ended:
			return true, nil
		default:
		}
		if l.now().After(until) {
			return false, fmt.Errorf("the replica has not answered for %s", 2*legTimeout)
		}
		return false, nil
	})
}

// reportHeaders to the CSI controller, with the word that nothing of the replicas is left here.
func (s *Service) reportHeaders(ctx context.Context, volume, attachment string, headers map[string]v1alpha1.MirrorHeader) error {
	is, err := s.readMirror(ctx, volume)
	if err != nil {
		return err
	}
	maps.DeleteFunc(headers, func(replica string, _ v1alpha1.MirrorHeader) bool {
		_, is := mirror.Get(is.Spec, replica)
		return !is // the volume lists it, and the record does not
	})
	if is.Spec, err = mirror.Report(is.Spec, attachment, headers); err != nil {
		return err
	}
	logr.FromContextOrDiscard(ctx).Info("Read the headers of the replicas", "headers", headers)
	return s.MirrorRecords.Update(ctx, is, client.FieldOwner(fieldManager))
}

// recoverHint is the command by which a person decides about a record, for what waits for that.
func recoverHint(volume string) string {
	return "; to recover the record of the replicas, run: kubectl weft recover nv/" + volume
}
