// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"strings"

	"github.com/weft-storage/weft/csi-driver/mirror"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
)

// expandMirror makes a volume's mirror have so many bytes of data, once all its replicas, which are all in sync, have
// grown. It fails with errNotWhole while one is not in sync: what is copied to it has the size with which that began.
func (s *Service) expandMirror(ctx context.Context, volume string, b base, dataBytes int64) (base, error) {
	m := s.mirrors.of(volume)
	if m == nil {
		return b, fmt.Errorf("%w: its mirror is not kept", errNotStaged)
	}
	if b.dataBytes() >= dataBytes {
		return b, nil
	}
	record, err := m.records.live(ctx)
	if err != nil {
		return b, err
	}
	if !mirror.Whole(record) {
		return b, fmt.Errorf("%w: in sync are %s", errNotWhole, strings.Join(mirror.InSync(record), ", "))
	}
	var members []string
	for _, member := range record.Members {
		ns, _, err := m.headers.slices.namespace(member.Replica)
		if err == nil {
			_, err = s.Initiator.WaitNamespace(ctx, fabrics.ID{NQN: ns.NQN, NGUID: ns.NGUID}, b.served(dataBytes))
		}
		if err != nil {
			return b, fmt.Errorf("expand %s: %w", member.Replica, err)
		}
		members = append(members, member.Replica)
	}
	return m.grow(ctx, b, members, dataBytes+b.trailerBytes)
}

// grow a mirror with its trailer to so many bytes. All its members are in sync and have room. Places that moved
// replicas have left are given up.
func (m *mirrored) grow(ctx context.Context, b base, members []string, bytes int64) (base, error) {
	for _, name := range members {
		if _, err := m.headers.slices.slice(ctx, name); err != nil {
			return b, fmt.Errorf("expand %s: %w", name, err)
		}
	}
	state, err := m.Mirrors.State(b.array)
	if err == nil && state.Degraded > 0 {
		err = m.Mirrors.SetDisks(ctx, b.array, len(members))
	}
	if err != nil {
		return b, err
	}
	b.array, err = m.Mirrors.Grow(ctx, b.array, bytes)
	return b, err
}
