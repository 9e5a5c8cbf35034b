// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/device"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/internal/text"
)

// decideNode sums the node up, after everything else was decided.
func (d *decider) decideNode() {
	status := d.nodeBase()
	status.Engine = engineStatus(d.Target)
	status.Pools = d.poolStatuses()
	status.DroppedDrives = d.drops
	status.Capacity = d.capacity()
	status.Portals = d.servedPortals()
	status.Attachments, status.Volumes = &d.attachments, d.volumePlaces()
	status.Orphans, status.OrphanCount = d.orphanStatuses()
	d.describe(status.Orphans)
	status.SuspectedRestore = d.decision.Records.Suspicion
	pools := d.poolsReady()
	status.Conditions = Conditions(d.Node.Status.Conditions, d.Node.Generation, d.Now,
		typed(v1alpha1.ConditionPoolReady, pools),
		typed(v1alpha1.ConditionPortalsReady, d.portalsReady),
		typed(v1alpha1.ConditionRestartNeeded, d.restartNeeded()),
		typed(v1alpha1.ConditionRestoreSuspected, d.restoreSuspected()),
		typed(v1alpha1.ConditionBuffersSufficient, d.buffersSufficient()),
		typed(v1alpha1.ConditionWritesDurable, d.writesDurable()),
		typed(v1alpha1.ConditionReady, d.nodeReady(pools)),
	)
	d.decision.Node = status
}

func engineStatus(t Target) *v1alpha1.EngineStatus {
	info := t.Info
	return &v1alpha1.EngineStatus{
		Type: info.Type, Version: info.Version, InterruptMode: info.InterruptMode, Authentication: info.Authentication, Settings: t.Settings,
		Transports: slices.Compact(slices.Sorted(slices.Values(info.Transports))),
	}
}

func (d *decider) restartNeeded() metav1.Condition {
	if len(d.Target.RestartNeeded) == 0 {
		return quiet()
	}
	return yesBecause(v1alpha1.ReasonSettingsDiffer, "the target keeps its settings until you restart it; delete pod %s when a short I/O pause of its volumes is acceptable: %s",
		v1alpha1.TargetPodPrefix+d.Node.Name, strings.Join(d.Target.RestartNeeded, "; "))
}

// nodeBase is what the node says of itself whatever its engine does. An inventory that is not known now stays as it
// was.
func (d *decider) nodeBase() v1alpha1.NvmfNodeStatus {
	status := *d.Node.Status.DeepCopy()
	status.Tuning = nil // the TuningReconciler's
	status.ObservedGeneration = d.Node.Generation
	status.PublicKey = d.PublicKey
	if d.Inventory != nil {
		status.Inventory = d.Inventory.DeepCopy()
	}
	return status
}

// nodeNothingKnown: without a plan there is nothing to say but the inventory; an
// engine that does not answer leaves what was last seen of it, and one that refuses the plan says at least what it is.
func (d *decider) nodeNothingKnown(reason, message string) v1alpha1.NvmfNodeStatus {
	status := d.nodeBase()
	// The plan was not acted on: the generation that was stays the one observed.
	status.ObservedGeneration = d.Node.Status.ObservedGeneration
	if d.Target.Info.Type != "" {
		status.Engine = engineStatus(d.Target)
	}
	v := unknown(reason, message)
	buffers, durable := v, v
	if d.Node.Spec.Plan == nil {
		v = no(reason, "%s", message)
		buffers = yesBecause(v1alpha1.ReasonNotNeeded, "%s", message)
		durable = buffers
		status.ObservedGeneration = d.Node.Generation
		status.Engine, status.Pools, status.Portals, status.Capacity = nil, nil, nil, v1alpha1.Capacity{}
		status.Attachments, status.Volumes = nil, nil
	}
	status.Conditions = Conditions(d.Node.Status.Conditions, d.Node.Generation, d.Now,
		typed(v1alpha1.ConditionPoolReady, v),
		typed(v1alpha1.ConditionPortalsReady, v),
		typed(v1alpha1.ConditionRestartNeeded, v),
		typed(v1alpha1.ConditionRestoreSuspected, v),
		typed(v1alpha1.ConditionBuffersSufficient, buffers),
		typed(v1alpha1.ConditionWritesDurable, durable),
		typed(v1alpha1.ConditionReady, no(reason, "%s", message)),
	)
	return status
}

func (d *decider) servedPortals() []v1alpha1.Portal {
	var planned, others []v1alpha1.Portal
	for _, p := range d.Target.State.Portals {
		if d.isPlanned(p.Portal) {
			planned = append(planned, p.Portal)
		} else {
			others = append(others, p.Portal)
		}
	}
	slices.SortFunc(planned, engine.ComparePortals)
	slices.SortFunc(others, engine.ComparePortals)
	all := slices.Concat(planned, others)
	return all[:min(len(all), v1alpha1.MaxPortals)]
}

// volumePlaces are those of the volumes that exist, and of those that are being made.
func (d *decider) volumePlaces() *v1alpha1.Places {
	places := &v1alpha1.Places{Used: d.places}
	if limit, limited := d.Node.Spec.Plan.VolumeLimit(); limited {
		places.Possible = &limit
	}
	return places
}

func (d *decider) poolStatuses() []v1alpha1.PoolStatus {
	statuses := make([]v1alpha1.PoolStatus, 0, len(d.pools))
	for _, p := range d.pools[:min(len(d.pools), v1alpha1.MaxPools)] {
		was := d.lastPoolStatus(p.device.ID)
		s := v1alpha1.PoolStatus{
			Device: p.device.ID, Path: p.device.Path, DeviceClass: p.class, Ready: p.ready(),
			Reason: p.reason, Message: text.Clip(p.message, MaxMessageBytes), Total: was.Total, Free: was.Free, ClusterSize: was.ClusterSize,
			BlockSizeBytes: was.BlockSizeBytes,
		}
		if p.readable() {
			s.Path, s.BlockSizeBytes = p.held.Path, p.held.BlockBytes
			s.Total = keep(was.Total, p.held.TotalBytes)
			s.Free = figure(was.Free, p.held.FreeBytes, p.held.TotalBytes/poolPart, d.Refresh)
			if p.clusterBytes > 0 {
				s.ClusterSize = keep(was.ClusterSize, p.clusterBytes)
			}
			s.Promised = keep(was.Promised, d.promised[p.device.ID])
			if p.held.ClearingBytes > 0 {
				s.Clearing = keep(was.Clearing, p.held.ClearingBytes)
			}
		}
		statuses = append(statuses, s)
	}
	return statuses
}

// capacity of the ready pools, and what was promised of it to all volumes of the node: thin volumes count whole, with
// their headers, and snapshots with what they hold, with an object or without. Free is what its pools can still take.
func (d *decider) capacity() v1alpha1.Capacity {
	var total, allocated, free int64
	for _, p := range d.pools {
		if p.ready() {
			total += p.held.TotalBytes
			free += d.room(p)
		}
	}
	for _, v := range d.Volumes {
		allocated += v1alpha1.WithOverhead(v.Spec.Size.Value())
	}
	for _, s := range d.snapshots {
		if s.presence == present {
			allocated += s.found.AllocatedBytes
		}
	}
	for _, v := range d.orphanVolumes {
		allocated += v.SizeBytes
	}
	for _, s := range d.orphanSnapshots {
		allocated += s.AllocatedBytes
	}
	was := d.Node.Status.Capacity
	return v1alpha1.Capacity{
		Total:     keep(was.Total, total),
		Allocated: keep(was.Allocated, allocated),
		Free:      keep(was.Free, free),
	}
}

func (d *decider) poolsReady() metav1.Condition {
	var reason string
	var messages []string
	devices := map[string][]string{} // by message
	for _, p := range d.pools {
		if !p.planned || p.reason == "" {
			continue
		}
		if gravity(p.reason) > gravity(reason) {
			reason = p.reason
		}
		if !slices.Contains(messages, p.message) {
			messages = append(messages, p.message)
		}
		devices[p.message] = append(devices[p.message], p.device.ID)
	}
	for i, message := range messages {
		messages[i] = fmt.Sprintf("pool %s: %s", strings.Join(devices[message], ", "), message)
	}
	switch {
	case reason != "":
		return no(reason, "%s", strings.Join(messages, "; "))
	case !slices.ContainsFunc(d.pools, func(p *pool) bool { return p.planned }):
		return no(v1alpha1.ReasonNoDevice, "the plan contains neither a drive nor a file")
	default:
		return yes()
	}
}

// writesDurable says of which pools hosts may lose writes that were acknowledged and not flushed.
func (d *decider) writesDurable() metav1.Condition {
	var volatile, unsure []string
	for _, p := range d.pools {
		if !p.readable() || p.held.NotDurable == nil {
			continue
		}
		words := fmt.Sprintf("pool %s: %v", p.device.ID, p.held.NotDurable)
		if errors.Is(p.held.NotDurable, device.ErrVolatile) {
			volatile = append(volatile, words)
		} else {
			unsure = append(unsure, words)
		}
	}
	switch {
	case len(volatile) > 0:
		return no(v1alpha1.ReasonVolatileWriteCache, "%s", strings.Join(append(volatile, unsure...), "; "))
	case len(unsure) > 0:
		return unknown(v1alpha1.ReasonWriteCacheUnknown, "it is unknown whether acknowledged writes survive a power loss: "+strings.Join(unsure, "; "))
	}
	return yes()
}

// gravityServes is that of a reason of a pool that serves what it has.
const gravityServes = 2

// gravity of a pool's reason: of several, one that says what is wrong counts more than one of a pool that serves, and
// that more than "wait".
func gravity(reason string) int {
	switch reason {
	case "":
		return 0
	case v1alpha1.ReasonPending:
		return 1
	case v1alpha1.ReasonPoolNearlyFull, v1alpha1.ReasonFilesystemTooSmall, v1alpha1.ReasonDeletedDataKept:
		return gravityServes
	default:
		return 3
	}
}

// nodeReady: a node takes volumes when it has a pool to make them in and a portal to serve them from. A pool or portal
// more that is not ready shows in PoolReady and PortalsReady.
func (d *decider) nodeReady(pools metav1.Condition) metav1.Condition {
	switch {
	case !slices.ContainsFunc(d.pools, (*pool).ready):
		return no(pools.Reason, "no pool is ready: %s", pools.Message)
	case !slices.ContainsFunc(d.Target.State.Portals, func(p engine.Portal) bool { return d.isPlanned(p.Portal) }):
		return no(d.portalsReady.Reason, "no portal is open: %s", d.portalsReady.Message)
	case !isTrue(pools) || !isTrue(d.portalsReady):
		return yesBecause(v1alpha1.ReasonAsExpected, "serving, but not as planned; see PoolReady and PortalsReady")
	default:
		return yes()
	}
}
