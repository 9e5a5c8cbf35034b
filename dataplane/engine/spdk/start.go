// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
)

// ownSubsystems are not exports: the anchor, and SPDK's discovery.
const ownSubsystems = 2

// Start implements engine.Engine. Whether the target can do RDMA is seen only when its transport is made, after
// the rest: that fails with engine.ErrUnsupported too, and the target goes on without it.
func (e *Engine) Start(ctx context.Context, plan v1alpha1.Plan) error {
	if plan.Engine != v1alpha1.EngineSPDK || plan.SPDK == nil {
		return fmt.Errorf("%w: the plan is for engine %s, and this is SPDK", engine.ErrUnsupported, plan.Engine)
	}
	s, end, err := e.begin(ctx)
	defer end()
	if err != nil {
		return err
	}
	speaks, err := s.dialect()
	if err != nil {
		return err
	}
	if err := driven(&plan, speaks); err != nil {
		return err
	}
	want, err := settingsOf(plan.SPDK, speaks)
	if err != nil {
		return err
	}
	methods, err := spdkrpc.Call(ctx, s.conn, spdkrpc.RPCGetMethods{Current: true})
	if err != nil {
		return mapError(err)
	}
	if slices.Contains(methods, "framework_start_init") {
		if err := s.initialize(plan.SPDK, want); err != nil {
			return err
		}
	}
	is, err := s.readSettings(speaks)
	if err != nil {
		return err
	}
	// A target in interrupt mode must not be asked for the dynamic scheduler.
	if is.interruptMode == want.interruptMode {
		if err := s.setScheduler(plan.SPDK, is.scheduler); err != nil {
			return err
		}
	}
	made, err := s.makeTransports(plan.SPDK, is, speaks)
	if err != nil {
		return err
	}
	differences := is.differences(want)
	if made && len(differences) > 0 {
		return fmt.Errorf("%w: it was given its settings, and took others: %w", engine.ErrUnsupported, &engine.RestartNeededError{Differences: differences})
	}
	if fewer := is.fewerCores(want); fewer != "" {
		differences = append(differences, fewer)
	}
	if len(differences) == 0 {
		return nil
	}
	return &engine.RestartNeededError{Differences: differences}
}

// driven refuses drives that the target cannot drive itself: SPDK would say "No such device" of each.
func driven(plan *v1alpha1.Plan, speaks dialect) error {
	byItself := slices.ContainsFunc(plan.Drives, func(d v1alpha1.PlannedDrive) bool { return d.PCIAddress != "" })
	if !byItself || !speaks.hugepagesOnly || plan.SPDK.Hugepages != v1alpha1.HugepagesDisabled {
		return nil
	}
	return fmt.Errorf("%w: in this release SPDK drives NVMe drives from hugepages only: set memory.hugepages to 2Mi or 1Gi, or devices.driver to Kernel, or use an image with SPDK %s",
		engine.ErrUnsupported, dialects[0].since)
}

// initialize a target that waits for its settings.
func (s *session) initialize(plan *v1alpha1.SPDKPlan, want settings) error {
	errs := make([]error, 1)
	b := s.batch(errs)
	put(b, 0, spdkrpc.IobufSetOptions{SmallPoolCount: uint64(plan.SmallBuffers), LargePoolCount: uint64(plan.LargeBuffers)})
	put(b, 0, spdkrpc.BdevSetOptions{IOPoolSize: uint32(plan.BdevIOPoolSize)})
	if hasTransport(plan, v1alpha1.TransportTCP) {
		put(b, 0, socketsOf(plan))
	}
	b.wait()
	if errs[0] != nil {
		return fmt.Errorf("settings of the target: %w", errs[0])
	}
	// It is taken once; a process that was killed may have set it.
	_, err := spdkrpc.Call(s.ctx, s.conn, spdkrpc.NvmfSetMaxSubsystems{Max: uint32(plan.MaxSubsystems) + ownSubsystems})
	if err != nil && !errors.Is(err, spdkrpc.ErrWrongState) {
		return mapError(err)
	}
	if err := s.setPollGroups(want); err != nil {
		return err
	}
	// Only after it is known whether the target was started in interrupt mode does the scheduler follow.
	if _, err := spdkrpc.Call(s.ctx, s.conn, spdkrpc.FrameworkStartInit{}); err != nil {
		return fmt.Errorf("initialize the target: %w", mapError(err))
	}
	return nil
}

// setPollGroups on the planned cores that the target runs on. Which these are it does not tell at this
// point, but it refuses a core that it does not have.
func (s *session) setPollGroups(want settings) error {
	if want.pollGroups.IsEmpty() {
		return nil
	}
	_, err := spdkrpc.Call(s.ctx, s.conn, spdkrpc.NvmfSetConfig{PollGroupsMask: maskOf(want.pollGroups)})
	if !errors.Is(err, spdkrpc.ErrInvalid) {
		return mapError(err)
	}
	cores := want.pollGroups.List()
	tries := make([]spdkrpc.NvmfSetConfig, len(cores))
	for i, core := range cores {
		tries[i].PollGroupsMask = maskOf(coresOf(core))
	}
	_, errs := spdkrpc.Each(s.ctx, s.conn, tries)
	has := coresOf()
	for i, err := range errs {
		switch {
		case err == nil:
			has = has.Union(coresOf(cores[i]))
		case !errors.Is(err, spdkrpc.ErrInvalid):
			return mapError(err)
		}
	}
	if has.IsEmpty() {
		return fmt.Errorf("%w: the target runs on none of the cores %s that shall serve connections", engine.ErrUnsupported, want.pollGroups)
	}
	_, err = spdkrpc.Call(s.ctx, s.conn, spdkrpc.NvmfSetConfig{PollGroupsMask: maskOf(has)})
	return mapError(err)
}

// setScheduler and its knobs, which may change while the target serves.
func (s *session) setScheduler(plan *v1alpha1.SPDKPlan, is spdkrpc.Scheduler) error {
	if plan.Mode != v1alpha1.CoresDynamic {
		if is.Name != spdkrpc.SchedulerDynamic {
			return nil
		}
		_, err := spdkrpc.Call(s.ctx, s.conn, spdkrpc.FrameworkSetScheduler{Name: spdkrpc.SchedulerStatic})
		return mapError(err)
	}
	want := spdkrpc.Scheduler{Name: spdkrpc.SchedulerDynamic, PeriodMicros: is.PeriodMicros, SchedulingCore: is.SchedulingCore, LoadLimit: is.LoadLimit, CoreLimit: is.CoreLimit, CoreBusy: is.CoreBusy}
	if p := plan.Scheduler; p != nil {
		want.PeriodMicros, want.LoadLimit, want.CoreLimit, want.CoreBusy = uint64(p.PeriodMicroseconds), uint8(p.LoadLimit), uint8(p.CoreLimit), uint8(p.CoreBusy)
	}
	if want == is {
		return nil
	}
	_, err := spdkrpc.Call(s.ctx, s.conn, spdkrpc.FrameworkSetScheduler{
		Name: want.Name, PeriodMicros: want.PeriodMicros, LoadLimit: want.LoadLimit, CoreLimit: want.CoreLimit, CoreBusy: want.CoreBusy,
	})
	if err != nil {
		return fmt.Errorf("scheduler: %w", mapError(err))
	}
	return nil
}

// makeTransports that are planned and missing, and reads them back: SPDK takes no notice of what it does not know.
func (s *session) makeTransports(plan *v1alpha1.SPDKPlan, is *settings, speaks dialect) (made bool, err error) {
	for _, t := range plan.Transports {
		if _, there := is.transports[t.Type]; there {
			continue
		}
		if t.Type == v1alpha1.TransportRDMA && is.interruptMode && speaks.rdmaPolls {
			continue // once it is started anew, as is planned
		}
		if _, err := spdkrpc.Call(s.ctx, s.conn, transportOf(t, speaks, sharedBuffers(plan, is.cores.Size(), t))); err != nil {
			if mapped := mapError(err); errors.Is(mapped, engine.ErrUnavailable) || s.ctx.Err() != nil {
				return made, mapped
			}
			return made, fmt.Errorf("%w: transport %s: %w%s", engine.ErrUnsupported, t.Type, err, hint(t.Type, plan, speaks))
		}
		made = true
	}
	if !made {
		return false, nil
	}
	transports, err := spdkrpc.Call(s.ctx, s.conn, spdkrpc.NvmfGetTransports{})
	if err != nil {
		return true, mapError(err)
	}
	is.setTransports(transports, speaks)
	return true, nil
}

// hint at what the transport needs: SPDK's answer does not say what is missing.
func hint(t v1alpha1.TransportType, plan *v1alpha1.SPDKPlan, speaks dialect) string {
	if t != v1alpha1.TransportRDMA {
		return ""
	}
	needs := "; it needs a target that was built with RDMA, and an RDMA device that it may use"
	if speaks.hugepagesOnly && plan.Hugepages == v1alpha1.HugepagesDisabled {
		needs += "; in this release it also needs hugepages: set memory.hugepages to 2Mi or 1Gi, or use an image with SPDK " + dialects[0].since.String()
	}
	return needs
}

// transportOf a plan. Hosts cannot discard: see the package's doc on old data.
func transportOf(t v1alpha1.PlannedTransport, speaks dialect, shared uint32) spdkrpc.NvmfCreateTransport {
	small, large := uint32(t.SmallCache), uint32(t.LargeCache)
	req := spdkrpc.NvmfCreateTransport{
		Type: string(t.Type), MaxQueueDepth: uint16(t.QueueDepth), MaxIOQpairs: uint16(t.MaxIOQueues),
		InCapsuleDataBytes: uint32(t.InCapsuleDataSize), MaxIOBytes: uint32(t.MaxIOSize),
	}
	if speaks.oneCache {
		req.CacheSize, req.SharedBuffers = new(oneCache(small, large)), &shared
	} else {
		req.IobufSmallCacheSize, req.IobufLargeCacheSize = &small, &large
	}
	if !speaks.cannotMask {
		req.MaskedFeatures = []spdkrpc.ONCS{spdkrpc.ONCSDatasetManagement}
	}
	if t.Type == v1alpha1.TransportTCP {
		if t.C2HSuccess != "" {
			req.C2HSuccess = new(t.C2HSuccess == v1alpha1.SwitchEnabled)
		}
		req.SockPriority = uint32(t.SocketPriority)
	}
	if t.Type == v1alpha1.TransportRDMA {
		if t.SRQDepth != nil {
			req.MaxSRQDepth = uint32(*t.SRQDepth)
		} else {
			req.NoSRQ = true
		}
	}
	return req
}

// sharedBuffers that a transport may use, in releases that ask for it: what the pools have, and never less than the caches of
// all cores, poll group or not, which such a release insists on.
func sharedBuffers(plan *v1alpha1.SPDKPlan, cores int, t v1alpha1.PlannedTransport) uint32 {
	cache := oneCache(uint32(t.SmallCache), uint32(t.LargeCache))
	return max(uint32(min(plan.SmallBuffers, plan.LargeBuffers)), uint32(cores)*cache)
}

func hasTransport(plan *v1alpha1.SPDKPlan, t v1alpha1.TransportType) bool {
	return slices.ContainsFunc(plan.Transports, func(p v1alpha1.PlannedTransport) bool { return p.Type == t })
}
