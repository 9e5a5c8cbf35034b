// SPDX-License-Identifier: Apache-2.0

//go:build lab

// With this tag a drive is served by its PCI address: on a machine with NVMe drives that may be erased, as root, by the
// real nvmf_tgt that WEFT_SPDK_TARGET names. `make test-lab` runs it on two machines, with an IOMMU and without one.
package main_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/api/v1alpha1"
	launch "github.com/weft-storage/weft/dataplane/cmd/weft-launch"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
	"github.com/weft-storage/weft/dataplane/engine/spdk"
	"github.com/weft-storage/weft/dataplane/inventory"
	"github.com/weft-storage/weft/dataplane/sizing"
	"github.com/weft-storage/weft/dataplane/spdkrpc/spdktest"
)

const (
	// patience with an emulated machine.
	patience = 2 * time.Minute
	// hugepages of 2 MiB that the plans here fit in.
	hugepages = 400
	someBytes = 1 << 20
)

// TestServesDrives: from the node's inventory to a plan, to weft-launch with that plan, to hosts that write and read.
// Which drivers can be had is the machine's to say; the others are refused by the plan.
func TestServesDrives(t *testing.T) {
	for name, test := range map[string]struct {
		driver v1alpha1.DriveDriver
		pages  v1alpha1.Hugepages
		mode   v1alpha1.CoreMode
	}{
		"UIO":                    {v1alpha1.DriverUIO, v1alpha1.Hugepages2Mi, v1alpha1.CoresStatic},
		"VFIO":                   {v1alpha1.DriverVFIO, v1alpha1.Hugepages2Mi, v1alpha1.CoresStatic},
		"VFIO without hugepages": {v1alpha1.DriverVFIO, v1alpha1.HugepagesDisabled, v1alpha1.CoresInterrupt},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServing(t)
			plan, reasons := s.plan(test.driver, test.pages, test.mode)
			if refusal := refusalOf(test.driver, s.drive.IOMMU); refusal != "" {
				s.Expect(reasons).To(ConsistOf(HaveField("Reason", refusal)))
				s.refused(test.driver, refusal)
				return
			}
			s.Expect(reasons).To(BeEmpty())
			if release := spdktest.Release(t, os.Getenv(spdktest.TargetVariable)); test.pages == v1alpha1.HugepagesDisabled && release < "26.01" {
				t.Skipf("SPDK %s drives NVMe drives from hugepages only (docs/install.md)", release)
			}
			s.serve(*plan)
		})
	}
}

// refusalOf a driver behind an IOMMU, or without one.
func refusalOf(driver v1alpha1.DriveDriver, iommu v1alpha1.IOMMU) string {
	switch {
	case driver == v1alpha1.DriverVFIO && iommu == v1alpha1.IOMMUNone:
		return v1alpha1.ReasonNoIOMMU
	case driver == v1alpha1.DriverUIO && iommu == v1alpha1.IOMMUTranslated:
		return v1alpha1.ReasonDriverNotAvailable
	}
	return ""
}

// serving is a node with a blank drive.
type serving struct {
	*WithT
	t     *testing.T
	ctx   context.Context
	dir   string
	drive v1alpha1.Drive
	inv   *v1alpha1.Inventory
	// launcher that was started last, and what it and the target under it said.
	launcher *exec.Cmd
	log      bytes.Buffer
	engine   *spdk.Engine
	// pci is what the launcher takes from the kernel.
	pci []launch.PlannedDrive
}

func newServing(t *testing.T) *serving {
	t.Helper()
	s := &serving{WithT: NewWithT(t), t: t, ctx: t.Context()}
	if err := os.WriteFile("/proc/sys/vm/nr_hugepages", []byte(strconv.Itoa(hugepages)), 0o200); err != nil {
		t.Fatalf("%v; run this as root on a machine of its own (weft-lab up)", err)
	}
	if os.Getenv(spdktest.TargetVariable) == "" {
		t.Fatalf("%s is not set: name an nvmf_tgt that runs on this machine", spdktest.TargetVariable)
	}
	dir, err := os.MkdirTemp("", "weft")
	s.Expect(err).NotTo(HaveOccurred())
	s.dir = dir
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("weft-launch and nvmf_tgt said:\n%s", &s.log)
		}
	})
	t.Cleanup(enginetest.DisconnectKernel)
	// Another test's pool may be on the drive.
	s.erase(s.lastDrive().Name)
	s.drive = s.lastDrive()
	s.Expect(s.drive.Content).To(Equal(v1alpha1.ContentBlank), s.drive.ContentDetail)
	s.pci = plannedHere(s.drive)
	return s
}

// plannedHere are drives that the launcher is to take where they are.
func plannedHere(drives ...v1alpha1.Drive) (planned []launch.PlannedDrive) {
	for _, d := range drives {
		planned = append(planned, launch.PlannedDrive{Address: d.PCIAddress, ID: d.ID})
	}
	return planned
}

// drives of the machine, by their PCI addresses.
func (s *serving) drives() []v1alpha1.Drive {
	s.t.Helper()
	var err error
	s.inv, err = inventory.Discover(s.ctx, inventory.Host{Addresses: inventory.Netlink{}, Prober: inventory.Blkid{}})
	s.Expect(err).NotTo(HaveOccurred())
	drives := slices.DeleteFunc(slices.Clone(s.inv.Drives), func(d v1alpha1.Drive) bool { return !d.NVMe })
	s.Expect(drives).NotTo(BeEmpty(), "this machine has no NVMe drive: run this in the lab (weft-lab up)")
	slices.SortFunc(drives, func(a, b v1alpha1.Drive) int { return strings.Compare(a.PCIAddress, b.PCIAddress) })
	return drives
}

func (s *serving) lastDrive() v1alpha1.Drive {
	s.t.Helper()
	drives := s.drives()
	return drives[len(drives)-1]
}

func (s *serving) erase(name string) {
	s.t.Helper()
	out, err := exec.CommandContext(s.ctx, "blkdiscard", "--force", "/dev/"+name).CombinedOutput()
	s.Expect(err).NotTo(HaveOccurred(), "%s", out)
}

// plan of a target with both transports on this drive. SPDK before 26.01 serves RDMA from hugepages only, and only
// where it polls: elsewhere it has TCP.
func (s *serving) plan(driver v1alpha1.DriveDriver, pages v1alpha1.Hugepages, mode v1alpha1.CoreMode) (*v1alpha1.Plan, []sizing.Reason) {
	return s.planOf(nil, driver, pages, mode, s.drive)
}

// planOf such a target on several drives, of a node that follows a plan already, or none.
func (s *serving) planOf(current *v1alpha1.Plan, driver v1alpha1.DriveDriver, pages v1alpha1.Hugepages, mode v1alpha1.CoreMode, drives ...v1alpha1.Drive) (*v1alpha1.Plan, []sizing.Reason) {
	var paths []string
	for _, d := range drives {
		paths = append(paths, "/dev/disk/by-id/"+d.ByID[0])
	}
	network := &v1alpha1.Network{Interface: "eth0"}
	transports := []v1alpha1.Transport{{Type: v1alpha1.TransportTCP, Port: 4440, Network: network}}
	if spdktest.Release(s.t, os.Getenv(spdktest.TargetVariable)) >= "26.01" || pages != v1alpha1.HugepagesDisabled && mode != v1alpha1.CoresInterrupt {
		transports = append(transports, v1alpha1.Transport{Type: v1alpha1.TransportRDMA, Port: 4441, Network: network, SRQ: &v1alpha1.SRQ{Mode: v1alpha1.SRQEnabled}})
	}
	return sizing.Plan(sizing.Node{Name: "node", Inventory: s.inv, Current: current}, v1alpha1.NvmfTargetSpec{
		Engine:      v1alpha1.EngineSPDK,
		Transports:  transports,
		Attachments: v1alpha1.Attachments{Expected: 4, IOQueues: 1},
		Cores:       &v1alpha1.Cores{Count: new(int32(1)), Mode: mode},
		Memory:      &v1alpha1.Memory{Hugepages: pages},
		Devices:     v1alpha1.Devices{Paths: paths, Driver: driver},
	})
}

func (s *serving) socket() string { return filepath.Join(s.dir, "run", "spdk.sock") }

// launch starts weft-launch as the target pod does.
func (s *serving) launch(args ...string) {
	s.t.Helper()
	self, err := os.Executable()
	s.Expect(err).NotTo(HaveOccurred())
	// Not of the test's context, which ends before a test's cleanup has asked it to give the drive back.
	s.launcher = exec.CommandContext(context.WithoutCancel(s.t.Context()), self, append([]string{
		"run", "--socket", s.socket(), "--target", os.Getenv(spdktest.TargetVariable), "--reason-file", filepath.Join(s.dir, "reason"),
	}, args...)...)
	for _, d := range s.pci {
		s.launcher.Args = append(s.launcher.Args, "--pci", d.Address+"="+d.ID)
	}
	s.launcher.Env = append(os.Environ(), asLauncher+"=1")
	s.launcher.Stdout, s.launcher.Stderr = &s.log, &s.log
	s.Expect(s.launcher.Start()).To(Succeed())
	process := s.launcher.Process
	s.t.Cleanup(func() {
		_ = process.Signal(syscall.SIGTERM) // it has ended where the test came to its end
		_ = s.launcher.Wait()
	})
}

// refused by the launcher too, whatever the plan says.
func (s *serving) refused(driver v1alpha1.DriveDriver, reason string) {
	s.t.Helper()
	s.launch("--core-mask", "0x2", "--memory-bytes", "268435456", "--driver", string(driver))
	s.Expect(s.launcher.Wait()).To(HaveOccurred())
	said, err := os.ReadFile(filepath.Join(s.dir, "reason"))
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(string(said)).To(ContainSubstring(fmt.Sprintf(`"reason":%q`, reason)))
	s.Expect(s.lastDrive().Content).To(Equal(v1alpha1.ContentBlank), "the kernel has it still")
}

// start weft-launch with a plan, and give the target its settings.
func (s *serving) start(plan v1alpha1.Plan) {
	s.t.Helper()
	args := []string{
		"--core-mask", plan.SPDK.CoreMask, "--memory-bytes", strconv.FormatInt(plan.SPDK.MemoryBytes, 10),
		"--hugepages", string(plan.SPDK.Hugepages), "--driver", string(plan.SPDK.Driver),
	}
	if plan.SPDK.Mode == v1alpha1.CoresInterrupt {
		args = append(args, "--interrupt")
	}
	s.launch(args...)
	s.Eventually(func() error {
		_, err := launch.Probe(s.ctx, s.socket())
		return err
	}).WithTimeout(patience).WithPolling(100 * time.Millisecond).Should(Succeed())
	var err error
	s.engine, err = spdk.New(spdk.Config{Socket: s.socket(), StateDir: filepath.Join(s.dir, "state")})
	s.Expect(err).NotTo(HaveOccurred())
	s.t.Cleanup(s.engine.Close)
	s.Expect(s.engine.Start(s.ctx, plan)).To(Succeed())
}

// stop the target, which gives its drives back.
func (s *serving) stop() {
	s.t.Helper()
	s.Expect(s.terminated()).To(Succeed(), "%s", &s.log)
}

// terminated target: how its launcher ended.
func (s *serving) terminated() error {
	s.t.Helper()
	s.engine.Close()
	s.Expect(s.launcher.Process.Signal(syscall.SIGTERM)).To(Succeed())
	return s.launcher.Wait()
}

// fill the target, whose listeners come last.
func (s *serving) fill(plan v1alpha1.Plan, volume engine.VolumeSpec, export engine.Export) {
	s.t.Helper()
	s.Expect(s.engine.OpenPools(s.ctx, []engine.Device{{ID: volume.Pool, PCIAddress: s.drive.PCIAddress}})).To(HaveEach(BeNil()))
	s.clear()
	s.Expect(s.engine.CreateVolumes(s.ctx, []engine.VolumeSpec{volume})).To(HaveEach(BeNil()))
	s.Expect(s.engine.Export(s.ctx, []engine.Export{export})).To(HaveEach(BeNil()))
	var portals []engine.Portal
	for _, p := range plan.Portals {
		portals = append(portals, engine.Portal{Portal: p.Portal, QueueDepth: int(p.QueueDepth), InCapsuleDataBytes: int(p.InCapsuleDataSize)})
	}
	s.Expect(s.engine.OpenPortals(s.ctx, portals)).To(HaveEach(BeNil()))
}

// clear what may hold old data, as the agent does before it promises that space to anybody.
func (s *serving) clear() {
	s.t.Helper()
	s.Eventually(func(g Gomega) {
		g.Expect(enginetest.Clear(s.ctx, s.engine)).To(Succeed())
		state, err := s.engine.Gather(s.ctx)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(state.Pools).To(HaveEach(HaveField("ClearingBytes", BeZero())))
	}).WithTimeout(patience).Should(Succeed())
}

// serve the drive over the plan's transports, over the target's sudden end, and give it back.
func (s *serving) serve(plan v1alpha1.Plan) {
	id := engine.ID(uuid.NewString())
	volume := engine.VolumeSpec{ID: id, Pool: plan.Drives[0].ID, SizeBytes: 64 << 20}
	export := engine.Export{
		NQN: v1alpha1.NQNPrefix + "pvc-" + string(id), Serial: id.NGUID()[:20], Model: "weft", MaxIOQueues: 1,
		Namespaces: []engine.Namespace{{NSID: 1, Volume: id}},
	}
	for range plan.Portals {
		export.Hosts = append(export.Hosts, v1alpha1.HostNQNPrefix+uuid.NewString())
	}
	s.start(plan)
	s.fill(plan, volume, export)
	state, err := s.engine.Gather(s.ctx)
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(state.Volumes).To(ConsistOf(HaveField("AllocatedBytes", BeZero())))

	var hosts []enginetest.Namespace
	for i, portal := range plan.Portals {
		connection, err := enginetest.ConnectKernel(portal.Portal, export.NQN, export.Hosts[i])
		s.Expect(err).NotTo(HaveOccurred())
		defer connection.Disconnect()
		ns, err := connection.Namespace(s.ctx, id)
		s.Expect(err).NotTo(HaveOccurred())
		hosts = append(hosts, ns)
	}
	written := s.write(hosts, 0)
	s.read(hosts, 0, written)

	s.killTarget()
	s.start(plan)
	s.fill(plan, volume, export)
	s.read(hosts, 0, written)
	s.read(hosts, len(hosts), s.write(hosts, len(hosts)))

	enginetest.DisconnectKernel()
	s.stop()
	s.Eventually(s.lastDrive).WithTimeout(patience).Should(And(
		HaveField("ID", s.drive.ID), HaveField("Content", v1alpha1.ContentWeft), HaveField("ContentDetail", v1alpha1.DetailSPDKPool)))
	s.erase(s.lastDrive().Name)
}

// write something else through each host, from the given part on; it answers with what was written.
func (s *serving) write(hosts []enginetest.Namespace, from int) [][]byte {
	s.t.Helper()
	var all [][]byte
	for i, ns := range hosts {
		data := make([]byte, someBytes)
		_, _ = rand.Read(data) // never fails
		_, err := ns.WriteAt(data, int64(from+i)*someBytes)
		s.Expect(err).NotTo(HaveOccurred())
		all = append(all, data)
	}
	return all
}

// read through each host what all of them have written.
func (s *serving) read(hosts []enginetest.Namespace, from int, written [][]byte) {
	s.t.Helper()
	for _, ns := range hosts {
		for i, want := range written {
			have := make([]byte, len(want))
			_, err := ns.ReadAt(have, int64(from+i)*someBytes)
			s.Expect(err).NotTo(HaveOccurred())
			s.Expect(bytes.Equal(have, want)).To(BeTrue(), "part %d has other data", from+i)
		}
	}
}

// killTarget as kill -9 does. The launcher ends with it, as a container does, and the drive stays with SPDK's driver.
func (s *serving) killTarget() {
	s.t.Helper()
	s.engine.Close()
	out, err := exec.CommandContext(s.ctx, "pgrep", "--parent", strconv.Itoa(s.launcher.Process.Pid)).Output()
	s.Expect(err).NotTo(HaveOccurred())
	target, err := strconv.Atoi(strings.TrimSpace(string(out)))
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(syscall.Kill(target, syscall.SIGKILL)).To(Succeed())
	s.Expect(s.launcher.Wait()).To(HaveOccurred())
	s.Expect(s.launcher.ProcessState.ExitCode()).To(Equal(128 + int(syscall.SIGKILL)))
	driver, err := os.Readlink("/sys/bus/pci/devices/" + s.drive.PCIAddress + "/driver")
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(filepath.Base(driver)).NotTo(Equal("nvme"))
}
