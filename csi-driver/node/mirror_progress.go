// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
	"github.com/weft-storage/weft/csi-driver/node/internal/keeper"
	"github.com/weft-storage/weft/csi-driver/node/internal/md"
)

const (
	// progressInterval is how often the progress of copies is written.
	progressInterval = 10 * time.Second
	// progressTimeout of reading and writing one record.
	progressTimeout = 5 * time.Second
)

// KeepProgress writes, until the context ends, how far the copies to the replicas of mirrored volumes are.
func (s *Service) KeepProgress(ctx context.Context) {
	wait.UntilWithContext(ctx, s.WriteProgress, progressInterval)
}

// WriteProgress looks once at all mirrors that are kept here. What cannot be written is left to the next time: it is
// for people to look at, and no keeper waits for it.
func (s *Service) WriteProgress(ctx context.Context) {
	for _, m := range s.mirrors.list() {
		err := m.writeProgress(ctx)
		if err != nil && !apierrors.IsConflict(err) && !errors.Is(err, mirror.ErrNotHolder) {
			logr.FromContextOrDiscard(ctx).V(1).Info("Cannot write the progress of the mirror", "volume", m.volume, "reason", err.Error())
		}
	}
}

// writeProgress of a mirror that copies, and is otherwise well, so that a keeper that has to give up a replica does not
// find the record changed by this.
func (m *mirrored) writeProgress(ctx context.Context) error {
	if seen := m.seen(); seen.Err != nil || seen.Phase != keeper.Running || m.modeNow() == keeper.Stop || !slices.ContainsFunc(seen.Record.Members, copying) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, progressTimeout)
	defer cancel()
	is, err := m.records.read(ctx)
	if err != nil {
		return err
	}
	// The kernel is looked at after the record, which is written only as it was read.
	if live, err := m.allLive(is.Spec); err != nil || !live {
		return err
	}
	copied, err := m.copied()
	if err != nil {
		return err
	}
	next, news := is.Spec, false
	for _, member := range is.Spec.Members {
		bytes, known := copied[member.Replica]
		if !copying(member) || !known || bytes == member.CopiedBytes {
			continue
		}
		if next, err = (mirror.Holder{Attachment: m.attachment, Now: m.now()}).Progress(next, member.Replica, bytes); err != nil {
			return err
		}
		news = true
	}
	if !news {
		return nil
	}
	is.Spec = next
	if err := m.MirrorRecords.Update(ctx, is, client.FieldOwner(fieldManager)); err != nil {
		return fmt.Errorf("write NvmfMirror %s: %w", m.volume, err)
	}
	return nil
}

func copying(m mirror.Member) bool {
	return m.State == v1alpha1.MemberReturning || m.State == v1alpha1.MemberFilling
}

// allLive tells whether the legs of all members that are in use answer, and no other hangs.
func (m *mirrored) allLive(record mirror.Record) (bool, error) {
	legs, err := m.legs.All()
	if err != nil {
		return false, err
	}
	for _, member := range record.Members {
		if member.State != v1alpha1.MemberOut && legs[member.Replica].State != keeper.LegLive {
			return false, nil
		}
	}
	for _, leg := range legs {
		if leg.State != keeper.LegLive {
			return false, nil
		}
	}
	return true, nil
}

// copied is up to which of the volume's bytes the kernel has copied, by replica that it copies to. It is empty without
// an array.
func (m *mirrored) copied() (map[string]int64, error) {
	_, s, err := m.arrayOf(m.uuid)
	if errors.Is(err, md.ErrNotFound) {
		return nil, nil
	}
	return m.copiedIn(s), err
}

// copiedIn is copied, by the state of the mirror's array.
func (m *mirrored) copiedIn(s md.State) map[string]int64 {
	copied := map[string]int64{}
	for _, is := range s.Members {
		if name, ours := m.replicas.of(is.UUID); ours && is.Recovering() {
			done := is.DoneBytes
			if s.Action == md.ActionRecover {
				done = max(done, s.DoneBytes)
			}
			copied[name] = max(0, done-md.FrontBytes)
		}
	}
	return copied
}
