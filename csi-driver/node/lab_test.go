// SPDX-License-Identifier: Apache-2.0

//go:build lab

package node_test

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	. "github.com/onsi/gomega"
	"google.golang.org/grpc/codes"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
	"github.com/weft-storage/weft/csi-driver/node/internal/mapper"
	"github.com/weft-storage/weft/csi-driver/node/nodetest"
	"github.com/weft-storage/weft/internal/header"
)

// labSize is a little more than XFS takes at least.
const labSize = 320 << 20

func TestLabFilesystemVolumeKeepsItsData(t *testing.T) {
	for _, transport := range []v1alpha1.TransportType{v1alpha1.TransportTCP, v1alpha1.TransportRDMA} {
		for _, fsType := range []string{"ext4", "xfs"} {
			t.Run(string(transport)+"/"+fsType, func(t *testing.T) {
				l := setUpLab(t)
				v := l.volume("lab-fs", labSize, guid(1), l.port(4420, transport))
				c := mountCapability(fsType)
				v.up(c)
				must(t, v.stage(c))
				must(t, v.publish(c))
				l.Expect(v.paths()).To(Equal([]string{"live"}))
				must(t, put(v.path("pod/file"), "hello"))
				v.down()
				v.context.Blank = false
				v.up(c)
				l.Expect(os.ReadFile(v.path("pod/file"))).To(Equal([]byte("hello")))
			})
		}
	}
}

func TestLabBlockVolume(t *testing.T) {
	l := setUpLab(t)
	v := l.volume("lab-block", labSize, guid(1), l.port(4420, v1alpha1.TransportTCP))
	v.up(blockCapability())
	info, err := os.Stat(v.path("pod"))
	l.Expect(err).NotTo(HaveOccurred())
	l.Expect(info.Mode().Type()).To(Equal(os.ModeDevice))
	must(t, put(v.path("pod"), "hello"))
	// What is written is counted once, at the top and on the path. A flush is a write of no bytes at the top.
	const write, flush = `op="write"`, `op="flush"`
	bytes, pathBytes := l.counted("weft_volume_bytes_total", write), l.counted("weft_path_bytes_total", write)
	must(t, writeRegion(v.path("pod"), nodetest.RegionBytes, 'h'))
	l.Expect(l.counted("weft_volume_bytes_total", write) - bytes).To(BeEquivalentTo(nodetest.RegionBytes))
	l.Expect(l.counted("weft_path_bytes_total", write) - pathBytes).To(BeEquivalentTo(nodetest.RegionBytes))
	writes, flushes := l.counted("weft_volume_operations_total", write), l.counted("weft_path_operations_total", flush)
	must(t, put(v.path("pod"), "")) // nothing but a sync
	l.Expect(l.counted("weft_volume_operations_total", write) - writes).To(BeEquivalentTo(1))
	l.Expect(l.counted("weft_volume_bytes_total", write) - bytes).To(BeEquivalentTo(nodetest.RegionBytes))
	l.Expect(l.counted("weft_path_operations_total", flush) - flushes).To(BeEquivalentTo(1))
	l.Expect(l.counted("weft_path_operation_seconds_total", write)).To(BeNumerically(">", 0))
	v.down()
	l.Expect(v.head(5)).To(Equal("hello"))
}

// The kernel refuses what the device node's permissions allow.
func TestLabBlockVolumeReadOnly(t *testing.T) {
	l := setUpLab(t)
	v := l.volume("lab-readers", labSize, guid(1), l.port(4420, v1alpha1.TransportTCP), l.port(4421, v1alpha1.TransportTCP))
	v.up(blockCapability())
	must(t, put(v.path("pod"), "before"))
	v.down()
	for _, c := range readers() {
		v.up(c)
		l.Expect(put(v.path("pod"), "behind")).To(MatchError(os.ErrPermission))
		l.Expect(writeDirect(v.path("pod"), "behind")).To(MatchError(os.ErrPermission))
		l.Expect(readDirect(v.path("pod"))).To(HavePrefix("before"))
		// The flag outlives what the kernel does when it looks at the namespace again.
		v.grow(2 * labSize)
		_, err := l.initiator.WaitNamespace(v.timeout(), fabrics.ID{NQN: v.context.NQN, NGUID: v.context.NGUID}, v1alpha1.WithOverhead(2*labSize))
		must(t, err)
		l.Expect(put(v.path("pod"), "behind")).To(MatchError(os.ErrPermission))
		v.down()
	}
	l.Expect(v.head(6)).To(Equal("before"))
	v.up(blockCapability())
	must(t, put(v.path("pod"), "behind"))
	v.down()
	l.Expect(v.head(6)).To(Equal("behind"))
}

func TestLabSeveralPortals(t *testing.T) {
	l := setUpLab(t)
	v := l.volume("lab-paths", labSize, guid(1), l.port(4420, v1alpha1.TransportTCP), l.port(4421, v1alpha1.TransportTCP), l.port(4422, v1alpha1.TransportRDMA))
	v.up(mountCapability("ext4"))
	l.Expect(v.paths()).To(Equal([]string{"live", "live", "live"}))
	must(t, put(v.path("pod/file"), "hello"))
}

func TestLabTwoVolumes(t *testing.T) {
	l := setUpLab(t)
	p := l.port(4420, v1alpha1.TransportTCP)
	a, b := l.volume("lab-a", labSize, guid(1), p), l.volume("lab-b", labSize, guid(2), p)
	results := make(chan error)
	for _, v := range []*volume{a, b} {
		go func() { results <- v.stage(mountCapability("ext4")) }()
	}
	must(t, <-results)
	must(t, <-results)
	b.up(mountCapability("ext4"))
	must(t, put(b.path("pod/file"), "hello"))
	a.down()
	must(t, put(b.path("pod/file"), "still here"))
}

func TestLabIdentityAndSizeAreChecked(t *testing.T) {
	l := setUpLab(t)
	v := l.volume("lab-other", labSize, guid(1), l.port(4420, v1alpha1.TransportTCP))
	v.context.NGUID = guid(2)
	want(t, v.stageWithin(5*time.Second, mountCapability("ext4")), codes.DeadlineExceeded, "serves other namespaces: "+guid(1))
	v.context.NGUID, v.context.SizeBytes = guid(1), 2*labSize
	want(t, v.stageWithin(5*time.Second, mountCapability("ext4")), codes.DeadlineExceeded, "were expected")
	v.down()
}

func TestLabFormatFence(t *testing.T) {
	l := setUpLab(t)
	v := l.volume("lab-fence", labSize, guid(1), l.port(4420, v1alpha1.TransportTCP))
	v.putData("somebody's data")
	for _, v.context.Blank = range []bool{true, false} {
		want(t, v.stage(mountCapability("xfs")), codes.FailedPrecondition, "weft.storage/allow-format")
		v.gone()
	}
	l.Expect(v.head(15)).To(Equal("somebody's data"))
	l.Expect(start(t, v.file, header.Bytes)).To(Equal(string(make([]byte, header.Bytes))))
	v.context.AllowFormat = true
	v.up(mountCapability("xfs"))
	v.down()
	want(t, v.stage(mountCapability("ext4")), codes.FailedPrecondition, "holds xfs")
	v.gone()
	h, err := header.Parse([]byte(start(t, v.file, header.Bytes)))
	l.Expect(err).NotTo(HaveOccurred())
	l.Expect(h.Record).To(Equal(header.Record{Volume: v.context.UUID, State: header.Formatted, Type: "xfs", FormatUsedBy: attachment}))
	// A volume that was never one of weft's.
	must(t, exec.CommandContext(t.Context(), "mkfs.xfs", "-q", "-f", v.file).Run())
	want(t, v.stage(mountCapability("xfs")), codes.FailedPrecondition, "starts with an XFS filesystem")
	v.gone()
}

// Another's signature at the start of a volume's data is not seen at the start of what the target serves.
func TestLabScannersSeeNothingOfTheData(t *testing.T) {
	l := setUpLab(t)
	v := l.volume("lab-hidden", labSize, guid(1), l.port(4420, v1alpha1.TransportTCP))
	v.up(mountCapability("xfs"))
	d := v.device()
	l.Expect(exec.CommandContext(t.Context(), "blkid", "--probe", d.Path).Run()).To(Succeed())
	err := exec.CommandContext(t.Context(), "blkid", "--probe", "/dev/"+d.Lower.Name).Run()
	var exit *exec.ExitError
	l.Expect(errors.As(err, &exit) && exit.ExitCode() == 2).To(BeTrue(), "%v", err)
}

func TestLabHostThatIsNotAdmitted(t *testing.T) {
	l := setUpLab(t)
	v := l.volume("lab-refused", labSize, guid(1), l.port(4420, v1alpha1.TransportTCP))
	v.refuse()
	want(t, v.stage(blockCapability()), codes.PermissionDenied, "does not admit this host", "is not allowed, hostnqn: "+v.context.HostNQN())
	v.gone()
}

func TestLabNothingListens(t *testing.T) {
	l := setUpLab(t)
	for _, transport := range []v1alpha1.TransportType{v1alpha1.TransportTCP, v1alpha1.TransportRDMA} {
		p := l.port(4419+int32(len(transport)), transport)
		v := l.volume("lab-silent-"+string(transport), labSize, guid(1), p)
		p.close(v)
		want(t, v.stage(blockCapability()), codes.Unavailable, "nothing listens on the port")
		v.gone()
	}
}

// The target's node restarts: its port closes, and opens again with everything behind it.
func TestLabWritesWaitForTheTargetAndGoOn(t *testing.T) {
	l := setUpLab(t)
	p := l.port(4420, v1alpha1.TransportTCP)
	v := l.volume("lab-restart", labSize, guid(1), p)
	l.countReconnects()
	v.up(mountCapability("ext4"))
	must(t, put(v.path("pod/before"), "hello"))
	p.close(v)
	l.Eventually(v.paths).Should(Equal([]string{"connecting"}))
	l.Expect(l.counted("weft_path_live", "")).To(BeZero())
	written := make(chan error, 1)
	go func() { written <- put(v.path("pod/during"), "patience") }()
	l.Consistently(written, "3s").ShouldNot(Receive())
	want(t, v.stageWithin(3*time.Second, mountCapability("ext4")), codes.DeadlineExceeded, "no path is live", "connecting")
	p.open(v)
	l.Eventually(written).Should(Receive(Succeed()))
	l.Eventually(func() float64 { return l.counted("weft_path_reconnects_total", "") }).Should(BeEquivalentTo(1))
	l.Expect(l.counted("weft_path_live", "")).To(BeEquivalentTo(1))
	must(t, v.stage(mountCapability("ext4")))
	l.Expect(os.ReadFile(v.path("pod/before"))).To(Equal([]byte("hello")))
}

// A node that is cut off with a write on its way, and comes back when its volume has been taken from it.
func TestLabWriteOfAHostThatIsNoLongerAdmitted(t *testing.T) {
	l := setUpLab(t)
	p := l.port(4420, v1alpha1.TransportTCP)
	v := l.volume("lab-dismissed", labSize, guid(1), p)
	v.up(blockCapability())
	must(t, put(v.path("pod"), "before"))
	p.close(v)
	l.Eventually(v.paths).Should(Equal([]string{"connecting"}))
	written := make(chan error, 1)
	go func() { written <- put(v.path("pod"), "behind") }()
	l.Consistently(written, "3s").ShouldNot(Receive())
	v.refuse()
	p.open(v)
	l.Eventually(written).Should(Receive(MatchError(syscall.EIO)))
	l.Expect(v.head(6)).To(Equal("before"))
	l.Eventually(v.paths).Should(BeEmpty())
}

// A node that is cut off with a write on its way; meanwhile its volume is taken from it, and written elsewhere. It
// comes back, and gets the volume again, with its kernel trying still to deliver that write: which must not arrive,
// neither at once nor when the target admits the former attachment by mistake.
func TestLabWriteOfAnEarlierAttachment(t *testing.T) {
	for name, c := range capabilities() {
		t.Run(name, func(t *testing.T) {
			l := setUpLab(t)
			before := l.port(4420, v1alpha1.TransportTCP)
			v := l.volume("lab-earlier", labSize, guid(1), before)
			v.up(c)
			file := v.path("pod")
			if c.GetMount() != nil {
				file = filepath.Join(file, "file")
			}
			must(t, put(file, "before"))
			former := *v
			before.close(v)
			l.Eventually(v.paths).Should(Equal([]string{"connecting"}))
			written := make(chan error, 1)
			go func() { written <- put(file, "behind") }()
			l.Consistently(written, "3s").ShouldNot(Receive())

			v.context.Blank = false
			v.attach("b2b2b2b2-2222-4333-8444-555555555555", l.port(4421, v1alpha1.TransportTCP))
			must(t, v.stage(c))
			l.Eventually(written).Should(Receive(MatchError(syscall.EIO)))
			before.open(&former)
			must(t, v.unpublish())
			must(t, v.publish(c))
			l.Expect(v.paths()).To(Equal([]string{"live"}))
			left, err := l.initiator.Controllers(former.context.NQN)
			must(t, err)
			l.Expect(left).To(BeEmpty())
			l.Expect(start(t, file, 6)).To(Equal("before"))
			must(t, put(file, "beyond"))
			l.Expect(start(t, file, 6)).To(Equal("beyond"))
			v.down()
		})
	}
}

func TestLabUnstageWhileTheTargetIsAway(t *testing.T) {
	l := setUpLab(t)
	p := l.port(4420, v1alpha1.TransportTCP)
	v := l.volume("lab-away", labSize, guid(1), p)
	v.up(blockCapability())
	p.close(v)
	l.Eventually(v.paths).Should(Equal([]string{"connecting"}))
	v.down()
}

// From Linux 6.10 on, a target that does not admit the host when it reconnects makes the kernel give the connection up.
func TestLabStageAgainAfterTheKernelGaveUp(t *testing.T) {
	for name, c := range capabilities() {
		t.Run(name, func(t *testing.T) {
			l := setUpLab(t)
			p := l.port(4420, v1alpha1.TransportTCP)
			v := l.volume("lab-dropped", labSize, guid(1), p)
			v.up(c)
			p.close(v)
			l.Eventually(v.paths).Should(Equal([]string{"connecting"}))
			v.refuse()
			p.open(v)
			l.Eventually(v.paths).Should(BeEmpty())
			v.admit()
			must(t, v.unpublish())
			must(t, v.publish(c)) // all that the kubelet asks for
			l.Expect(v.paths()).To(Equal([]string{"live"}))
			file := v.path("pod")
			if c.GetMount() != nil {
				file = filepath.Join(file, "file")
			}
			must(t, put(file, "again"))
		})
	}
}

func TestLabExpand(t *testing.T) {
	for _, fsType := range []string{"ext4", "xfs"} {
		t.Run(fsType, func(t *testing.T) {
			l := setUpLab(t)
			v := l.volume("lab-grow", labSize, guid(1), l.port(4420, v1alpha1.TransportTCP))
			v.up(mountCapability(fsType))
			v.grow(2 * labSize)
			got, err := l.service.NodeExpandVolume(v.timeout(), &csi.NodeExpandVolumeRequest{
				VolumeId: v.id, VolumePath: v.path("pod"), StagingTargetPath: v.path("staging"),
				CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * labSize},
			})
			l.Expect(err).NotTo(HaveOccurred())
			l.Expect(got.GetCapacityBytes()).To(BeEquivalentTo(2 * labSize))
			stats, err := l.service.NodeGetVolumeStats(v.timeout(), &csi.NodeGetVolumeStatsRequest{VolumeId: v.id, VolumePath: v.path("pod")})
			l.Expect(err).NotTo(HaveOccurred())
			l.Expect(stats.GetUsage()[0].GetTotal()).To(BeNumerically(">", labSize))
		})
	}
}

// A clone has its source's filesystem, UUID and all.
func TestLabXFSBesideItsClone(t *testing.T) {
	l := setUpLab(t)
	p := l.port(4420, v1alpha1.TransportTCP)
	source := l.volume("lab-source", labSize, guid(1), p)
	c := mountCapability("xfs")
	source.up(c)
	must(t, put(source.path("pod/file"), "hello"))
	source.down()
	clone := l.volume("lab-clone", labSize, guid(2), p)
	must(t, exec.CommandContext(t.Context(), "cp", "--sparse=always", source.file, clone.file).Run())
	clone.context.Source = &v1alpha1.VolumeSource{Volume: source.id}
	clone.context.Blank, source.context.Blank = false, false
	source.up(c)
	clone.up(c)
	l.Expect(os.ReadFile(clone.path("pod/file"))).To(Equal([]byte("hello")))
}

// What staging a filesystem builds on: while a device is open, the kernel gives its name and its number to no other
// volume.
func TestLabNamesAreKeptWhileADeviceIsOpen(t *testing.T) {
	l := setUpLab(t)
	p := l.port(4420, v1alpha1.TransportTCP)
	a, b := l.volume("lab-a", labSize, guid(1), p), l.volume("lab-b", labSize, guid(2), p)
	connect := func(v *volume) fabrics.Namespace {
		t.Helper()
		c := v.context
		must(t, l.initiator.Connect(v.timeout(), fabrics.Connection{
			NQN: c.NQN, HostNQN: c.HostNQN(), Portals: c.Portals, Connection: c.Connection,
		}))
		ns, err := l.initiator.WaitNamespace(v.timeout(), fabrics.ID{NQN: c.NQN, NGUID: c.NGUID}, v1alpha1.WithOverhead(c.SizeBytes))
		must(t, err)
		return ns
	}
	disconnect := func(ns fabrics.Namespace) { must(t, l.initiator.Disconnect(a.timeout(), ns.ID)) }

	lost := connect(a)
	device, err := l.initiator.Open(lost)
	must(t, err)
	disconnect(lost)
	other := connect(b)
	if other.Name == lost.Name || other.Device == lost.Device {
		t.Errorf("%+v was given to %+v while it was open", lost, other)
	}
	_, err = l.initiator.Open(lost)
	l.Expect(err).To(MatchError(fabrics.ErrNotFound))
	must(t, device.Close())

	// Both come back the other way round.
	disconnect(other)
	other = connect(b)
	found := connect(a)
	t.Logf("%s was %s (%s) and is %s (%s); %s is %s (%s)", a.id, lost.Name, lost.Device, found.Name, found.Device, b.id, other.Name, other.Device)
	if other.Name == lost.Name || found.Device != lost.Device {
		_, err = l.initiator.Open(lost)
		l.Expect(err).To(MatchError(fabrics.ErrNotFound))
	}
	disconnect(found)
	disconnect(other)
}

// What mkfs.xfs leaves when it is cut off is recognised, and formatted again where the volume's header says that this
// was begun, or an administrator says so.
func TestLabFormattingThatWasCutOff(t *testing.T) {
	for name, begun := range map[string]bool{"begun": true, "without a header": false} {
		t.Run(name, func(t *testing.T) {
			l := setUpLab(t)
			v := l.volume("lab-cut", labSize, guid(1), l.port(4420, v1alpha1.TransportTCP))
			v.putData(unfinishedXFS(t))
			if begun {
				v.begun("xfs")
			} else {
				want(t, v.stage(mountCapability("xfs")), codes.FailedPrecondition, "contains data", "weft.storage/allow-format")
				v.gone()
				v.context.AllowFormat = true
			}
			v.up(mountCapability("xfs"))
			must(t, put(v.path("pod/file"), "hello"))
		})
	}
}

// unfinishedXFS is how the filesystem begins that mkfs.xfs was making when it was cut off.
func unfinishedXFS(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "xfs")
	must(t, os.WriteFile(file, nil, 0o600))
	must(t, os.Truncate(file, labSize))
	must(t, exec.CommandContext(t.Context(), "mkfs.xfs", "-q", file).Run())
	superblock := []byte(start(t, file, 512))
	superblock[126] = 1        // sb_inprogress
	crc := superblock[224:228] // sb_crc
	clear(crc)
	binary.LittleEndian.PutUint32(crc, crc32.Checksum(superblock, crc32.MakeTable(crc32.Castagnoli)))
	return string(superblock)
}

// A filesystem that is mounted still when its volume returns in another attachment gets errors, holds up nobody, and
// its device goes with it.
func TestLabDeviceOfAnEarlierAttachment(t *testing.T) {
	l := setUpLab(t)
	before := l.port(4420, v1alpha1.TransportTCP)
	v := l.volume("lab-stale", labSize, guid(1), before)
	v.up(mountCapability("ext4"))
	must(t, put(v.path("pod/file"), "hello"))
	former := v.device()
	before.close(v)
	l.Eventually(v.paths).Should(Equal([]string{"connecting"}))
	v.context.Blank = false
	v.attach("b2b2b2b2-2222-4333-8444-555555555555", l.port(4421, v1alpha1.TransportTCP))
	must(t, v.stage(mountCapability("ext4")))
	now := v.device()
	l.Expect(now.Label).To(Equal(former.Label))
	l.Expect(now.Number).NotTo(Equal(former.Number), "the pod has the former one still")
	l.Expect(put(v.path("pod/more"), "hello")).NotTo(Succeed())
	l.Expect(v.service.Mapper.Of(now.Volume)).To(HaveLen(2))
	must(t, v.unpublish())
	l.Eventually(func() ([]mapper.Device, error) { return v.service.Mapper.Of(now.Volume) }).Should(HaveLen(1))
	must(t, v.publish(mountCapability("ext4")))
	l.Expect(os.ReadFile(v.path("pod/file"))).To(Equal([]byte("hello")))
	v.down()
}

// Device mapper's files of a device that is being removed cannot be read any more, and are there still.
func TestLabDevicesAreListedWhileOneIsRemoved(t *testing.T) {
	l := setUpLab(t)
	ctx, cancel := context.WithCancel(t.Context())
	listed := make(chan error, 1)
	const volume = "11111111-2222-4333-8444-555555555555"
	control := mapper.Linux{}
	go func() {
		var err error
		for err == nil && ctx.Err() == nil {
			_, err = l.service.Mapper.Of(volume)
		}
		listed <- err
	}()
	for range 20 {
		const label = "weft-lab-removed"
		must(t, control.Create(label, "WEFT-"+volume+"-"+volume))
		must(t, control.Load(label, mapper.Table{SizeBytes: 4096}))
		must(t, control.Resume(label))
		must(t, control.Remove(label))
	}
	cancel()
	must(t, <-listed)
}
