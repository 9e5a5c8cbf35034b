// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
)

// planNames are the plan's names of what numbersOf and socketNumbers read.
var planNames = map[string]string{
	"queue depth": "queueDepth", "I/O queues": "maxIOQueues", "in-capsule data bytes": "inCapsuleDataSize",
	"I/O bytes": "maxIOSize", "small buffer cache": "smallCache", "large buffer cache": "largeCache", "SRQ depth": "srqDepth",
	c2hSuccess: "c2hSuccess", "socket priority": "socketPriority",
	zeroCopySend: "zeroCopySend", "zero-copy threshold in bytes": "zeroCopyThreshold", receivePipe: "receivePipe", quickAck: "quickAck",
	"send buffer in bytes": "sendBufferSize", "receive buffer in bytes": "receiveBufferSize",
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
	var planned map[string]string
	if plan.SPDK != nil {
		want, err := settingsOf(plan.SPDK, speaks)
		if err != nil {
			return nil, err
		}
		planned = want.named()
		groups := want.pollGroups
		if groups.IsEmpty() {
			groups = want.cores
		}
		planned["pollGroupMask"] = maskOf(groups.Intersection(is.cores))
		planned["mode"] = string(plan.SPDK.Mode)
		if k := plan.SPDK.Scheduler; k != nil {
			planned["scheduler.periodMicroseconds"], planned["scheduler.loadLimit"] = strconv.FormatInt(k.PeriodMicroseconds, 10), strconv.Itoa(int(k.LoadLimit))
			planned["scheduler.coreLimit"], planned["scheduler.coreBusy"] = strconv.Itoa(int(k.CoreLimit)), strconv.Itoa(int(k.CoreBusy))
		}
	}
	return report(is.named(), planned), nil
}

func report(is, planned map[string]string) []v1alpha1.EngineSetting {
	settings := make([]v1alpha1.EngineSetting, 0, len(is))
	for name, value := range is {
		s := v1alpha1.EngineSetting{Setting: name, Value: value}
		if p, ok := planned[name]; ok && p != value {
			s.Planned = p
		}
		settings = append(settings, s)
	}
	slices.SortFunc(settings, func(a, b v1alpha1.EngineSetting) int { return cmp.Compare(a.Setting, b.Setting) })
	return settings
}

// named settings, as a plan writes them.
func (is *settings) named() map[string]string {
	named := map[string]string{
		"coreMask": maskOf(is.cores), "pollGroupMask": maskOf(is.pollGroups), "mode": string(is.mode()),
		"smallBuffers": strconv.FormatInt(is.numbers[smallBuffers], 10), "largeBuffers": strconv.FormatInt(is.numbers[largeBuffers], 10),
		"bdevIOPoolSize": strconv.FormatInt(is.numbers[ioPoolSize], 10), "maxSubsystems": strconv.FormatInt(is.numbers[maxSubsystems], 10),
	}
	_, tcp := is.transports[v1alpha1.TransportTCP]
	if is.placement != nil && tcp {
		named["placement"] = placementName(*is.placement)
	}
	for name, n := range is.sockets {
		if tcp {
			named["sockets."+planNames[name]] = asPlanned(name, n)
		}
	}
	for t, numbers := range is.transports {
		for name, n := range numbers {
			named[fmt.Sprintf("transports[%s].%s", t, planNames[name])] = asPlanned(name, n)
		}
	}
	if is.scheduler.Name == spdkrpc.SchedulerDynamic {
		k := is.scheduler
		named["scheduler.periodMicroseconds"], named["scheduler.loadLimit"] = strconv.FormatUint(k.PeriodMicros, 10), strconv.Itoa(int(k.LoadLimit))
		named["scheduler.coreLimit"], named["scheduler.coreBusy"] = strconv.Itoa(int(k.CoreLimit)), strconv.Itoa(int(k.CoreBusy))
	}
	return named
}

// asPlanned is a value as a plan's choice writes it.
func asPlanned(name string, n int64) string {
	switch {
	case name == "SRQ depth" && n == 0:
		return "none"
	case name != c2hSuccess && name != zeroCopySend && name != receivePipe && name != quickAck:
		return strconv.FormatInt(n, 10)
	case n == 1:
		return string(v1alpha1.SwitchEnabled)
	}
	return string(v1alpha1.SwitchDisabled)
}

func (is *settings) mode() v1alpha1.CoreMode {
	switch {
	case is.interruptMode:
		return v1alpha1.CoresInterrupt
	case is.scheduler.Name == spdkrpc.SchedulerDynamic:
		return v1alpha1.CoresDynamic
	}
	return v1alpha1.CoresStatic
}
