// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"cmp"
	"context"
	"encoding/json"
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

// settings of a target, planned or read back. The memory that the target was given is not among them: it cannot be
// asked for.
type settings struct {
	cores cpuset.CPUSet
	// pollGroups are the cores that serve connections.
	pollGroups cpuset.CPUSet
	mode       v1alpha1.CoreMode
	// examinesAll bdevs that appear, which none is to do.
	examinesAll bool
	// dynamic scheduler, which a target in interrupt mode may have been given too, and the core that it gathers idle
	// threads on.
	dynamic    bool
	gathered   cpuset.CPUSet
	transports transports
	values     values
}

// wantedBy a plan for SPDK.
func wantedBy(plan v1alpha1.Plan, speaks dialect) (settings, error) {
	want, err := settingsOf(plan.SPDK, speaks)
	if err != nil {
		return want, err
	}
	if plan.Authentication != nil {
		want.values["authentication.dhGroup"] = string(plan.Authentication.DHGroup)
	}
	return want, nil
}

// settingsOf a plan's part for SPDK.
func settingsOf(plan *v1alpha1.SPDKPlan, speaks dialect) (settings, error) {
	if speaks.rdmaPolls && plan.Mode == v1alpha1.CoresInterrupt && hasTransport(plan, v1alpha1.TransportRDMA) {
		return settings{}, fmt.Errorf("%w: before SPDK 26.01 a target in interrupt mode cannot serve RDMA; use cores.mode Dynamic or Static, or an image with a later release, best %s",
			engine.ErrUnsupported, dialects[0].since)
	}
	cores, err := cpus.ParseMask(plan.CoreMask)
	if err != nil {
		return settings{}, fmt.Errorf("%w: core mask: %w", engine.ErrInvalid, err)
	}
	pollGroups := cores
	if plan.PollGroupMask != "" {
		if pollGroups, err = cpus.ParseMask(plan.PollGroupMask); err != nil {
			return settings{}, fmt.Errorf("%w: poll group mask: %w", engine.ErrInvalid, err)
		}
	}
	types, decided, err := planned(plan, speaks)
	if err != nil {
		return settings{}, fmt.Errorf("%w: %w", engine.ErrInvalid, err)
	}
	return settings{cores: cores, pollGroups: pollGroups, mode: plan.Mode, transports: types, values: decided}, nil
}

// fixed is what a target runs with until it ends.
type fixed struct {
	// pollGroups that it was given. Empty: all its cores.
	pollGroups cpuset.CPUSet
	values     values
	// examinesAll bdevs that appear, volumes included: see examine.
	examinesAll bool
}

// fixed settings of the target behind this connection. They are asked for once: SPDK goes through all that it has to
// answer.
func (s *session) fixed() (*fixed, error) {
	if s.life.fixed != nil {
		return s.life.fixed, nil
	}
	sock := spdkrpc.Start(s.ctx, s.conn, spdkrpc.SockImplGetOptions{Impl: spdkrpc.SockPosix})
	var configs []*spdkrpc.Pending[[]spdkrpc.ConfigEntry]
	for _, module := range []string{"iobuf", "bdev", "nvmf"} {
		configs = append(configs, spdkrpc.Start(s.ctx, s.conn, spdkrpc.FrameworkGetConfig{Name: module}))
	}
	options, err := sock.Wait()
	if err != nil {
		return nil, mapError(err)
	}
	is := &fixed{values: values{}}
	if err := is.values.read(setSockets, transports{tcp: true}, options, dialect{}); err != nil {
		return nil, err
	}
	for _, pending := range configs {
		entries, err := pending.Wait()
		if err != nil {
			return nil, mapError(err)
		}
		for _, entry := range entries {
			if err := is.configured(entry); err != nil {
				return nil, fmt.Errorf("SPDK's configuration of %s: %w", entry.Method, err)
			}
		}
	}
	s.life.fixed = is
	return is, nil
}

// configured takes over what one entry of SPDK's configuration says.
func (f *fixed) configured(entry spdkrpc.ConfigEntry) error {
	switch entry.Method {
	case setBdev:
		var options struct {
			AutoExamine bool `json:"bdev_auto_examine"`
		}
		if err := json.Unmarshal(entry.Params, &options); err != nil {
			return err
		}
		f.examinesAll = options.AutoExamine
		return f.values.read(setBdev, nil, entry.Params, dialect{})
	case setIobuf, setSubsystems:
		return f.values.read(entry.Method, nil, entry.Params, dialect{})
	case setNvmf:
		if err := f.values.read(setNvmf, nil, entry.Params, dialect{}); err != nil {
			return err
		}
		var config struct {
			Mask string `json:"poll_groups_mask"`
		}
		if err := json.Unmarshal(entry.Params, &config); err != nil || config.Mask == "" {
			return err
		}
		var err error
		f.pollGroups, err = cpus.ParseMask(config.Mask)
		return err
	}
	return nil
}

// readSettings of a target that serves. What may change in its life is asked for each time.
func (s *session) readSettings(speaks dialect) (*settings, error) {
	reactors := spdkrpc.Start(s.ctx, s.conn, spdkrpc.FrameworkGetReactors{})
	scheduling := spdkrpc.Start(s.ctx, s.conn, spdkrpc.FrameworkGetScheduler{})
	listed := spdkrpc.Start(s.ctx, s.conn, spdkrpc.NvmfGetTransports{})
	running, err := reactors.Wait()
	scheduler, schedulerErr := scheduling.Wait()
	made, transportsErr := listed.Wait()
	if err := errors.Join(err, schedulerErr, transportsErr); err != nil {
		return nil, mapError(err)
	}
	ever, err := s.fixed()
	if err != nil {
		return nil, err
	}
	is := &settings{pollGroups: ever.pollGroups, examinesAll: ever.examinesAll, mode: v1alpha1.CoresStatic, values: maps.Clone(ever.values)}
	for _, core := range running.Reactors {
		is.cores = is.cores.Union(cpuset.New(int(core.Core)))
	}
	if is.pollGroups.IsEmpty() {
		is.pollGroups = is.cores
	}
	is.gathered = cpuset.New(int(scheduler.SchedulingCore))
	if is.dynamic = scheduler.Name == spdkrpc.SchedulerDynamic; is.dynamic {
		is.mode = v1alpha1.CoresDynamic
		if err := is.values.read(setScheduler, nil, scheduler, speaks); err != nil {
			return nil, err
		}
	}
	if interruptMode(running) {
		is.mode = v1alpha1.CoresInterrupt
	}
	return is, is.setTransports(made, speaks)
}

func (is *settings) setTransports(made []spdkrpc.Transport, speaks dialect) error {
	is.transports = transports{}
	for _, t := range made {
		of := v1alpha1.TransportType(t.Type)
		is.transports[of] = true
		if err := is.values.read(setTransport, transports{of: true}, t, speaks); err != nil {
			return err
		}
	}
	return nil
}

// pollGroupsOn the cores that a target runs on: those that are planned, or all if it was given none of these.
func (is *settings) pollGroupsOn(cores cpuset.CPUSet) cpuset.CPUSet {
	if groups := is.pollGroups.Intersection(cores); !groups.IsEmpty() {
		return groups
	}
	return cores
}

// differences from what is to what shall be that only a restart can undo, but for fewerCores.
func (is *settings) differences(want settings) []string {
	var found []string
	differs := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	if !is.cores.IsSubsetOf(want.cores) {
		differs("it runs on cores %s, but should run on %s", is.cores, want.cores)
	}
	if pollGroups := want.pollGroupsOn(is.cores); !pollGroups.Equals(is.pollGroups) {
		differs("connections are served on cores %s, but should be on %s", is.pollGroups, pollGroups)
	} else if want.mode == v1alpha1.CoresDynamic && !is.gathered.IsSubsetOf(pollGroups) {
		differs("idle connections are gathered on core %s, but should be on one of %s", is.gathered, pollGroups)
	}
	if runs := is.mode == v1alpha1.CoresInterrupt; runs != (want.mode == v1alpha1.CoresInterrupt) {
		differs("interrupt mode is %s, but should be %s", onOff(runs), onOff(!runs))
	}
	if is.examinesAll {
		differs("it looks for pools in volumes, too, where hosts can write what looks like one, but should look only on drives")
	}
	for name, row := range want.transports.rows() {
		if planned, given := want.values[name]; given && !row.live && is.values[name] != planned {
			if t, each := row.transport(name); !each || is.transports[t] {
				found = append(found, row.difference(name, is.values[name], planned))
			}
		}
	}
	for _, t := range []v1alpha1.TransportType{tcp, rdma} {
		if is.transports[t] && !want.transports[t] {
			differs("transport %s is not planned", t)
		}
	}
	return found
}

// fewerCores says that the target runs on some of the planned cores only; "" when it has them all. It was started so
// by weft-launch, which leaves out cores that its container was not given, or before the plan had more. What else is
// planned holds on fewer cores too.
func (is *settings) fewerCores(want settings) string {
	missing := want.cores.Difference(is.cores)
	if missing.IsEmpty() || !is.cores.IsSubsetOf(want.cores) {
		return ""
	}
	return fmt.Sprintf("it runs on cores %s, but should run on %s: the plan has more cores since it started, or cores %s are not available to its container; in that case remove them from the kubelet's reservedSystemCPUs, or choose available CPUs with cores.mask",
		is.cores, want.cores, missing)
}

// Settings implements engine.Adjustable. The memory that the target was given cannot be asked for.
func (e *Engine) Settings(ctx context.Context, plan v1alpha1.Plan) ([]v1alpha1.EngineSetting, error) {
	s, end, err := e.begin(ctx)
	defer end()
	if err != nil {
		return nil, err
	}
	speaks, err := s.dialect()
	if err != nil {
		return nil, err
	}
	is, err := s.readSettings(speaks)
	if err != nil {
		return nil, err
	}
	var decided values
	if plan.SPDK != nil {
		want, err := wantedBy(plan, speaks)
		if err != nil {
			return nil, err
		}
		want.pollGroups = want.pollGroupsOn(is.cores)
		decided = want.named()
	}
	var report []v1alpha1.EngineSetting
	now := is.named()
	if plan.SPDK != nil && plan.SPDK.LatencyHistograms == v1alpha1.SwitchEnabled {
		// They are turned on with each volume that hosts are admitted to, while somebody reads the metrics.
		decided[latencyHistograms], now[latencyHistograms] = on, on
		if speaks.noBorders {
			now[latencyHistograms] = off
		}
	}
	for name, value := range now {
		setting := v1alpha1.EngineSetting{Setting: name, Value: value}
		if p, ok := decided[name]; ok && p != value {
			setting.Planned = p
		}
		report = append(report, setting)
	}
	slices.SortFunc(report, func(a, b v1alpha1.EngineSetting) int { return cmp.Compare(a.Setting, b.Setting) })
	return report, nil
}

// named settings of what there is, as a plan writes them.
func (is *settings) named() values {
	named := values{"coreMask": cpus.Mask(is.cores), "pollGroupMask": cpus.Mask(is.pollGroups), "mode": string(is.mode)}
	for name := range is.transports.rows() {
		if value, known := is.values[name]; known {
			named[name] = value
		}
	}
	return named
}
