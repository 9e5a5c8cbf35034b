// SPDX-License-Identifier: Apache-2.0

//go:build lab

package node_test

import (
	"errors"
	"os"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
	"github.com/weft-storage/weft/csi-driver/node/nodetest"
)

// The kernel sends the I/O of a path that is lost through the other. Which of them it prefers is its own choice, so
// each is lost once.
func TestLabWriterSurvivesTheLossOfEitherPath(t *testing.T) {
	for _, second := range []v1alpha1.TransportType{v1alpha1.TransportTCP, v1alpha1.TransportRDMA} {
		t.Run("TCP and "+string(second), func(t *testing.T) {
			l := setUpLab(t)
			ports := []*port{l.port(4420, v1alpha1.TransportTCP), l.port(4421, second)}
			v := l.volume("lab-multipath", labSize, guid(1), ports...)
			v.up(mountCapability("ext4"))
			l.Expect(v.paths()).To(Equal([]string{"live", "live"}))
			l.Expect(v.health()).To(BeEmpty())
			w := v.startWriter("pod/written")
			for _, p := range ports {
				w.goesOn()
				p.close(v)
				l.Eventually(v.paths).Should(ConsistOf("live", "connecting"))
				w.goesOn()
				l.Expect(v.health()).To(ConsistOf(HavePrefix("DEGRADED PathLost: ")))
				p.open(v)
				l.Eventually(v.paths).Should(Equal([]string{"live", "live"}))
				l.Expect(v.health()).To(BeEmpty())
			}
			w.goesOn()
			w.end()
		})
	}
}

func TestLabMissingPathIsConnectedLater(t *testing.T) {
	l := setUpLab(t)
	first, second := l.port(4420, v1alpha1.TransportTCP), l.port(4421, v1alpha1.TransportTCP)
	v := l.volume("lab-late", labSize, guid(1), first, second)
	second.close(v)
	v.up(mountCapability("ext4"))
	l.Expect(v.paths()).To(Equal([]string{"live"}))
	l.Expect(v.health()).To(ConsistOf(ContainSubstring("none to TCP 127.0.0.1 port 4421")))
	must(t, l.service.MendPaths(v.timeout()))
	l.Expect(v.paths()).To(Equal([]string{"live"}))
	second.open(v)
	must(t, l.service.MendPaths(v.timeout()))
	l.Expect(v.paths()).To(Equal([]string{"live", "live"}))
	l.Expect(v.health()).To(BeEmpty())
}

// A storage node gets another address while a pod writes, then one more portal: the kernel's writes go on through the
// new paths, and nothing is left that leads to the former.
func TestLabPathsFollowThePortals(t *testing.T) {
	l := setUpLab(t)
	former, now, more := l.port(4420, v1alpha1.TransportTCP), l.port(4421, v1alpha1.TransportTCP), l.port(4422, v1alpha1.TransportTCP)
	v := l.volume("lab-moved", labSize, guid(1), former)
	t.Cleanup(func() {
		now.close(v)
		more.close(v)
	})
	v.up(mountCapability("ext4"))
	w := v.startWriter("pod/written")
	w.goesOn()
	former.close(v)
	l.Eventually(v.paths).Should(Equal([]string{"connecting"}))
	now.open(v)
	must(t, l.service.MendPaths(v.timeout()))
	l.Expect(v.paths()).To(Equal([]string{"connecting"}))

	v.context.Portals = []v1alpha1.Portal{now.portal}
	l.Eventually(func(g Gomega) { // the former one goes once the kernel has found the namespace through the other one
		g.Expect(l.service.MendPaths(v.timeout())).To(Succeed())
		g.Expect(v.paths()).To(Equal([]string{"live"}))
	}).Should(Succeed())
	w.goesOn()
	l.Expect(v.health()).To(BeEmpty())

	more.open(v)
	v.context.Portals = []v1alpha1.Portal{now.portal, more.portal}
	l.clock.Step(time.Hour)
	must(t, l.service.MendPaths(v.timeout()))
	l.Expect(v.paths()).To(Equal([]string{"live", "live"}))
	now.close(v)
	l.Eventually(v.paths).Should(ConsistOf("live", "connecting"))
	w.goesOn()
	w.end()
}

// No RDMA device of this machine leads to the address of one portal: the volume is used over TCP, as on a node without
// any.
func TestLabVolumeOverBothTransportsWithoutRDMA(t *testing.T) {
	l := setUpLab(t)
	v := l.volume("lab-no-rdma", labSize, guid(1), l.port(4420, v1alpha1.TransportTCP))
	none := v1alpha1.Portal{Transport: v1alpha1.TransportRDMA, Address: "127.0.0.1", Port: 4421}
	v.context.Portals = append([]v1alpha1.Portal{none}, v.context.Portals...)
	v.up(mountCapability("ext4"))
	for range 2 {
		l.Expect(v.paths()).To(Equal([]string{"live"}))
		l.Expect(v.health()).To(ConsistOf(And(HavePrefix("DEGRADED PathLost: "), ContainSubstring("none to RDMA 127.0.0.1 port 4421"))))
		must(t, l.service.MendPaths(v.timeout()))
	}
	err := l.initiator.Connect(v.timeout(), fabrics.Connection{NQN: v.context.NQN, HostNQN: v.context.HostNQN(), Portals: []v1alpha1.Portal{none}, Connection: v1alpha1.Connection{CtrlLossTimeoutSeconds: -1}})
	l.Expect(err).To(Or(MatchError(fabrics.ErrUnreachable), MatchError(fabrics.ErrUnsupported)))
	t.Log(err)
}

// The kernel's own ways to make a filesystem fail.
func TestLabConditionOfAFilesystemThatFailed(t *testing.T) {
	for fsType, c := range map[string]struct {
		fail func(v *volume) error
		want string
	}{
		"ext4": {func(v *volume) error {
			return os.WriteFile("/sys/fs/ext4/"+v.device().Name+"/trigger_fs_error", []byte("1"), 0)
		}, "INACCESSIBLE FilesystemReadOnly: "},
		"xfs": {func(v *volume) error {
			return exec.CommandContext(v.Context(), "xfs_io", "-x", "-c", "shutdown", v.path("pod")).Run()
		}, "INACCESSIBLE FilesystemFailed: "},
	} {
		t.Run(fsType, func(t *testing.T) {
			l := setUpLab(t)
			v := l.volume("lab-failed", labSize, guid(1), l.port(4420, v1alpha1.TransportTCP))
			v.up(mountCapability(fsType))
			l.Expect(v.health()).To(BeEmpty())
			must(t, c.fail(v))
			l.Expect(v.health()).To(ConsistOf(HavePrefix(c.want)))
			l.Expect(put(v.path("pod/file"), "hello")).NotTo(Succeed())
		})
	}
}

// While the target is away, nothing that asks about a volume waits for it.
func TestLabStatsWhileTheTargetIsAway(t *testing.T) {
	l := setUpLab(t)
	p := l.port(4420, v1alpha1.TransportTCP)
	v := l.volume("lab-stats", labSize, guid(1), p)
	v.up(mountCapability("ext4"))
	p.close(v)
	l.Eventually(v.paths).Should(Equal([]string{"connecting"}))
	stats, err := l.service.NodeGetVolumeStats(v.timeout(), &csi.NodeGetVolumeStatsRequest{VolumeId: v.id, VolumePath: v.path("pod")})
	l.Expect(err).NotTo(HaveOccurred())
	abnormal, message, err := nodetest.Condition(stats)
	l.Expect(err).NotTo(HaveOccurred())
	l.Expect(abnormal).To(BeTrue())
	l.Expect(message).To(ContainSubstring("PathDown: no path to its target is live"))
	p.open(v)
	l.Eventually(v.paths).Should(Equal([]string{"live"}))
}

// health of the volume: each problem's kind, reason and message.
func (v *volume) health() []string {
	v.Helper()
	got, err := v.service.NodeGetVolumeHealth(v.timeout(), &csi.NodeGetVolumeHealthRequest{
		VolumeId: v.id, StagingTargetPath: v.path("staging"), VolumePublishPath: v.path("pod"),
	})
	must(v, err)
	var all []string
	for _, e := range got.GetVolumeHealth().GetHealthStatuses() {
		all = append(all, e.Status.String()+" "+e.Reason+": "+e.Message)
	}
	return all
}

// blockBytes that the writer writes at a time, and how many it goes through before it starts over.
const (
	blockBytes  = 4096
	writeBlocks = 256
)

// labWriter writes block after block, each on the device before the next.
type labWriter struct {
	*volume
	written atomic.Int64
	stop    chan struct{}
	ended   chan error
}

// startWriter on a new file.
func (v *volume) startWriter(name string) *labWriter {
	v.Helper()
	f, err := os.OpenFile(v.path(name), os.O_CREATE|os.O_WRONLY|os.O_SYNC, 0o600)
	must(v, err)
	w := &labWriter{volume: v, stop: make(chan struct{}), ended: make(chan error, 1)}
	go func() { w.ended <- errors.Join(w.run(f), f.Close()) }()
	return w
}

func (w *labWriter) run(f *os.File) error {
	block := make([]byte, blockBytes)
	for n := int64(0); ; n++ {
		select {
		case <-w.stop:
			return nil
		default:
		}
		if _, err := f.WriteAt(block, n%writeBlocks*blockBytes); err != nil {
			return err
		}
		w.written.Add(1)
	}
}

// goesOn waits until more was written since.
func (w *labWriter) goesOn() {
	w.Helper()
	const more = 20
	since := w.written.Load()
	w.Eventually(w.written.Load).Should(BeNumerically(">=", since+more))
	w.Expect(w.ended).NotTo(Receive())
}

// end stops it, and fails when a write had failed.
func (w *labWriter) end() {
	w.Helper()
	close(w.stop)
	w.Eventually(w.ended).Should(Receive(Succeed()))
}
