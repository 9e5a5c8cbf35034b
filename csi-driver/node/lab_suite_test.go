// SPDX-License-Identifier: Apache-2.0

//go:build lab

package node_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	testingclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/exec"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
	"github.com/weft-storage/weft/csi-driver/node/internal/filesystem"
	"github.com/weft-storage/weft/csi-driver/node/internal/mapper"
	"github.com/weft-storage/weft/csi-driver/node/internal/md"
	"github.com/weft-storage/weft/csi-driver/node/nodetest"
	"github.com/weft-storage/weft/internal/header"
)

// The tests of this file's build tag run as root on a machine of the lab: this
// machine's kernel is initiator and, set up here by plain writes to configfs, target. Nothing is faked.

const nvmet = "/sys/kernel/config/nvmet"

// labTimeout of each call, for an emulated machine that has others to run.
const labTimeout = 90 * time.Second

// lab is the node plugin of this machine.
type lab struct {
	*testing.T
	Gomega
	initiator *fabrics.Host
	service   *node.Service
	objects   nodetest.Objects
	clock     *testingclock.FakeClock // by which the kernel is overdue
	dir       string
}

// notInAShortRun, which make test has: other tests show most of what this one shows.
func notInAShortRun(t *testing.T) {
	if testing.Short() {
		t.Skip("left out of a short run; make test-all has it")
	}
}

func setUpLab(t *testing.T) *lab {
	g := NewWithT(t)
	g.SetDefaultEventuallyTimeout(labTimeout)
	g.SetDefaultEventuallyPollingInterval(50 * time.Millisecond)
	g.Expect(os.Geteuid()).To(BeZero(), "run this as root on a machine of the lab (test/e2e/README.md)")
	dir, err := filepath.EvalSymlinks(t.TempDir())
	g.Expect(err).NotTo(HaveOccurred())
	clock := testingclock.NewFakeClock(time.Now())
	kernel := fabrics.LinuxKernel{}
	fs := &filesystem.Host{
		Mounter: filesystem.NewLinuxMounter(), Exec: exec.New(), Open: kernel.Open, MountInfo: "/proc/self/mountinfo", Sys: "/sys", PBKDFMemoryKiB: 32,
	}
	g.Expect(fs.LoadModule(t.Context(), "nvmet_tcp")).To(Succeed())
	host := fabrics.New(fabrics.Config{
		Root: "/", Kernel: kernel, LoadModule: fs.LoadModule, Reachable: fabrics.Reachable, Clock: clock, MountsOf: fs.MountsOf,
		Events: fabrics.LinuxEvents,
	})
	devices := &mapper.Host{Root: "/", Control: mapper.Linux{}, LoadModule: fs.LoadModule, OpenDevice: kernel.Open}
	objects := nodetest.Objects{}
	return &lab{
		T: t, Gomega: g, initiator: host, objects: objects, clock: clock, dir: dir,
		service: &node.Service{
			NodeName: "n1", NodeUID: func(context.Context) (string, error) { return uid, nil }, Initiator: host, Mapper: devices, Filesystems: fs,
			Mirrors:   &md.Host{Root: "/", Exec: exec.New(), OpenDirect: kernel.OpenDirect, LoadModule: fs.LoadModule},
			Processes: &filesystem.Processes{Proc: "/proc", Self: os.Getpid()},
			Records:   filepath.Join(dir, "staged"), Clock: clock, Volumes: objects,
		},
	}
}

// port of the target.
type port struct {
	*lab
	dir    string
	portal v1alpha1.Portal
}

func (l *lab) port(number int32, transport v1alpha1.TransportType) *port {
	l.Helper()
	address := "127.0.0.1"
	if transport == v1alpha1.TransportRDMA {
		address = l.rdmaAddress()
		must(l, l.service.Filesystems.(*filesystem.Host).LoadModule(l.Context(), "nvmet_rdma"))
	}
	p := &port{lab: l, dir: filepath.Join(nvmet, "ports", strconv.Itoa(int(number))), portal: v1alpha1.Portal{Transport: transport, Address: address, Port: number}}
	must(l, os.Mkdir(p.dir, 0o755))
	l.Cleanup(func() { must(l, os.Remove(p.dir)) })
	l.write(p.dir+"/addr_trtype", map[v1alpha1.TransportType]string{v1alpha1.TransportTCP: "tcp", v1alpha1.TransportRDMA: "rdma"}[transport])
	l.write(p.dir+"/addr_adrfam", "ipv4")
	l.write(p.dir+"/addr_traddr", address)
	l.write(p.dir+"/addr_trsvcid", strconv.Itoa(int(number)))
	return p
}

// rdmaAddress is an address of the network device below the first RDMA device.
func (l *lab) rdmaAddress() string {
	parents, err := filepath.Glob("/sys/class/infiniband/*/parent")
	if err != nil || len(parents) == 0 {
		l.Fatalf("no soft RDMA device (rdma link add rxe0 type rxe netdev eth0): %v", err)
	}
	name, err := os.ReadFile(parents[0])
	must(l, err)
	device, err := net.InterfaceByName(string(name[:len(name)-1]))
	must(l, err)
	addresses, err := device.Addrs()
	must(l, err)
	for _, a := range addresses {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.To4() != nil {
			return ip.IP.String()
		}
	}
	l.Fatalf("%s has no IPv4 address", device.Name)
	return ""
}

// open makes a port serve a volume; the first opens its listener.
func (p *port) open(v *volume) {
	p.Helper()
	p.write(v.subsystem+"/attr_cntlid_min", strconv.Itoa(1+rand.IntN(1<<14))) // as the engine does; see moveIDs there
	must(p, os.Symlink(v.subsystem, filepath.Join(p.dir, "subsystems", filepath.Base(v.subsystem))))
}

// close makes a port not serve a volume any more; the last closes its listener.
func (p *port) close(v *volume) {
	p.Helper()
	err := os.Remove(filepath.Join(p.dir, "subsystems", filepath.Base(v.subsystem)))
	if !errors.Is(err, os.ErrNotExist) {
		must(p, err)
	}
}

func (p *port) serves(v *volume) bool {
	p.Helper()
	_, err := os.Lstat(filepath.Join(p.dir, "subsystems", filepath.Base(v.subsystem)))
	if !errors.Is(err, os.ErrNotExist) {
		must(p, err)
	}
	return err == nil
}

// volume that the target serves from a file, and what the CSI controller would say of it.
type volume struct {
	*lab
	id        string
	file      string
	subsystem string
	context   nodetest.Attached
	secrets   map[string]string
}

// volume makes one with so many bytes of data, for the ports given. This host is admitted.
func (l *lab) volume(id string, sizeBytes int64, nguid string, ports ...*port) *volume {
	l.Helper()
	return l.volumeIn(l.dir, id, sizeBytes, nguid, ports...)
}

// volumeIn makes one with its file in a folder.
func (l *lab) volumeIn(dir, id string, sizeBytes int64, nguid string, ports ...*port) *volume {
	l.Helper()
	v := &volume{lab: l, id: id, file: filepath.Join(dir, id+".img"), context: nodetest.New(id, nguid)}
	v.context.NodeUID, v.context.SizeBytes = uid, sizeBytes
	l.objects[id] = &v.context
	must(l, os.WriteFile(v.file, nil, 0o600))
	must(l, os.Truncate(v.file, v1alpha1.WithOverhead(sizeBytes)))
	v.attach(attachment, ports...)
	return v
}

// attach the volume to this host, through a subsystem of its own for the attachment and the ports given.
func (v *volume) attach(attachment string, ports ...*port) {
	v.Helper()
	v.context.Attach(attachment)
	v.subsystem = filepath.Join(nvmet, "subsystems", v.context.NQN)
	served := *v
	namespace := v.subsystem + "/namespaces/1"
	must(v, os.Mkdir(v.subsystem, 0o755))
	must(v, os.Mkdir(namespace, 0o755))
	v.Cleanup(func() {
		for _, p := range ports {
			p.close(&served)
		}
		served.refuse()
		must(v, os.Remove(namespace))
		must(v, os.Remove(served.subsystem))
	})
	nguid := v.context.NGUID
	uuid := nguid[:8] + "-" + nguid[8:12] + "-" + nguid[12:16] + "-" + nguid[16:20] + "-" + nguid[20:]
	v.write(namespace+"/device_uuid", uuid)
	v.write(namespace+"/device_nguid", uuid)
	v.write(namespace+"/device_path", v.file)
	v.write(namespace+"/enable", "1")
	v.admit()
	v.context.Portals = nil
	for _, p := range ports {
		p.open(v)
		v.context.Portals = append(v.context.Portals, p.portal)
	}
}

func (v *volume) admit() {
	v.Helper()
	host := filepath.Join(nvmet, "hosts", v.context.HostNQN())
	if err := os.Mkdir(host, 0o755); !errors.Is(err, os.ErrExist) {
		must(v, err)
	}
	must(v, os.Symlink(host, v.allowed()))
}

func (v *volume) refuse() {
	v.Helper()
	if err := os.Remove(v.allowed()); !errors.Is(err, os.ErrNotExist) {
		must(v, err)
	}
}

// retire the attachment as the engine does when it dismisses the hosts of a volume; see retire in
// dataplane/engine/nvmet. Nothing of this host is in flight afterwards, and it is refused without "do not retry".
func (v *volume) retire() {
	v.Helper()
	v.write(v.subsystem+"/attr_qid_max", "128")
	v.write(filepath.Join(nvmet, "hosts", v.context.HostNQN(), "dhchap_key"), unknownKey)
	v.write(v.subsystem+"/attr_qid_max", "128")
	v.write(v.subsystem+"/namespaces/1/enable", "0")
}

// unknownKey is one that no host has.
var unknownKey = "DHHC-1:00:" + strings.Repeat("A", 48) + ":"

func (v *volume) allowed() string {
	return filepath.Join(v.subsystem, "allowed_hosts", v.context.HostNQN())
}

// grow does what the engine does: the file, then a word to the hosts.
func (v *volume) grow(sizeBytes int64) {
	v.Helper()
	must(v, os.Truncate(v.file, v1alpha1.WithOverhead(sizeBytes)))
	v.write(v.subsystem+"/namespaces/1/revalidate_size", "1")
}

// counted by metrics of all volumes: the sum of the series of a metric that have a label.
func (l *lab) counted(metric, label string) float64 {
	l.Helper()
	sum := 0.0
	for series, value := range scrape(l, node.NewMetrics(l.service, logr.Discard()), metric+"{") {
		if strings.Contains(series, label) {
			sum += value
		}
	}
	return sum
}

// countReconnects until the test ends.
func (l *lab) countReconnects() {
	l.Helper()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- l.initiator.CountReconnects(ctx) }()
	l.Cleanup(func() { stop(); must(l, <-ended) })
	l.Eventually(func() bool { _, counting := l.initiator.Reconnects(""); return counting }).Should(BeTrue())
}

func (l *lab) write(path, text string) {
	l.Helper()
	must(l, os.WriteFile(path, []byte(text), 0))
}

func (v *volume) path(name string) string { return filepath.Join(v.dir, v.id, name) }

func (v *volume) timeout() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), labTimeout)
	v.Cleanup(cancel)
	return ctx
}

func (v *volume) stage(c *csi.VolumeCapability) error { return v.stageWithin(labTimeout, c) }

func (v *volume) stageWithin(limit time.Duration, c *csi.VolumeCapability) error {
	must(v, os.MkdirAll(v.path("staging"), 0o750))
	ctx, cancel := context.WithTimeout(v.timeout(), limit)
	defer cancel()
	_, err := v.service.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
		VolumeId: v.id, StagingTargetPath: v.path("staging"), VolumeCapability: c, PublishContext: v.context.Encode(), Secrets: v.secrets,
	})
	return err
}

func (v *volume) publish(c *csi.VolumeCapability) error {
	_, err := v.service.NodePublishVolume(v.timeout(), &csi.NodePublishVolumeRequest{
		VolumeId: v.id, StagingTargetPath: v.path("staging"), TargetPath: v.path("pod"), VolumeCapability: c, PublishContext: v.context.Encode(),
	})
	return err
}

func (v *volume) unpublish() error {
	_, err := v.service.NodeUnpublishVolume(v.timeout(), &csi.NodeUnpublishVolumeRequest{VolumeId: v.id, TargetPath: v.path("pod")})
	return err
}

func (v *volume) unstage() error {
	_, err := v.service.NodeUnstageVolume(v.timeout(), &csi.NodeUnstageVolumeRequest{VolumeId: v.id, StagingTargetPath: v.path("staging")})
	return err
}

// up stages and publishes, and takes both back when the test ends.
func (v *volume) up(c *csi.VolumeCapability) {
	v.Helper()
	v.Cleanup(v.down)
	must(v, v.stage(c))
	must(v, v.publish(c))
}

func (v *volume) down() {
	v.Helper()
	must(v, v.unpublish())
	must(v, v.unstage())
	v.gone()
}

// comesBackWith what was written to a file, when the volume is attached anew.
func (v *volume) comesBackWith(file string, data []byte) {
	v.Helper()
	v.context.Blank = false
	v.up(mountCapability("ext4"))
	got, err := os.ReadFile(v.path(file))
	must(v, err)
	if !bytes.Equal(got, data) {
		v.Errorf("%s has other data than was written: %d bytes, not %d", file, len(got), len(data))
	}
}

// gone fails when anything of the volume is left on the host.
func (v *volume) gone() {
	v.Helper()
	controllers, err := v.initiator.Controllers(v.context.NQN)
	v.Expect(err).NotTo(HaveOccurred())
	v.Expect(controllers).To(BeEmpty())
	_, err = v.initiator.FindNamespace(fabrics.ID{NQN: v.context.NQN, NGUID: v.context.NGUID})
	v.Expect(err).To(MatchError(fabrics.ErrNotFound))
	v.Expect(v.service.Mapper.Of(v.context.UUID)).To(BeEmpty())
}

// head gives the first bytes of data that the target holds.
func (v *volume) head(n int) string {
	v.Helper()
	return bytesAt(v, v.file, v1alpha1.HeaderBytes, n)
}

// start gives the first bytes of a file or a device.
func start(t testing.TB, path string, n int) string {
	t.Helper()
	return bytesAt(t, path, 0, n)
}

func bytesAt(t testing.TB, path string, offset int64, n int) string {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	data := make([]byte, n)
	_, err = io.ReadFull(io.NewSectionReader(f, offset, int64(n)), data)
	must(t, errors.Join(err, f.Close()))
	return string(data)
}

// putData where the target has the volume's, as another host may have.
func (v *volume) putData(text string) {
	v.Helper()
	v.putAt(v1alpha1.HeaderBytes, []byte(text))
}

// begun is a volume whose formatting was cut off, by its header.
func (v *volume) begun(fsType string) {
	v.Helper()
	offset, slot, err := header.Header{}.Next(header.Record{Volume: v.context.UUID, State: header.Formatting, Type: fsType})
	must(v, err)
	v.putAt(offset, slot)
}

func (v *volume) putAt(offset int64, data []byte) {
	v.Helper()
	f, err := os.OpenFile(v.file, os.O_WRONLY, 0)
	must(v, err)
	_, err = f.WriteAt(data, offset)
	must(v, errors.Join(err, f.Sync(), f.Close()))
}

// device that pods see of the volume.
func (v *volume) device() mapper.Device {
	v.Helper()
	ns, err := v.initiator.FindNamespace(fabrics.ID{NQN: v.context.NQN, NGUID: v.context.NGUID})
	must(v, err)
	devices, err := v.service.Mapper.Over(ns.Name)
	must(v, err)
	v.Expect(devices).To(HaveLen(1))
	return devices[0]
}

// paths gives the states of the volume's controllers.
func (v *volume) paths() []string {
	controllers, err := v.initiator.Controllers(v.context.NQN)
	v.Expect(err).NotTo(HaveOccurred())
	states := make([]string, len(controllers))
	for i, c := range controllers {
		states[i] = c.State
	}
	return states
}

// put writes a file and waits until it is on the device.
func put(path, text string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Sync(), f.Close())
}

// guid makes the NGUID of the nth volume.
func guid(n int) string { return fmt.Sprintf("0a0b0c0d0e0f4001820304050607%04x", n) }
