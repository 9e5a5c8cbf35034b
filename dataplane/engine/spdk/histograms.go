// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"sync"

	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
)

// histogramBatch are read at once: SPDK allocates 59 kB for each call as it comes in.
const histogramBatch = 64

// histograms of how long I/Os of volumes take. Each poll group counts those of each volume that is exported, whether
// hosts are connected or not, and forgets them with the export: counts of a volume end all at once, as those of a
// target do. SPDK keeps none of them.
type histograms struct {
	mu sync.Mutex
	// conn of the target that counts what is done on the bdevs in on.
	conn *spdkrpc.Conn
	on   map[string]bool
}

// read the histograms of these volumes, if they are wanted. Those of other volumes are turned off. A volume without
// one has most likely just been deleted.
func (h *histograms) read(ctx context.Context, conn *spdkrpc.Conn, o *observed, volumes []engine.ID, wanted bool) (map[engine.ID][]uint64, error) {
	if o.speaks.noBorders {
		return nil, nil
	}
	if !wanted {
		volumes = nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.learn(ctx, conn); err != nil {
		return nil, err
	}
	if err := h.turn(ctx, o, volumes); err != nil {
		return nil, err
	}
	on := slices.DeleteFunc(slices.Clone(volumes), func(id engine.ID) bool { return !h.on[o.bdevs[id]] })
	read := make(map[engine.ID][]uint64, len(on))
	for batch := range slices.Chunk(on, histogramBatch) {
		asks := make([]spdkrpc.BdevGetHistogramBorders, len(batch))
		for i, id := range batch {
			asks[i] = spdkrpc.BdevGetHistogramBorders{Name: o.bdevs[id], Borders: borders}
		}
		answers, errs := spdkrpc.Each(ctx, conn, asks)
		for i, err := range errs {
			switch {
			case unanswered(err):
				return nil, err
			case err != nil: // somebody else has turned it off
				delete(h.on, asks[i].Name)
			case len(answers[i].Counts) == len(borders)+1:
				read[batch[i]] = answers[i].Counts
			}
		}
	}
	return read, nil
}

// learn what a target counts already: a process before this one may have turned it on.
func (h *histograms) learn(ctx context.Context, conn *spdkrpc.Conn) error {
	if h.conn == conn {
		return nil
	}
	config, err := spdkrpc.Call(ctx, conn, spdkrpc.FrameworkGetConfig{Name: "bdev"})
	if err != nil {
		return err
	}
	on := map[string]bool{}
	for _, entry := range config {
		var of spdkrpc.BdevEnableHistogram
		if entry.Method == setHistogram {
			if err := json.Unmarshal(entry.Params, &of); err != nil {
				return err
			}
			on[of.Name] = true
		}
	}
	h.conn, h.on = conn, on
	return nil
}

// turn those of these volumes on, and those of others off. What fails is tried again the next time.
func (h *histograms) turn(ctx context.Context, o *observed, volumes []engine.ID) error {
	var turns []spdkrpc.BdevEnableHistogram
	wanted := map[string]bool{}
	for _, id := range volumes {
		bdev := o.bdevs[id]
		if wanted[bdev] = true; bdev != "" && !h.on[bdev] {
			turns = append(turns, spdkrpc.BdevEnableHistogram{Name: bdev, Enable: true, MinNanoseconds: new(uint64(0)), MaxNanoseconds: new(uint64(math.MaxUint64))})
		}
	}
	for _, bdev := range o.bdevs {
		if h.on[bdev] && !wanted[bdev] {
			turns = append(turns, spdkrpc.BdevEnableHistogram{Name: bdev})
		}
	}
	_, errs := spdkrpc.Each(ctx, h.conn, turns)
	for i, err := range errs {
		switch {
		case unanswered(err):
			return err
		case err == nil && turns[i].Enable:
			h.on[turns[i].Name] = true
		case err == nil || errors.Is(err, spdkrpc.ErrNotFound):
			delete(h.on, turns[i].Name)
		}
	}
	return nil
}

// borders are engine.LatencyBounds in microseconds.
var borders = func() (all []uint64) {
	for _, bound := range engine.LatencyBounds {
		all = append(all, uint64(bound.Microseconds()))
	}
	return all
}()

func unanswered(err error) bool {
	var lost *spdkrpc.UnansweredError
	return errors.As(err, &lost)
}
