// SPDX-License-Identifier: Apache-2.0

//go:build lab

package main_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/api/v1alpha1"
	launch "github.com/weft-storage/weft/dataplane/cmd/weft-launch"
	"github.com/weft-storage/weft/dataplane/device"
	"github.com/weft-storage/weft/dataplane/engine"
)

// TestSwappedDeadAndAddedDrives: another drive than the planned one is left alone, one that dies while it is served
// keeps the other from nothing, nor does one that is gone when the target starts, and one that is put back is as it
// was. By the kernel's driver, and by the one for SPDK that this machine can have.
func TestSwappedDeadAndAddedDrives(t *testing.T) {
	t.Run("Kernel", func(t *testing.T) {
		r := newRack(t, v1alpha1.DriverKernel)
		r.start(r.planned)
		r.swappedOfKernel()
		r.makePools()
		r.Eventually(r.pull()).WithTimeout(patience).Should(Receive(BeNil()))
		r.servesNeighbour()
		r.forgets()
		r.stop()
		r.start(r.planned)
		r.Expect(r.open(r.neighbour)).To(Succeed())
		r.servesNeighbour()
		// A running target takes it back.
		r.putBack(v1alpha1.ContentWeft)
		r.Expect(r.open(r.drive)).To(Succeed())
		r.hasAll()
		r.end()
	})
	t.Run("SPDK", func(t *testing.T) {
		r := newRack(t, v1alpha1.DriverVFIO)
		r.pci = append(plannedHere(r.drive, r.neighbour),
			launch.PlannedDrive{Address: r.drive.PCIAddress, ID: "eui.swapped"}, launch.PlannedDrive{Address: "0000:00:1e.0", ID: "eui.pulled"})
		r.start(r.planned)
		r.swappedOfSPDK()
		r.makePools()
		r.die()
		r.servesNeighbour()
		pulled := r.pull()
		r.servesNeighbour()
		r.stopWithADeadDrive()
		r.Eventually(pulled).WithTimeout(patience).Should(Receive(BeNil()))
		r.pci = plannedHere(r.drive, r.neighbour)
		r.start(r.planned)
		var refused *device.RefusedError
		r.Expect(errors.As(r.open(r.drive), &refused)).To(BeTrue())
		r.Expect(refused.Reason).To(Equal(v1alpha1.ReasonDeviceMissing))
		r.Expect(r.open(r.neighbour)).To(Succeed())
		r.servesNeighbour()
		r.forgets()
		r.stop()
		// It is the launcher that takes it back.
		r.putBack(v1alpha1.ContentWeft)
		r.start(r.planned)
		r.Expect(r.open(r.drive, r.neighbour)).To(Succeed())
		r.hasAll()
		r.end()
	})
}

// TestBlankDriveJoins a node that serves: it becomes a pool of its own, and the volumes of the other drive are there
// all the time, also over a restart. By the kernel's driver, and by the one for SPDK that this machine can have.
func TestBlankDriveJoins(t *testing.T) {
	for _, driver := range []v1alpha1.DriveDriver{v1alpha1.DriverKernel, v1alpha1.DriverVFIO} {
		t.Run(string(driver), func(t *testing.T) {
			r := newRack(t, driver)
			// It is held back: the inventory that the first plan is made from does not have it.
			r.Eventually(r.pull()).WithTimeout(patience).Should(Receive(BeNil()))
			r.replan(nil, r.neighbour)
			r.start(r.planned)
			r.Expect(r.open(r.neighbour)).To(Succeed())
			r.servesNeighbour()

			r.putBack(v1alpha1.ContentBlank)
			r.servesNeighbour()
			r.replan(&r.planned, r.neighbour, r.drive)
			if len(r.pci) > 0 {
				// It is the launcher that takes drives from the kernel.
				r.stop()
				r.start(r.planned)
			}
			r.joined()
			r.create(r.drive)
			r.servesNeighbour()
			r.stop()
			r.start(r.planned)
			r.joined()
			r.hasAll()
			r.end()
		})
	}
}

// replan the node's target from what it has now and the plan that it follows, on these drives.
func (r *rack) replan(current *v1alpha1.Plan, drives ...v1alpha1.Drive) {
	r.t.Helper()
	r.drives()
	plan, reasons := r.planOf(current, r.driver, v1alpha1.Hugepages2Mi, v1alpha1.CoresStatic, drives...)
	r.Expect(reasons).To(BeEmpty())
	r.planned, r.pci = *plan, nil
	var planned []string
	for _, d := range plan.Drives {
		planned = append(planned, d.ID)
		if d.PCIAddress != "" {
			r.pci = append(r.pci, launch.PlannedDrive{Address: d.PCIAddress, ID: d.ID})
		}
	}
	var want []string
	for _, d := range drives {
		want = append(want, d.ID)
	}
	r.Expect(planned).To(ConsistOf(want))
	if r.driver != v1alpha1.DriverKernel {
		r.Expect(r.pci).To(HaveLen(len(drives)))
	}
}

// joined: both drives are pools, with all that was made on them.
func (r *rack) joined() {
	r.t.Helper()
	r.Expect(r.open(r.neighbour, r.drive)).To(Succeed())
	state, err := r.engine.Gather(r.ctx)
	r.Expect(err).NotTo(HaveOccurred())
	r.Expect(state.Pools).To(ConsistOf(
		And(HaveField("Device", r.neighbour.ID), HaveField("Err", BeNil())), And(HaveField("Device", r.drive.ID), HaveField("Err", BeNil()))))
	r.hasAll()
}

// rack is a node with two drives: one that is swapped, dies and comes back, or is added, and its neighbour.
type rack struct {
	*serving
	planned   v1alpha1.Plan
	driver    v1alpha1.DriveDriver
	neighbour v1alpha1.Drive
	// made are the volumes that lie on them.
	made []engine.ID
}

// newRack with drives that have that driver; for VFIO it is UIO where the machine has no IOMMU.
func newRack(t *testing.T, driver v1alpha1.DriveDriver) *rack {
	r := &rack{serving: newServing(t)}
	if driver == v1alpha1.DriverVFIO && r.drive.IOMMU == v1alpha1.IOMMUNone {
		driver = v1alpha1.DriverUIO
	}
	drives := r.drives()
	r.Expect(len(drives)).To(BeNumerically(">=", 2), "this test needs two NVMe drives")
	r.erase(drives[len(drives)-2].Name)
	drives = r.drives()
	r.neighbour = drives[len(drives)-2]
	t.Logf("driver %s, drive %s, its neighbour %s", driver, r.drive.ID, r.neighbour.ID)
	plan, reasons := r.plan(driver, v1alpha1.Hugepages2Mi, v1alpha1.CoresStatic)
	r.Expect(reasons).To(BeEmpty())
	r.planned, r.driver = *plan, driver
	if driver == v1alpha1.DriverKernel {
		r.pci = nil
	}
	return r
}

// stopWithADeadDrive, which SPDK 26.05 does not always survive: it unloads the lvstore of the drive while that goes
// (spdk_bs_unload). The launcher gives the other drives back in any case.
func (r *rack) stopWithADeadDrive() {
	r.t.Helper()
	const crashed = 128 + int(syscall.SIGSEGV)
	err := r.terminated()
	if exit, is := errors.AsType[*exec.ExitError](err); is && exit.ExitCode() == crashed {
		r.t.Log("SPDK ended by a segmentation fault")
		return
	}
	r.Expect(err).NotTo(HaveOccurred(), "%s", &r.log)
}

// end leaves blank drives behind, of a target that has given them back.
func (r *rack) end() {
	r.t.Helper()
	r.stop()
	for _, d := range r.drives() {
		r.erase(d.Name)
	}
}

// device as the agent would give it to the engine.
func (r *rack) device(d v1alpha1.Drive) engine.Device {
	if len(r.pci) == 0 {
		return engine.Device{ID: d.ID, Path: "/dev/" + d.Name}
	}
	return engine.Device{ID: d.ID, PCIAddress: d.PCIAddress}
}

// open the drives' pools, once the kernel has deallocated those that are blank.
func (r *rack) open(drives ...v1alpha1.Drive) (err error) {
	r.t.Helper()
	var devices []engine.Device
	for _, d := range drives {
		devices = append(devices, r.device(d))
	}
	r.Eventually(func() bool {
		err = errors.Join(r.engine.OpenPools(r.ctx, devices)...)
		return errors.Is(err, engine.ErrBusy)
	}).WithTimeout(patience).Should(BeFalse())
	return err
}

// swappedOfKernel: the path leads to another drive than the plan means, which stays blank.
func (r *rack) swappedOfKernel() {
	r.t.Helper()
	planned := r.drive
	planned.ID = "eui.swapped"
	var swapped *device.SwappedError
	r.Expect(errors.As(r.open(planned), &swapped)).To(BeTrue())
	r.Expect(swapped.Found).To(Equal(r.drive.ID))
	r.Expect(r.lastDrive().Content).To(Equal(v1alpha1.ContentBlank))
}

// swappedOfSPDK: the launcher leaves out what is not where it was planned, and the engine what the launcher's record is
// wrong about, as if it had been swapped after that looked.
func (r *rack) swappedOfSPDK() {
	r.t.Helper()
	refusals, err := device.ReadRefusals(r.socket())
	r.Expect(err).NotTo(HaveOccurred())
	r.Expect(refusals).To(HaveLen(2))
	r.Expect(refusals["eui.swapped"].Reason).To(Equal(v1alpha1.ReasonDeviceSwapped))
	r.Expect(refusals["eui.pulled"].Reason).To(Equal(v1alpha1.ReasonDeviceMissing))

	records, err := device.ReadRecords(r.socket())
	r.Expect(err).NotTo(HaveOccurred())
	wrong := device.Records{r.drive.PCIAddress: {ID: "eui.swapped", Content: v1alpha1.ContentBlank}}
	r.Expect(errors.Join(wrong.Write(r.socket()), device.Refusals{}.Write(r.socket()))).To(Succeed())
	planned := r.drive
	planned.ID = "eui.swapped"
	var swapped *device.SwappedError
	r.Expect(errors.As(r.open(planned), &swapped)).To(BeTrue())
	r.Expect(records.Write(r.socket())).To(Succeed())
}

// makePools of both drives, each with a volume.
func (r *rack) makePools() {
	r.t.Helper()
	r.Expect(r.open(r.drive, r.neighbour)).To(Succeed())
	r.create(r.drive)
	r.create(r.neighbour)
	r.hasAll()
}

func (r *rack) create(on v1alpha1.Drive) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.ctx, patience)
	defer cancel()
	id := engine.ID(uuid.NewString())
	r.Expect(r.engine.CreateVolumes(ctx, []engine.VolumeSpec{{ID: id, Pool: on.ID, SizeBytes: 64 << 20}})).To(HaveEach(BeNil()))
	r.made = append(r.made, id)
}

// hasAll volumes that were made.
func (r *rack) hasAll() {
	r.t.Helper()
	state, err := r.engine.Gather(r.ctx)
	r.Expect(err).NotTo(HaveOccurred())
	for _, id := range r.made {
		r.Expect(state.Volumes).To(ContainElement(HaveField("ID", id)))
	}
}

// servesNeighbour: what goes on on one drive is not held up by the other, which may not answer at all.
func (r *rack) servesNeighbour() {
	r.t.Helper()
	began := time.Now()
	r.create(r.neighbour)
	created := time.Since(began)
	state, err := r.engine.Gather(r.ctx)
	r.Expect(err).NotTo(HaveOccurred())
	r.Expect(state.Pools).To(ContainElement(And(HaveField("Device", r.neighbour.ID), HaveField("Err", BeNil()))))
	for _, p := range state.Pools {
		r.t.Logf("pool %s: %v, not durable: %v", p.Device, p.Err, p.NotDurable)
	}
	r.t.Logf("a volume of the neighbour after %v, all of the node after %v", created, time.Since(began))
	r.Expect(time.Since(began)).To(BeNumerically("<", 30*time.Second))
}

// forgets the pool of the drive that is gone, and no other.
func (r *rack) forgets() {
	r.t.Helper()
	r.Expect(r.engine.ForgetPools(r.ctx, []string{r.drive.ID, r.neighbour.ID})).To(HaveExactElements(BeNil(), MatchError(engine.ErrInUse)))
	state, err := r.engine.Gather(r.ctx)
	r.Expect(err).NotTo(HaveOccurred())
	r.Expect(state.Pools).To(ConsistOf(HaveField("Device", r.neighbour.ID)))
}

func pciFile(address, name string) string {
	return filepath.Join("/sys/bus/pci/devices", address, name)
}

// die as a controller does that answers nothing any more: it may not reach memory.
func (r *rack) die() {
	r.t.Helper()
	const command, busMaster = 4, 0x04
	f, err := os.OpenFile(pciFile(r.drive.PCIAddress, "config"), os.O_RDWR, 0)
	r.Expect(err).NotTo(HaveOccurred())
	register := make([]byte, 1)
	_, err = f.ReadAt(register, command)
	r.Expect(err).NotTo(HaveOccurred())
	register[0] &^= busMaster
	_, err = f.WriteAt(register, command)
	r.Expect(errors.Join(err, f.Close())).To(Succeed())
}

// pull the drive out. With VFIO the kernel waits until the target lets go of it, and so does the answer.
func (r *rack) pull() <-chan error {
	r.t.Cleanup(func() { _ = rescan() }) // as it was already, unless the test failed
	pulled := make(chan error, 1)
	go func() { pulled <- os.WriteFile(pciFile(r.drive.PCIAddress, "remove"), []byte("1"), 0o200) }()
	return pulled
}

func rescan() error { return os.WriteFile("/sys/bus/pci/rescan", []byte("1"), 0o200) }

// putBack the drive, which the kernel then sees with what is on it.
func (r *rack) putBack(content v1alpha1.DriveContent) {
	r.t.Helper()
	r.Expect(rescan()).To(Succeed())
	back := func() v1alpha1.Drive { r.drive = r.lastDrive(); return r.drive }
	was := r.drive
	r.Eventually(back).WithTimeout(patience).Should(And(
		HaveField("ID", was.ID), HaveField("PCIAddress", was.PCIAddress), HaveField("Content", content), HaveField("ByID", Not(BeEmpty()))))
}
