// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"math"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
	"github.com/weft-storage/weft/csi-driver/node/internal/keeper"
)

// mirrorRecords is a volume's NvmfMirror.
type mirrorRecords struct {
	*Service
	volume, uuid string
	// mover: nothing is written to the volume here.
	mover bool
	// last object that was read, which the next one is written in place of.
	last *v1alpha1.NvmfMirror
}

// Get implements keeper.Records.
func (r *mirrorRecords) Get(ctx context.Context) (keeper.Version, error) {
	is, err := r.read(ctx)
	if err != nil {
		return keeper.Version{}, err
	}
	r.last = is
	return keeper.Version{Record: *is.Spec.DeepCopy(), ResourceVersion: is.ResourceVersion}, nil
}

// read the NvmfMirror. A volume that is another of that name by now has a record that nobody holds. That both are gone
// says nothing: a volume in use is not deleted, so somebody took its objects away. But for a mover, which nobody uses,
// it says that the volume was deleted. It fails with errUnread.
func (r *mirrorRecords) read(ctx context.Context) (*v1alpha1.NvmfMirror, error) {
	var is v1alpha1.NvmfMirror
	err := r.MirrorRecords.Get(ctx, client.ObjectKey{Name: r.volume}, &is)
	if err == nil {
		return &is, nil
	}
	if gone(err) {
		v, volumeErr := r.readVolume(ctx, r.volume)
		if volumeErr == nil && v.Spec.UUID != r.uuid || gone(volumeErr) && r.mover {
			is.Spec.Epoch = math.MaxInt64
			return &is, nil
		}
	}
	return nil, fmt.Errorf("%w: NvmfMirror %s: %w", errUnread, r.volume, err)
}

// live reads the record for others than the keeper.
func (r *mirrorRecords) live(ctx context.Context) (mirror.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	is, err := r.read(ctx)
	if err != nil {
		return mirror.Record{}, err
	}
	return is.Spec, nil
}

// Swap implements keeper.Records.
func (r *mirrorRecords) Swap(ctx context.Context, old keeper.Version, next mirror.Record) error {
	if r.last == nil || r.last.ResourceVersion != old.ResourceVersion || old.ResourceVersion == "" {
		return errors.New("the record to be replaced is not the one that was read last")
	}
	is := r.last.DeepCopy()
	is.Spec = next
	return r.MirrorRecords.Update(ctx, is, client.FieldOwner(fieldManager))
}

// mirrorAgents are the agents of a volume's replicas, by what their objects say.
type mirrorAgents struct {
	*Service
	attachment string
}

// Ask implements keeper.Agents.
func (a mirrorAgents) Ask(ctx context.Context, name, uid string) (keeper.Answer, error) {
	r, err := a.readReplica(ctx, name)
	if err != nil {
		return keeper.Answer{}, err
	}
	if string(r.UID) != uid {
		return keeper.Answer{}, fmt.Errorf("%w: NvmfReplica %s has metadata.uid %s, and the mirror's member %s", errMismatch, name, r.UID, uid)
	}
	if r.RestoreSuspected() {
		return keeper.Answer{}, fmt.Errorf("%w: the agent of NvmfReplica %s suspects that the API was restored to an earlier state", errUnread, name)
	}
	m := memberOf(r, a.attachment)
	if len(m.Portals) == 0 {
		return keeper.Answer{}, nil
	}
	return keeper.Answer{Identity: m.leg()}, nil
}
