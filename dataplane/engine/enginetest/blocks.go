// SPDX-License-Identifier: Apache-2.0

package enginetest

import (
	"context"
	"fmt"

	"github.com/weft-storage/weft/dataplane/engine"
)

var _ engine.BlockLister = (*Engine)(nil)

// ListBlocks is the method of engine.BlockLister.
const ListBlocks Method = "ListBlocks"

// ListBlocks implements engine.BlockLister.
func (e *Engine) ListBlocks(ctx context.Context, of engine.Blocks, found func(engine.Range) error) error {
	ranges, err := e.listBlocks(ctx, of)
	if err != nil {
		return err
	}
	for _, r := range ranges {
		if err := found(r); err != nil {
			return err
		}
	}
	return nil
}

func (e *Engine) listBlocks(ctx context.Context, of engine.Blocks) ([]engine.Range, error) {
	end, err := e.begin(ctx, ListBlocks, []string{string(of.Snapshot)})
	defer end()
	if err == nil {
		err = e.itemFault[ListBlocks][string(of.Snapshot)]
	}
	if err == nil {
		err = of.Validate()
	}
	if err != nil {
		return nil, err
	}
	p := e.pools[of.Pool]
	if p == nil {
		return nil, fmt.Errorf("pool %s: %w", of.Pool, engine.ErrUnavailable)
	}
	if err := p.readable(); err != nil {
		return nil, err
	}
	is, base := p.device.snapshots[of.Snapshot], &data{}
	if of.Base != "" {
		base = p.device.snapshots[of.Base]
	}
	if is == nil || base == nil {
		return nil, fmt.Errorf("snapshot %s or %s in pool %s: %w", of.Snapshot, of.Base, of.Pool, engine.ErrNotFound)
	}
	var ranges []engine.Range
	for at := of.Within.Offset; at < of.Within.End(); {
		n := at / BlockBytes
		to := min((n+1)*BlockBytes, of.Within.End())
		last := len(ranges) - 1
		switch {
		case is.blocks[n] == base.blocks[n]: // never changed once shared
		case last >= 0 && ranges[last].End() == at:
			ranges[last].Bytes += to - at
		default:
			ranges = append(ranges, engine.Range{Offset: at, Bytes: to - at})
		}
		at = to
	}
	return ranges, nil
}
