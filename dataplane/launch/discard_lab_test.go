// SPDX-License-Identifier: Apache-2.0

//go:build lab

package launch_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/conformance"
)

const (
	discarded = 48 << 20
	volumeOf  = 64 << 20
)

// TestDiscardsOnDrives: a Linux host gives space back to a pool on a drive that a user vouches for, and another volume
// that is given it reads zeroes, also when the target was killed right after a discard. Where the plan does not let it,
// it gives back nothing and loses nothing. Emulated drives promise zeroes, but have a volatile write cache.
func TestDiscardsOnDrives(t *testing.T) {
	if err := os.WriteFile("/proc/sys/vm/nr_hugepages", []byte(strconv.Itoa(hugepages)), 0o200); err != nil {
		t.Fatalf("%v; run this as root on a machine of its own (weft-lab up)", err)
	}
	for name, lets := range map[string]bool{"vouched for": true, "kept from hosts": false} {
		t.Run(name, func(t *testing.T) {
			s := newServing(t)
			driver := v1alpha1.DriverUIO
			if s.drive.IOMMU == v1alpha1.IOMMUTranslated {
				driver = v1alpha1.DriverVFIO
			}
			s.Expect(s.drive.Deallocated).To(Equal(v1alpha1.DeallocatedUndefined), "what the kernel's drive says, before SPDK takes it")
			policy, trust, want := v1alpha1.DiscardGuaranteed, v1alpha1.DiscardTrust(""), v1alpha1.Switch("")
			if lets {
				policy, trust, want = v1alpha1.DiscardAssumeZeroes, v1alpha1.TrustVouched, v1alpha1.SwitchEnabled
			}
			plan, reasons := s.plan(driver, v1alpha1.Hugepages2Mi, v1alpha1.CoresStatic, policy)
			s.Expect(reasons).To(BeEmpty())
			s.Expect(plan.SPDK.Discard).To(Equal(want))
			s.Expect(plan.Drives).To(HaveExactElements(HaveField("Discard", trust)))
			s.discards(*plan, lets)
		})
	}
}

// attached is a volume that the kernel has connected.
type attached struct {
	conformance.Namespace
	block string
}

func (s *serving) attach(plan v1alpha1.Plan, lets bool) attached {
	s.t.Helper()
	id := engine.ID(uuid.NewString())
	export := engine.Export{
		NQN: v1alpha1.NQNPrefix + "pvc-" + string(id), Serial: id.NGUID()[:20], Model: "weft", MaxIOQueues: 1, Discard: lets,
		Namespaces: []engine.Namespace{{NSID: 1, Volume: id}}, Hosts: []string{v1alpha1.HostNQNPrefix + uuid.NewString()},
	}
	s.fill(plan, engine.VolumeSpec{ID: id, Pool: plan.Drives[0].ID, SizeBytes: volumeOf}, export)
	tcp := slices.IndexFunc(plan.Portals, func(p v1alpha1.PlannedPortal) bool { return p.Transport == v1alpha1.TransportTCP })
	connection, err := conformance.ConnectKernel(plan.Portals[tcp].Portal, export.NQN, export.Hosts[0])
	s.Expect(err).NotTo(HaveOccurred())
	ns, err := connection.Namespace(s.ctx, id)
	s.Expect(err).NotTo(HaveOccurred())
	return attached{ns, conformance.BlockDevice(ns)}
}

// free bytes of the pool, whose target lets hosts discard or not.
func (s *serving) free(lets bool) int64 {
	s.t.Helper()
	state, err := s.engine.Gather(s.ctx)
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(state.Discard).To(Equal(lets))
	for _, x := range state.Exports {
		s.Expect(x.Discard).To(Equal(lets))
	}
	s.Expect(state.Pools).To(HaveExactElements(And(HaveField("Err", BeNil()), HaveField("Deallocated", v1alpha1.DeallocatedUndefined))))
	return state.Pools[0].FreeBytes
}

// cleared is the pool once nothing of it is held.
func (s *serving) cleared(plan v1alpha1.Plan) {
	s.t.Helper()
	s.Expect(s.engine.OpenPools(s.ctx, []engine.Device{{ID: plan.Drives[0].ID, PCIAddress: s.drive.PCIAddress}})).To(HaveEach(BeNil()))
	state, err := s.engine.Gather(s.ctx)
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(state.Pools).To(HaveExactElements(HaveField("FreeBytes", BeZero())), "nothing that is free is trusted")
	begun := time.Now()
	_, err = s.engine.Clear(s.ctx)
	s.Expect(err).NotTo(HaveOccurred())
	s.t.Logf("cleared a pool of %d MiB in %s", state.Pools[0].TotalBytes>>20, time.Since(begun))
}

func (s *serving) discards(plan v1alpha1.Plan, lets bool) {
	s.start(plan)
	s.cleared(plan)
	one := s.attach(plan, lets)
	secret := bytes.Repeat([]byte("secret! "), discarded/8)
	s.writeAll(one, secret)
	full := s.free(lets)

	out, err := exec.CommandContext(s.ctx, "blkdiscard", "--force", "--length", strconv.Itoa(discarded), one.block).CombinedOutput()
	s.t.Logf("blkdiscard: %v %s", err, out)
	if !lets {
		s.Expect(err).To(HaveOccurred(), "it is not offered")
		s.Expect(s.free(lets)).To(Equal(full))
		s.Expect(s.readAll(one, discarded)).To(Equal(secret))
		s.end()
		return
	}
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(s.free(lets)).To(Equal(full+discarded), "all clusters of it are free")
	s.Expect(s.readAll(one, discarded)).To(Equal(make([]byte, discarded)))

	s.readsOnlyItsOwn(s.attach(plan, lets))
	s.trims(one, lets)

	// The target's sudden end loses nothing of it, and a target that comes back lets hosts discard as before.
	s.writeAll(one, secret)
	full = s.free(lets)
	s.run("blkdiscard", "--force", "--length", strconv.Itoa(discarded), one.block)
	s.killTarget()
	s.start(plan)
	s.cleared(plan)
	s.Expect(s.free(lets)).To(Equal(full + discarded))
	s.readsOnlyItsOwn(s.attach(plan, lets))
	s.end()
}

// readsOnlyItsOwn data of a new volume: a part of each of its clusters is written, which takes clusters that are free
// now, among them those that another volume discarded. Parts are longer than one command takes, so that they go through
// the block device, whatever the size of a drive's blocks.
func (s *serving) readsOnlyItsOwn(other attached) {
	s.t.Helper()
	const cluster = v1alpha1.DefaultClusterSize
	block := bytes.Repeat([]byte{1}, someBytes)
	want := make([]byte, volumeOf)
	for at := 0; at < volumeOf; at += cluster {
		_, err := other.WriteAt(block, int64(at))
		s.Expect(err).NotTo(HaveOccurred())
		copy(want[at:], block)
	}
	s.Expect(bytes.Equal(s.readAll(other, volumeOf), want)).To(BeTrue(), "it reads what another volume held")
}

// trims a filesystem, as a node does for a pod (fstrim), after a file in it was deleted.
func (s *serving) trims(on attached, lets bool) {
	s.t.Helper()
	s.run("mke2fs", "-q", "-t", "ext4", "-E", "nodiscard", on.block)
	dir := s.t.TempDir()
	s.run("mount", on.block, dir)
	mounted := true
	defer func() {
		if mounted {
			_ = exec.Command("umount", dir).Run() // the test has failed already
		}
	}()
	file := filepath.Join(dir, "file")
	s.Expect(os.WriteFile(file, bytes.Repeat([]byte("deleted "), 32<<20/8), 0o600)).To(Succeed())
	s.run("sync", "--file-system", dir)
	full := s.free(lets)
	s.Expect(os.Remove(file)).To(Succeed())
	s.run("sync", "--file-system", dir)
	s.Expect(s.free(lets)).To(Equal(full), "a deleted file gives nothing back by itself")
	s.run("fstrim", "--verbose", dir)
	// Of 32 MiB in a filesystem of 64 what is not a whole cluster stays.
	s.Expect(s.free(lets)).To(BeNumerically(">=", full+16<<20))
	s.run("umount", dir)
	mounted = false
}

func (s *serving) run(name string, args ...string) {
	s.t.Helper()
	out, err := exec.CommandContext(s.ctx, name, args...).CombinedOutput()
	s.t.Logf("%s: %s", name, out)
	s.Expect(err).NotTo(HaveOccurred(), "%s: %s", name, out)
}

func (s *serving) writeAll(to attached, data []byte) {
	s.t.Helper()
	for at := 0; at < len(data); at += someBytes {
		_, err := to.WriteAt(data[at:min(at+someBytes, len(data))], int64(at))
		s.Expect(err).NotTo(HaveOccurred())
	}
}

func (s *serving) readAll(from attached, length int) []byte {
	s.t.Helper()
	data := make([]byte, length)
	for at := 0; at < length; at += someBytes {
		_, err := from.ReadAt(data[at:min(at+someBytes, length)], int64(at))
		s.Expect(err).NotTo(HaveOccurred())
	}
	return data
}

// end of the target, in order, with its drive erased for the next test.
func (s *serving) end() {
	s.t.Helper()
	conformance.DisconnectKernel()
	s.engine.Close()
	s.Expect(s.launcher.Process.Signal(syscall.SIGTERM)).To(Succeed())
	s.Expect(s.launcher.Wait()).To(Succeed(), "%s", &s.log)
	s.Eventually(s.lastDrive).WithTimeout(patience).Should(HaveField("ID", s.drive.ID))
	s.erase(s.lastDrive().Name)
}
