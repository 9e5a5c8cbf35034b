// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"maps"
	"slices"

	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
)

// identity of a volume: what tells its devices and its subsystems on this host from those of others. The zero value is
// that of a volume of which nothing is here.
type identity struct {
	// uuid of the volume, which its device carries.
	uuid string
	// replicas are the NGUIDs of its replicas, by their names, which their subsystems carry.
	replicas map[string]string
	// mirrored: the volume has a mirror over them.
	mirrored bool
	// trailerBytes at the end of what is served for it.
	trailerBytes int64
}

func (a attached) identity() identity {
	is := identity{a.UUID, map[string]string{}, a.Mirrored, a.TrailerBytes}
	for _, r := range a.Replicas {
		is.replicas[r.Name] = r.NGUID
	}
	return is
}

// identify a volume, by what it was staged with. Without a record, the NvmfVolume is read, unless all that this host is
// connected to has a record of another volume. It fails with errUnread when it cannot be.
func (s *Service) identify(ctx context.Context, volume string) (identity, error) {
	at, err := s.records().get(volume)
	if err == nil {
		return at.identity(), nil
	}
	if !unrecorded(err) {
		return identity{}, err
	}
	nqns, err := s.Initiator.Subsystems()
	if err != nil {
		return identity{}, err
	}
	owners, err := s.records().owners()
	if err != nil {
		return identity{}, err
	}
	for replica := range owners {
		delete(nqns, replica)
	}
	if len(nqns) == 0 {
		return identity{}, nil
	}
	v, err := s.readVolume(ctx, volume)
	if gone(err) {
		return identity{}, nil
	}
	if err != nil {
		return identity{}, err
	}
	is := identity{v.Spec.UUID, map[string]string{}, v.Replicated(), v.TrailerBytes()}
	for _, m := range v.Spec.Members {
		is.replicas[m.Name] = nguidOf(m.UUID)
	}
	return is, nil
}

// subsystems of a volume among all that this host is connected to, or is connecting to, each with the NGUID of the
// replica that it serves.
func (is identity) subsystems(all map[string][]string) []fabrics.ID {
	var ids []fabrics.ID
	for _, replica := range slices.Sorted(maps.Keys(is.replicas)) {
		for _, nqn := range all[replica] {
			ids = append(ids, fabrics.ID{NQN: nqn, NGUID: is.replicas[replica]})
		}
	}
	return ids
}
