// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/weft-storage/weft/dataplane/device"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
)

var _ engine.Measured = (*Engine)(nil)

// iostatBatch bdevs are asked for at once. SPDK opens all of them in one go of its application's thread, which may also
// serve connections, and asks the other threads about each.
const iostatBatch = 64

// observed is what the last Gather found of what can be measured.
type observed struct {
	// bdevs of volumes that are in one pool only.
	bdevs map[engine.ID]string
	pools map[string]observedPool
	// speaks is the target's dialect.
	speaks dialect
}

type observedPool struct {
	// bdev that the pool is on.
	bdev string
	// controller of a drive that the target drives itself; else empty, and path is the device's or file's.
	controller, path string
}

func (st *store) observed(speaks dialect) *observed {
	o := &observed{bdevs: map[engine.ID]string{}, pools: map[string]observedPool{}, speaks: speaks}
	for id, all := range st.volumes {
		if len(all) == 1 {
			o.bdevs[id] = all[0].bdev
		}
	}
	for _, p := range st.pools {
		if p.Err != nil {
			continue
		}
		is := observedPool{bdev: p.base.Name, path: p.Path}
		if len(p.base.Driver.NVMe) > 0 {
			is.controller = bdevName(p.Device)
		}
		o.pools[p.Device] = is
	}
	return o
}

// Statistics implements engine.Measured, on a connection of its own. Beside the rest it takes some 0.1 milliseconds of
// the target for each volume (BenchmarkStatistics).
func (e *Engine) Statistics(ctx context.Context, volumes []engine.ID, latencies bool) (engine.Statistics, error) {
	o := e.observed.Load()
	if o == nil {
		return engine.Statistics{}, fmt.Errorf("%w: it was not looked at yet", engine.ErrUnavailable)
	}
	conn, err := e.observe(ctx)
	if err != nil {
		return engine.Statistics{}, err
	}
	modules := spdkrpc.Start(ctx, conn, spdkrpc.IobufGetStats{})
	reactors := spdkrpc.Start(ctx, conn, spdkrpc.FrameworkGetReactors{})
	names := make([]string, 0, len(volumes)+len(o.pools))
	for _, p := range o.pools {
		names = append(names, p.bdev)
	}
	for _, id := range volumes {
		if bdev := o.bdevs[id]; bdev != "" {
			names = append(names, bdev)
		}
	}
	counted, err := o.speaks.iostats(ctx, conn, names)
	buffers, buffersErr := modules.Wait()
	cores, coresErr := reactors.Wait()
	if err := errors.Join(err, buffersErr, coresErr); err != nil {
		return engine.Statistics{}, mapError(err)
	}
	took, err := e.histograms.read(ctx, conn, o, volumes, latencies)
	if err != nil {
		return engine.Statistics{}, mapError(err)
	}
	stats := engine.Statistics{Pools: map[string]engine.IO{}, Volumes: map[engine.ID]engine.IO{}, Latencies: took, Cores: coreTimes(cores)}
	for _, m := range buffers {
		stats.Buffers = append(stats.Buffers, engine.BufferGets{Module: m.Module, Small: m.Small.Cache + m.Small.Main, Large: m.Large.Cache + m.Large.Main})
	}
	for device, p := range o.pools {
		if io, there := counted[p.bdev]; there {
			stats.Pools[device] = io
		}
	}
	for _, id := range volumes {
		if io, there := counted[o.bdevs[id]]; there {
			stats.Volumes[id] = io
		}
	}
	return stats, nil
}

// observe is a connection for what no other call may have to wait for.
func (e *Engine) observe(ctx context.Context) (*spdkrpc.Conn, error) {
	dial, cancel := context.WithTimeout(ctx, connectPatience)
	defer cancel()
	conn, err := e.observer.Connect(dial)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		return nil, fmt.Errorf("%w: %s: %w", engine.ErrUnavailable, e.config.Socket, err)
	}
	return conn, nil
}

// iostats of bdevs by their names, batch after batch. One that is missing has most likely just been deleted.
func (d dialect) iostats(ctx context.Context, conn *spdkrpc.Conn, names []string) (map[string]engine.IO, error) {
	counted := make(map[string]engine.IO, len(names))
	for batch := range slices.Chunk(names, iostatBatch) {
		if !d.oneIostat {
			answer, err := spdkrpc.Call(ctx, conn, spdkrpc.BdevGetIostat{Names: batch})
			if err == nil {
				addIO(counted, answer)
				continue
			}
			if !errors.Is(err, spdkrpc.ErrNotFound) {
				return nil, err
			}
		}
		each := make([]spdkrpc.BdevGetIostat, len(batch))
		for i, name := range batch {
			each[i] = d.iostat(name)
		}
		answers, errs := spdkrpc.Each(ctx, conn, each)
		for i, err := range errs {
			if err == nil {
				addIO(counted, answers[i])
			} else if !errors.Is(err, spdkrpc.ErrNotFound) {
				return nil, err
			}
		}
	}
	return counted, nil
}

// iostat of one bdev.
func (d dialect) iostat(name string) spdkrpc.BdevGetIostat {
	if d.oneIostat {
		return spdkrpc.BdevGetIostat{Name: name}
	}
	return spdkrpc.BdevGetIostat{Names: []string{name}}
}

func addIO(to map[string]engine.IO, answer spdkrpc.Iostat) {
	seconds := func(ticks uint64) float64 { return float64(ticks) / float64(max(answer.TickRate, 1)) }
	for _, b := range answer.Bdevs {
		var failed uint64
		for status, n := range b.Errors {
			if status != spdkrpc.StatusAborted {
				failed += uint64(n)
			}
		}
		to[b.Name] = engine.IO{
			Read:    engine.Operations{Count: b.ReadOps, Bytes: b.BytesRead, Seconds: seconds(b.ReadTicks)},
			Write:   engine.Operations{Count: b.WriteOps, Bytes: b.BytesWritten, Seconds: seconds(b.WriteTicks)},
			Discard: engine.Operations{Count: b.UnmapOps, Bytes: b.BytesUnmapped, Seconds: seconds(b.UnmapTicks)},
			Errors:  &failed,
		}
	}
}

func coreTimes(r spdkrpc.Reactors) []engine.CoreTime {
	rate := float64(max(r.TickRate, 1))
	times := make([]engine.CoreTime, 0, len(r.Reactors))
	for _, core := range r.Reactors {
		times = append(times, engine.CoreTime{Core: int(core.Core), BusySeconds: float64(core.BusyTicks) / rate, IdleSeconds: float64(core.IdleTicks) / rate})
	}
	slices.SortFunc(times, func(a, b engine.CoreTime) int { return cmp.Compare(a.Core, b.Core) })
	return times
}

// DriveHealth implements engine.Measured. Nothing but the end of the connection ends the wait for a dead drive.
func (e *Engine) DriveHealth(ctx context.Context, pool string) (device.Health, error) {
	o := e.observed.Load()
	if o == nil {
		return device.Health{}, fmt.Errorf("%w: it was not looked at yet", engine.ErrUnavailable)
	}
	p, there := o.pools[pool]
	switch {
	case !there:
		return device.Health{}, fmt.Errorf("%w: pool %s cannot be read", engine.ErrUnavailable, pool)
	case p.controller != "":
		conn, err := e.observe(ctx)
		if err != nil {
			return device.Health{}, err
		}
		return device.ReadHealth((&session{Engine: e, ctx: context.WithoutCancel(ctx), conn: conn}).admin(p.controller))
	}
	path := e.path(p.path)
	info, err := os.Stat(path)
	if err != nil {
		return device.Health{}, err
	}
	if isBlockDevice(info) {
		folder, err := filepath.EvalSymlinks(e.sysfsOf(info))
		if err != nil {
			return device.Health{}, err
		}
		if strings.HasPrefix(filepath.Base(folder), "nvme") {
			return device.ReadHealth(device.KernelAdmin(path))
		}
	}
	return device.Health{}, fmt.Errorf("%w: %s is not an NVMe drive", engine.ErrUnsupported, p.path)
}
