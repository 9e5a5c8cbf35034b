// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"errors"
	"fmt"
	"slices"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/device"
	"github.com/weft-storage/weft/dataplane/engine"
)

// pool is a device of the plan, a pool of the engine, or both.
type pool struct {
	device  engine.Device // without Path and PCIAddress when it is not known where it is now
	planned bool
	class   string       // of the plan's drives that it is of; empty for none
	held    *engine.Pool // nil: the engine does not hold it
	// clusterBytes in which it allocates, as it was last seen to; 0 for none.
	clusterBytes int64
	// reason and message say why it is not ready; or, when it is, what it lacks.
	reason, message string
	// nearlyFull pools serve what they hold, and take nothing more: an engine that runs out fails its hosts' writes.
	nearlyFull bool
}

// A pool is nearly full when less than nearlyFullPercent of it is free, until it is more than roomAgainPercent, so that
// one near the bound does not go to and fro.
const (
	nearlyFullPercent = 5
	roomAgainPercent  = 7
)

func (d *decider) judgeFullness(p *pool) bool {
	least := int64(nearlyFullPercent)
	if d.lastPoolStatus(p.device.ID).TakesNothingNew() {
		least = roomAgainPercent
	}
	return p.readable() && p.held.FreeBytes < p.held.TotalBytes/100*least
}

// A pool is full, too, when more is promised of it than there is, and fullUnits of allocation or less are free: what
// its hosts write between two looks. It is full until notFullPercent are free.
const (
	fullUnits      = 4
	notFullPercent = 1
)

// full pools fail writes, or may at any moment. Where no more is promised than there is, every volume can be filled:
// nothing fails.
func (d *decider) full(p *pool) bool {
	if !p.nearlyFull {
		return false
	}
	holds := p.held.TotalBytes
	if p.held.MissingBytes > 0 {
		holds += holds / engine.RoomParts // the room of its filesystem is rounded down
	}
	if d.promised[p.device.ID] <= holds {
		return false
	}
	most := fullUnits * max(engine.SizeUnit, p.clusterBytes)
	if d.lastPoolStatus(p.device.ID).Reason == v1alpha1.ReasonPoolFull {
		most = max(most, p.held.TotalBytes/100*notFullPercent)
	}
	return p.held.FreeBytes <= most
}

// readable pools prove what they hold, and what they do not.
func (p *pool) readable() bool { return p != nil && p.held != nil && p.held.Err == nil }

// ready pools take new volumes.
func (p *pool) ready() bool { return p.readable() && p.planned }

func (d *decider) indexPools() {
	held := map[string]*engine.Pool{}
	for i := range d.Target.State.Pools {
		p := &d.Target.State.Pools[i]
		held[p.Device] = p
	}
	for _, device := range d.plannedDevices() {
		d.pools = append(d.pools, &pool{device: device, planned: true, held: held[device.ID]})
		delete(held, device.ID)
	}
	for i := range d.Target.State.Pools {
		p := &d.Target.State.Pools[i]
		if held[p.Device] != nil {
			d.pools = append(d.pools, &pool{device: engine.Device{ID: p.Device, Path: p.Path}, held: p})
		}
	}
	for _, drive := range d.Node.Spec.Plan.Drives {
		if p := d.poolOf(drive.ID); p != nil {
			p.class = drive.DeviceClass
		}
	}
	for _, p := range d.pools {
		p.nearlyFull = d.judgeFullness(p)
		if was := d.lastPoolStatus(p.device.ID).ClusterSize; was != nil {
			p.clusterBytes = was.Value()
		}
		if p.readable() {
			p.clusterBytes = p.held.ClusterBytes
		}
	}
}

// located says whether it is known where the device is now.
func (p *pool) located() bool { return p.device.Path != "" || p.device.PCIAddress != "" }

// plannedDevices finds today's path of each planned drive: a reboot may change it. A drive that the target drives
// itself has none: the kernel, and so the inventory, does not know it any more.
func (d *decider) plannedDevices() []engine.Device {
	plan := d.Node.Spec.Plan
	if plan.File != nil {
		return []engine.Device{{ID: plan.File.Path, Path: plan.File.Path, FileBytes: plan.File.Size.Value(), ClusterBytes: plan.ClusterBytes}}
	}
	// Never open a drive through the kernel when SPDK is to drive it, even while its address is unknown.
	own := plan.SPDK != nil && plan.SPDK.Driver != "" && plan.SPDK.Driver != v1alpha1.DriverKernel
	devices := make([]engine.Device, len(plan.Drives))
	for i, drive := range plan.Drives {
		devices[i] = engine.Device{ID: drive.ID, PCIAddress: drive.PCIAddress, ClusterBytes: plan.ClusterBytes}
		if d.replacementOf(drive) != nil {
			devices[i].PCIAddress = ""
		}
		if found := d.driveOf(drive.ID); found != nil && !own && drive.PCIAddress == "" {
			devices[i].Path = "/dev/" + found.Name
		}
	}
	return devices
}

// replacementOf a drive that SPDK is to drive itself: the other drive that the kernel now sees in its place.
func (d *decider) replacementOf(planned v1alpha1.PlannedDrive) *v1alpha1.Drive {
	if d.Inventory == nil || planned.PCIAddress == "" || d.driveOf(planned.ID) != nil {
		return nil
	}
	at := slices.IndexFunc(d.Inventory.Drives, func(found v1alpha1.Drive) bool { return found.PCIAddress == planned.PCIAddress })
	if at < 0 {
		return nil
	}
	return &d.Inventory.Drives[at]
}

// driveOf is the drive with an ID, as far as the kernel sees it now; nil when it does not.
func (d *decider) driveOf(id string) *v1alpha1.Drive {
	if d.Inventory == nil {
		return nil
	}
	at := slices.IndexFunc(d.Inventory.Drives, func(found v1alpha1.Drive) bool { return found.ID == id })
	if at < 0 {
		return nil
	}
	return &d.Inventory.Drives[at]
}

func (d *decider) poolOf(device string) *pool {
	at := slices.IndexFunc(d.pools, func(p *pool) bool { return p.device.ID == device })
	if at < 0 {
		return nil
	}
	return d.pools[at]
}

// allReadable when no planned pool could hide something.
func (d *decider) allReadable() bool {
	return !slices.ContainsFunc(d.pools, func(p *pool) bool { return !p.readable() })
}

func (d *decider) decidePools() {
	for _, p := range d.pools {
		if d.toBeOpened(p) {
			d.decision.Operations.OpenPools = append(d.decision.Operations.OpenPools, p.device)
		}
		p.reason, p.message = d.judgePool(p)
	}
}

// toBeOpened says whether the engine is to be asked for this pool: when it does not hold it, cannot read it, or may
// have to grow its file. A file's growth cannot be seen from the pool's size, which is less than the file's, so it is
// asked for with each new plan, and again while the last answer was not good.
func (d *decider) toBeOpened(p *pool) bool {
	if !p.planned || !p.located() || d.Node.Dropped(p.device.ID) || d.Attempts.Tried(VerbOpenPool, p.device.ID) {
		return false
	}
	if !p.readable() {
		return true
	}
	last := d.lastPoolStatus(p.device.ID)
	return p.device.FileBytes > 0 &&
		(d.Node.Generation != d.Node.Status.ObservedGeneration || gravity(last.Reason) != 0 && gravity(last.Reason) != gravityServes && !last.TakesNothingNew())
}

func (d *decider) lastPoolStatus(device string) v1alpha1.PoolStatus {
	at := slices.IndexFunc(d.Node.Status.Pools, func(s v1alpha1.PoolStatus) bool { return s.Device == device })
	if at < 0 {
		return v1alpha1.PoolStatus{}
	}
	return d.Node.Status.Pools[at]
}

func (d *decider) judgePool(p *pool) (reason, message string) {
	err := d.Attempts.err(VerbOpenPool, p.device.ID)
	var foreign *device.ForeignSignatureError
	var swapped *device.SwappedError
	var refused *device.RefusedError
	switch {
	case !p.planned && p.readable():
		return v1alpha1.ReasonNotClaimed, "no longer planned: its volumes stay available, but it gets no new ones"
	case errors.As(err, &foreign):
		return v1alpha1.ReasonForeignSignature, err.Error()
	case errors.As(err, &swapped):
		return v1alpha1.ReasonDeviceSwapped, err.Error()
	case errors.As(err, &refused):
		return refused.Reason, err.Error()
	case errors.Is(err, engine.ErrInUse), errors.Is(err, device.ErrInUse):
		return v1alpha1.ReasonDeviceInUse, err.Error()
	case errors.Is(err, engine.ErrBusy):
		return v1alpha1.ReasonPending, err.Error()
	case err != nil:
		return v1alpha1.ReasonPoolFailed, err.Error()
	case p.held != nil && p.held.Err != nil:
		return v1alpha1.ReasonPoolFailed, p.held.Err.Error()
	case d.full(p):
		return v1alpha1.ReasonPoolFull, "the pool is full, but more space is promised: writes that need new space fail, and filesystems may become read-only; " + d.roomFrom(p)
	case p.nearlyFull:
		return v1alpha1.ReasonPoolNearlyFull, fmt.Sprintf("less than %d%% is free: its volumes stay available, but it accepts no new volumes, snapshots or expansion until more than %d%% is free; "+
			"delete volumes or snapshots, or add a drive", nearlyFullPercent, roomAgainPercent)
	case p.held != nil && p.held.KeepsDeleted != nil:
		return v1alpha1.ReasonDeletedDataKept, p.held.KeepsDeleted.Error()
	case p.held != nil && p.held.MissingBytes > 0:
		return v1alpha1.ReasonFilesystemTooSmall, fmt.Sprintf("the filesystem of the file has room for only %d%% of it, and that is all the pool counts; free space there, or enlarge it: "+
			"once it is full, writes fail", p.held.TotalBytes*100/(p.held.TotalBytes+p.held.MissingBytes))
	case p.held != nil:
		return "", ""
	case p.located():
		return v1alpha1.ReasonPending, "being opened"
	case d.Inventory == nil:
		return v1alpha1.ReasonNoInventory, "the node's drives are unknown yet"
	}
	if at := slices.IndexFunc(d.Node.Spec.Plan.Drives, func(drive v1alpha1.PlannedDrive) bool { return drive.ID == p.device.ID }); at >= 0 {
		planned := d.Node.Spec.Plan.Drives[at]
		if other := d.replacementOf(planned); other != nil {
			swapped := &device.SwappedError{Where: planned.PCIAddress, Planned: planned.ID, Found: other.ID}
			return v1alpha1.ReasonDeviceSwapped, swapped.Error()
		}
	}
	return v1alpha1.ReasonDeviceMissing, fmt.Sprintf("drive %s is not on this node", p.device.ID)
}

// of says that a pool is of the class that a replica asks for, if it asks for one.
func (p *pool) of(class string) bool { return class == "" || p.class == class }

// blocks says that a pool that can be read has the logical blocks that a replica asks for, if it asks for any and they
// are known.
func (p *pool) blocks(bytes int32) bool {
	return bytes == 0 || p.held.BlockBytes == 0 || p.held.BlockBytes == bytes
}

// choosePool for a blank replica: of the ready ones of its class and blocks, that with the most room by promised size.
// Nil when none has the room.
func (d *decider) choosePool(want v1alpha1.NvmfReplicaSpec) *pool {
	var best *pool
	for _, p := range d.pools {
		if d.Node.Spec.Cordons(p.device.ID) {
			continue
		}
		if served := p.served(want.Size); p.ready() && p.of(want.DeviceClass) && p.blocks(want.BlockSizeBytes) && d.fits(p, served, served) && (best == nil || d.room(p) > d.room(best)) {
			best = p
		}
	}
	return best
}

// fits says that a volume of this size, of which more is not promised yet, has its place in a pool that can be read. No
// volume is larger than its pool: it could never be filled.
func (d *decider) fits(p *pool, size, more int64) bool {
	return size <= p.held.TotalBytes && more <= d.room(p)
}

// room for new promises in a pool.
func (d *decider) room(p *pool) int64 {
	if p.nearlyFull {
		return 0
	}
	return max(0, d.Node.Spec.Plan.Promisable(p.held.TotalBytes)-d.promised[p.device.ID])
}

// roomFrom is how a full pool gets room. Hosts cannot discard on SPDK.
func (d *decider) roomFrom(p *pool) string {
	words := "delete volumes or snapshots of the pool"
	if d.Node.Spec.Plan.Engine == v1alpha1.EngineNvmet {
		words += ", or discard unused blocks of its volumes (fstrim)"
	}
	if p.device.FileBytes > 0 {
		return words + ", or enlarge its file (devices.file.size)"
	}
	return words + "; another drive does not help, because each volume is on one drive"
}
