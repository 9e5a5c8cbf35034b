// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"strings"

	"github.com/weft-storage/weft/api/v1alpha1"
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
	for _, member := range record.Members {
		ns, _, err := m.headers.slices.namespace(member.Replica)
		if err == nil {
			_, err = s.Initiator.WaitNamespace(ctx, fabrics.ID{NQN: ns.NQN, NGUID: ns.NGUID}, v1alpha1.WithHeader(dataBytes))
		}
		if err == nil {
			_, err = m.headers.slices.slice(ctx, member.Replica)
		}
		if err != nil {
			return b, fmt.Errorf("expand %s: %w", member.Replica, err)
		}
	}
	b.array, err = s.Mirrors.Grow(ctx, b.array, dataBytes)
	return b, err
}
