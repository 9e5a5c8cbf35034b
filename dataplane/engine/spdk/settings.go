// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"strings"

	"k8s.io/utils/cpuset"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
)

var placements = map[v1alpha1.Placement]spdkrpc.Placement{
	"":                     spdkrpc.PlacementNone,
	v1alpha1.PlacementNone: spdkrpc.PlacementNone,
	v1alpha1.PlacementNAPI: spdkrpc.PlacementNAPI,
	v1alpha1.PlacementCPU:  spdkrpc.PlacementCPU,
}

// settings that only a restart changes. The memory that the target was given is not among
// them: it cannot be asked for.
type settings struct {
	cores cpuset.CPUSet
	// pollGroups are the cores that serve connections; none: all of them.
	pollGroups    cpuset.CPUSet
	interruptMode bool
	numbers       map[string]int64
	placement     *spdkrpc.Placement
	// sockets of TCP; nil where nothing is planned of them.
	sockets    map[string]int64
	transports map[v1alpha1.TransportType]map[string]int64
	// scheduler can be changed at any time.
	scheduler spdkrpc.Scheduler
}

// Names of settings, as the plan's reader knows them.
const (
	smallBuffers  = "small buffers"
	largeBuffers  = "large buffers"
	ioPoolSize    = "I/O descriptors"
	maxSubsystems = "subsystems"
)

// settingsOf a plan.
func settingsOf(plan *v1alpha1.SPDKPlan, speaks dialect) (settings, error) {
	if speaks.rdmaPolls && plan.Mode == v1alpha1.CoresInterrupt && hasTransport(plan, v1alpha1.TransportRDMA) {
		return settings{}, fmt.Errorf("%w: before SPDK 26.01 a target in interrupt mode cannot serve RDMA; use cores.mode Dynamic or Static, or an image with a later release, best %s",
			engine.ErrUnsupported, dialects[0].since)
	}
	cores, err := parseMask(plan.CoreMask)
	if err != nil {
		return settings{}, fmt.Errorf("core mask: %w", err)
	}
	pollGroups := cpuset.New()
	if plan.PollGroupMask != "" {
		if pollGroups, err = parseMask(plan.PollGroupMask); err != nil {
			return settings{}, fmt.Errorf("poll group mask: %w", err)
		}
	}
	s := settings{
		cores: cores, pollGroups: pollGroups, interruptMode: plan.Mode == v1alpha1.CoresInterrupt,
		numbers: map[string]int64{
			smallBuffers:  int64(plan.SmallBuffers),
			largeBuffers:  int64(plan.LargeBuffers),
			ioPoolSize:    int64(plan.BdevIOPoolSize),
			maxSubsystems: int64(plan.MaxSubsystems),
		},
	}
	if hasTransport(plan, v1alpha1.TransportTCP) {
		placement := placements[plan.Placement]
		s.placement = &placement
		s.sockets = plannedSockets(plan.Sockets)
	}
	s.transports = map[v1alpha1.TransportType]map[string]int64{}
	for _, t := range plan.Transports {
		s.transports[t.Type] = numbersOf(transportAsMade(t, speaks), speaks)
	}
	return s, nil
}

// transportAsMade reads as the planned one would.
func transportAsMade(t v1alpha1.PlannedTransport, speaks dialect) spdkrpc.Transport {
	made := spdkrpc.Transport{
		Type: string(t.Type), MaxQueueDepth: uint16(t.QueueDepth), MaxIOQpairs: uint16(t.MaxIOQueues),
		InCapsuleDataBytes: uint32(t.InCapsuleDataSize), MaxIOBytes: uint32(t.MaxIOSize),
		IobufSmallCacheSize: uint32(t.SmallCache), IobufLargeCacheSize: uint32(t.LargeCache),
		NoSRQ:        t.Type == v1alpha1.TransportRDMA && t.SRQDepth == nil,
		C2HSuccess:   t.C2HSuccess != v1alpha1.SwitchDisabled,
		SockPriority: uint32(t.SocketPriority),
	}
	if speaks.oneCache {
		made.CacheSize = oneCache(made.IobufSmallCacheSize, made.IobufLargeCacheSize)
	}
	if t.SRQDepth != nil {
		made.MaxSRQDepth = uint32(*t.SRQDepth)
	}
	return made
}

// numbersOf a transport that a plan decides. An SRQ of depth 0 is none.
func numbersOf(t spdkrpc.Transport, speaks dialect) map[string]int64 {
	numbers := map[string]int64{
		"queue depth": int64(t.MaxQueueDepth), "I/O queues": int64(t.MaxIOQpairs), "in-capsule data bytes": int64(t.InCapsuleDataBytes),
		"I/O bytes": int64(t.MaxIOBytes), "small buffer cache": int64(t.IobufSmallCacheSize), "large buffer cache": int64(t.IobufLargeCacheSize),
	}
	if speaks.oneCache {
		numbers["small buffer cache"], numbers["large buffer cache"] = int64(t.CacheSize), int64(t.CacheSize)
	}
	if t.Type == spdkrpc.TransportRDMA {
		numbers["SRQ depth"] = int64(t.MaxSRQDepth)
		if t.NoSRQ {
			numbers["SRQ depth"] = 0
		}
		return numbers
	}
	numbers[c2hSuccess], numbers["socket priority"] = bit(t.C2HSuccess), int64(t.SockPriority)
	return numbers
}

func (is *settings) setTransports(transports []spdkrpc.Transport, speaks dialect) {
	is.transports = map[v1alpha1.TransportType]map[string]int64{}
	for _, t := range transports {
		is.transports[v1alpha1.TransportType(t.Type)] = numbersOf(t, speaks)
	}
}

// readSettings of a target that serves.
func (s *session) readSettings(speaks dialect) (*settings, error) {
	reactors := spdkrpc.Start(s.ctx, s.conn, spdkrpc.FrameworkGetReactors{})
	scheduler := spdkrpc.Start(s.ctx, s.conn, spdkrpc.FrameworkGetScheduler{})
	transports := spdkrpc.Start(s.ctx, s.conn, spdkrpc.NvmfGetTransports{})
	sock := spdkrpc.Start(s.ctx, s.conn, spdkrpc.SockImplGetOptions{Impl: spdkrpc.SockPosix})
	var configs []*spdkrpc.Pending[[]spdkrpc.ConfigEntry]
	for _, module := range []string{"iobuf", "bdev", "nvmf"} {
		configs = append(configs, spdkrpc.Start(s.ctx, s.conn, spdkrpc.FrameworkGetConfig{Name: module}))
	}
	var config struct {
		Small uint64 `json:"small_pool_count"`
		Large uint64 `json:"large_pool_count"`
		IOs   uint64 `json:"bdev_io_pool_size"`
		Max   uint64 `json:"max_subsystems"`
		Mask  string `json:"poll_groups_mask"`
	}
	for _, pending := range configs {
		entries, err := pending.Wait()
		if err != nil {
			return nil, mapError(err)
		}
		for _, entry := range entries {
			switch entry.Method {
			case "iobuf_set_options", "bdev_set_options", "nvmf_set_config", "nvmf_set_max_subsystems":
				if err := json.Unmarshal(entry.Params, &config); err != nil {
					return nil, fmt.Errorf("SPDK's configuration of %s: %w", entry.Method, err)
				}
			}
		}
	}
	running, err := reactors.Wait()
	is := &settings{cores: cpuset.New(), interruptMode: interruptMode(running), numbers: map[string]int64{
		smallBuffers: int64(config.Small), largeBuffers: int64(config.Large), ioPoolSize: int64(config.IOs), maxSubsystems: int64(config.Max) - ownSubsystems,
	}}
	var schedulerErr, transportsErr error
	is.scheduler, schedulerErr = scheduler.Wait()
	made, transportsErr := transports.Wait()
	options, sockErr := sock.Wait()
	if err := errors.Join(err, schedulerErr, transportsErr, sockErr); err != nil {
		return nil, mapError(err)
	}
	for _, core := range running.Reactors {
		is.cores = is.cores.Union(coresOf(int(core.Core)))
	}
	is.pollGroups = is.cores
	if config.Mask != "" {
		if is.pollGroups, err = parseMask(config.Mask); err != nil {
			return nil, fmt.Errorf("SPDK's poll group mask: %w", err)
		}
	}
	is.placement, is.sockets = &options.Placement, socketNumbers(options)
	is.setTransports(made, speaks)
	return is, nil
}

// differences from what is to what shall be that only a restart can undo, but for fewerCores.
func (is *settings) differences(want settings) []string {
	var found []string
	differs := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	if !is.cores.IsSubsetOf(want.cores) {
		differs("it runs on cores %s and should run on %s", is.cores, want.cores)
	}
	pollGroups := want.cores
	if !want.pollGroups.IsEmpty() {
		pollGroups = want.pollGroups
	}
	if pollGroups = pollGroups.Intersection(is.cores); !pollGroups.Equals(is.pollGroups) {
		differs("connections are served on cores %s and should be on %s", is.pollGroups, pollGroups)
	}
	if is.interruptMode != want.interruptMode {
		differs("interrupt mode is %s and should be %s", onOff(is.interruptMode), onOff(want.interruptMode))
	}
	for _, name := range []string{smallBuffers, largeBuffers, ioPoolSize, maxSubsystems} {
		if is.numbers[name] != want.numbers[name] {
			differs("%s are %d and should be %d", name, is.numbers[name], want.numbers[name])
		}
	}
	if want.placement != nil && *is.placement != *want.placement {
		differs("placement of TCP connections is %s and should be %s", placementName(*is.placement), placementName(*want.placement))
	}
	for _, name := range socketSettings {
		if planned, given := want.sockets[name]; given && is.sockets[name] != planned {
			differs("%s of sockets is %s and should be %s", name, inWords(name, is.sockets[name]), inWords(name, planned))
		}
	}
	for _, t := range []v1alpha1.TransportType{v1alpha1.TransportTCP, v1alpha1.TransportRDMA} {
		a, there := is.transports[t]
		b, wanted := want.transports[t]
		if there && !wanted {
			differs("there is a transport %s, which is not planned", t)
		}
		if !there || !wanted {
			continue
		}
		for _, name := range []string{"queue depth", "I/O queues", "in-capsule data bytes", "I/O bytes", "small buffer cache", "large buffer cache", "SRQ depth", c2hSuccess, "socket priority"} {
			if a[name] != b[name] {
				differs("%s of transport %s is %s and should be %s", name, t, inWords(name, a[name]), inWords(name, b[name]))
			}
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
	return fmt.Sprintf("it runs on cores %s and should run on %s: the plan has more since it started, or its container was not given %s; then let the kubelet's reservedSystemCPUs leave them out, or name CPUs that it gives with cores.mask",
		is.cores, want.cores, missing)
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

func placementName(p spdkrpc.Placement) string {
	for _, name := range []v1alpha1.Placement{v1alpha1.PlacementNone, v1alpha1.PlacementNAPI, v1alpha1.PlacementCPU} {
		if placements[name] == p {
			return string(name)
		}
	}
	return fmt.Sprint(uint32(p))
}

// parseMask of cores, hexadecimal, with or without 0x.
func parseMask(mask string) (cpuset.CPUSet, error) {
	bits, ok := new(big.Int).SetString(strings.TrimPrefix(mask, "0x"), 16)
	if !ok || bits.Sign() <= 0 {
		return cpuset.New(), fmt.Errorf("%w: %q; give a hexadecimal mask of at least one core, such as 0x3c", engine.ErrInvalid, mask)
	}
	var cores []int
	for core := range bits.BitLen() {
		if bits.Bit(core) == 1 {
			cores = append(cores, core)
		}
	}
	return cpuset.New(cores...), nil
}

func maskOf(cores cpuset.CPUSet) string {
	bits := new(big.Int)
	for _, core := range cores.UnsortedList() {
		bits.SetBit(bits, core, 1)
	}
	return "0x" + bits.Text(16)
}

func coresOf(cores ...int) cpuset.CPUSet { return cpuset.New(cores...) }
