// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"k8s.io/utils/cpuset"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
	"github.com/weft-storage/weft/internal/cpus"
)

// ownSubsystems are not exports: the anchor, and SPDK's discovery.
const ownSubsystems = 2

// Start implements engine.Engine. Whether the target can do RDMA is seen only when its transport is made, after
// the rest: that fails with engine.ErrUnsupported too, and the target goes on without it.
func (e *Engine) Start(ctx context.Context, plan v1alpha1.Plan) error {
	if plan.Engine != v1alpha1.EngineSPDK || plan.SPDK == nil {
		return fmt.Errorf("%w: the plan is for engine %s, but this is SPDK", engine.ErrUnsupported, plan.Engine)
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
	want, err := wantedBy(plan, speaks)
	if err != nil {
		return err
	}
	if err := s.initialize(plan.SPDK, want, speaks); err != nil {
		return err
	}
	is, err := s.readSettings(speaks)
	if err != nil {
		return err
	}
	// A target in interrupt mode must not be asked for the dynamic scheduler.
	if (is.mode == v1alpha1.CoresInterrupt) == (want.mode == v1alpha1.CoresInterrupt) {
		if err := s.setScheduler(is, want); err != nil {
			return err
		}
	}
	made, err := s.makeTransports(plan.SPDK, is, want, speaks)
	if err != nil {
		return err
	}
	differences := is.differences(want)
	if made && len(differences) > 0 {
		return fmt.Errorf("%w: it runs with other settings than requested: %w", engine.ErrUnsupported, &engine.RestartNeededError{Differences: differences})
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

// initialize a target that waits for its settings. One whose fixed settings were read serves already.
func (s *session) initialize(plan *v1alpha1.SPDKPlan, want settings, speaks dialect) error {
	if s.life.fixed != nil {
		return nil
	}
	methods, err := spdkrpc.Call(s.ctx, s.conn, spdkrpc.RPCGetMethods{Current: true})
	if err != nil || !slices.Contains(methods, "framework_start_init") {
		return mapError(err)
	}
	if err := s.forgetKeys(); err != nil {
		return err
	}
	var pools spdkrpc.IobufSetOptions
	var bdevs spdkrpc.BdevSetOptions
	var subsystems spdkrpc.NvmfSetMaxSubsystems
	var authentication spdkrpc.NvmfSetConfig
	sockets := spdkrpc.SockImplSetOptions{Impl: spdkrpc.SockPosix}
	for call, req := range map[string]any{setIobuf: &pools, setBdev: &bdevs, setSubsystems: &subsystems, setNvmf: &authentication, setSockets: &sockets} {
		if err := fill(req, call, want.transports, want.values, speaks); err != nil {
			return fmt.Errorf("%w: %w", engine.ErrInvalid, err)
		}
	}
	errs := make([]error, 1)
	bdevs.AutoExamine = new(false)
	b := s.batch(errs)
	put(b, 0, pools)
	put(b, 0, bdevs)
	if want.transports[tcp] {
		put(b, 0, sockets)
	}
	if len(authentication.Groups) > 0 {
		put(b, 0, authentication)
	}
	b.wait()
	if errs[0] != nil {
		return fmt.Errorf("settings of the target: %w", errs[0])
	}
	// It is taken once; a process that was killed may have set it.
	if _, err := spdkrpc.Call(s.ctx, s.conn, subsystems); err != nil && !errors.Is(err, spdkrpc.ErrWrongState) {
		return mapError(err)
	}
	if plan.PollGroupMask != "" {
		groups, err := s.setPollGroups(want.pollGroups)
		if err != nil {
			return err
		}
		if err := s.isolateMainCore(groups); err != nil {
			return err
		}
	}
	// Only after it is known whether the target was started in interrupt mode does the scheduler follow.
	if _, err := spdkrpc.Call(s.ctx, s.conn, spdkrpc.FrameworkStartInit{}); err != nil {
		return fmt.Errorf("initialize the target: %w", mapError(err))
	}
	return nil
}

// setPollGroups on the planned cores that the target runs on, and answer which these are; if none, all its cores serve.
// It does not tell at this point which it has, but it refuses others.
func (s *session) setPollGroups(want cpuset.CPUSet) (groups cpuset.CPUSet, err error) {
	_, err = spdkrpc.Call(s.ctx, s.conn, spdkrpc.NvmfSetConfig{PollGroupsMask: cpus.Mask(want)})
	if !errors.Is(err, spdkrpc.ErrInvalid) {
		return want, mapError(err)
	}
	cores := want.List()
	tries := make([]spdkrpc.NvmfSetConfig, len(cores))
	for i, core := range cores {
		tries[i].PollGroupsMask = cpus.Mask(cpuset.New(core))
	}
	_, errs := spdkrpc.Each(s.ctx, s.conn, tries)
	var has []int
	for i, err := range errs {
		switch {
		case err == nil:
			has = append(has, cores[i])
		case !errors.Is(err, spdkrpc.ErrInvalid):
			return groups, mapError(err)
		}
	}
	if len(has) == 0 {
		return groups, nil // it was given other cores of the plan, which serve instead
	}
	groups = cpuset.New(has...)
	_, err = spdkrpc.Call(s.ctx, s.conn, spdkrpc.NvmfSetConfig{PollGroupsMask: cpus.Mask(groups)})
	return groups, mapError(err)
}

// isolateMainCore if it serves no connections. SPDK 26.05's dynamic scheduler would gather idle poll groups on it, also
// against their mask, and leave them there until it is nearly full (_balance_idle and _find_optimal_core of
// module/scheduler/dynamic). So they are gathered on the first of their own cores.
func (s *session) isolateMainCore(groups cpuset.CPUSet) error {
	if groups.IsEmpty() {
		return nil
	}
	is, err := spdkrpc.Call(s.ctx, s.conn, spdkrpc.FrameworkGetScheduler{})
	if err != nil {
		return mapError(err)
	}
	main := cpuset.New(int(is.SchedulingCore))
	if isolated, err := cpus.ParseMask(is.IsolatedCoreMask); err == nil && !isolated.IsEmpty() {
		main = isolated // by a process that was killed
	}
	options := spdkrpc.SchedulerSetOptions{SchedulingCore: new(uint32(groups.List()[0])), IsolatedCoreMask: cpus.Mask(main)}
	if main.IsSubsetOf(groups) {
		options = spdkrpc.SchedulerSetOptions{SchedulingCore: new(uint32(main.List()[0])), IsolatedCoreMask: "0x0"}
	}
	_, err = spdkrpc.Call(s.ctx, s.conn, options)
	return mapError(err)
}

// setScheduler and its knobs, which may change while the target serves.
func (s *session) setScheduler(is *settings, want settings) error {
	req := spdkrpc.FrameworkSetScheduler{Name: spdkrpc.SchedulerStatic}
	changed := is.dynamic
	if want.mode == v1alpha1.CoresDynamic {
		req.Name, changed = spdkrpc.SchedulerDynamic, !is.dynamic
		knobs := maps.Clone(is.values)
		for name, row := range want.transports.rows() {
			if planned, given := want.values[name]; given && row.live && is.values[name] != planned {
				knobs[name], changed = planned, true
			}
		}
		if err := fill(&req, setScheduler, nil, knobs, dialect{}); err != nil {
			return fmt.Errorf("%w: %w", engine.ErrInvalid, err)
		}
	}
	if !changed {
		return nil
	}
	if _, err := spdkrpc.Call(s.ctx, s.conn, req); err != nil {
		return fmt.Errorf("scheduler: %w", mapError(err))
	}
	return nil
}

// makeTransports that are planned and missing, and reads them back: SPDK takes no notice of what it does not know.
func (s *session) makeTransports(plan *v1alpha1.SPDKPlan, is *settings, want settings, speaks dialect) (made bool, err error) {
	for _, t := range plan.Transports {
		if is.transports[t.Type] {
			continue
		}
		if t.Type == rdma && is.mode == v1alpha1.CoresInterrupt && speaks.rdmaPolls {
			continue // once it is restarted, as is planned
		}
		req, err := transportOf(t.Type, want, speaks)
		if err != nil {
			return made, err
		}
		if speaks.oneCache {
			req.SharedBuffers = new(sharedBuffers(plan, is.cores.Size(), t))
		}
		if _, err := spdkrpc.Call(s.ctx, s.conn, req); err != nil {
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
	listed, err := spdkrpc.Call(s.ctx, s.conn, spdkrpc.NvmfGetTransports{})
	if err != nil {
		return true, mapError(err)
	}
	return true, is.setTransports(listed, speaks)
}

// hint at what the transport needs: SPDK's answer does not say what is missing.
func hint(t v1alpha1.TransportType, plan *v1alpha1.SPDKPlan, speaks dialect) string {
	if t != v1alpha1.TransportRDMA {
		return ""
	}
	needs := "; it requires a target that was built with RDMA, and an RDMA device"
	if speaks.hugepagesOnly && plan.Hugepages == v1alpha1.HugepagesDisabled {
		needs += "; in this release it also requires hugepages: set memory.hugepages to 2Mi or 1Gi, or use an image with SPDK " + dialects[0].since.String()
	}
	return needs
}

// transportOf a plan. Hosts cannot discard: see the package's doc on old data.
func transportOf(t v1alpha1.TransportType, want settings, speaks dialect) (spdkrpc.NvmfCreateTransport, error) {
	req := spdkrpc.NvmfCreateTransport{Type: string(t)}
	if !speaks.cannotMask {
		req.MaskedFeatures = []spdkrpc.ONCS{spdkrpc.ONCSDatasetManagement}
	}
	if err := fill(&req, setTransport, transports{t: true}, want.values, speaks); err != nil {
		return req, fmt.Errorf("%w: transport %s: %w", engine.ErrInvalid, t, err)
	}
	return req, nil
}

// sharedBuffers that a transport may use, in releases that ask for it: what the pools have, and never less than the
// caches of all cores, poll group or not, which such a release insists on.
func sharedBuffers(plan *v1alpha1.SPDKPlan, cores int, t v1alpha1.PlannedTransport) uint32 {
	cache := oneCache(uint32(t.SmallCache), uint32(t.LargeCache))
	return max(uint32(min(plan.SmallBuffers, plan.LargeBuffers)), uint32(cores)*cache)
}

func hasTransport(plan *v1alpha1.SPDKPlan, t v1alpha1.TransportType) bool {
	return slices.ContainsFunc(plan.Transports, func(p v1alpha1.PlannedTransport) bool { return p.Type == t })
}
