// SPDX-License-Identifier: Apache-2.0

//go:build lab

package node_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	osexec "os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/google/uuid"
	. "github.com/onsi/gomega"
	"k8s.io/utils/exec"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
	"github.com/weft-storage/weft/csi-driver/node"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics/own"
	"github.com/weft-storage/weft/csi-driver/node/internal/filesystem"
	"github.com/weft-storage/weft/csi-driver/node/internal/mapper"
	"github.com/weft-storage/weft/csi-driver/node/internal/md"
	"github.com/weft-storage/weft/csi-driver/node/nodetest"
)

const (
	rigBytes = 32 << 20
	rigGrace = 3 * time.Second
	// settleWithin is how long all may take until both replicas are in sync once nothing disturbs them.
	settleWithin = 4 * time.Minute
)

var (
	errKilled = errors.New("the node plugin was killed")
	errAway   = errors.New("the API server is away")
	errDeaf   = errors.New("the API server's answer was lost")
)

// gate is what a node plugin passes with each call of the API and each change of the kernel, until it is killed. What
// the kernel was asked before goes on, as with a process that is killed in a call.
type gate struct {
	passed atomic.Int64
	// last call that passes; 0 for no limit.
	last   atomic.Int64
	closed atomic.Bool
}

func (g *gate) pass() error {
	n := g.passed.Add(1)
	if last := g.last.Load(); last > 0 && n > last {
		g.closed.Store(true)
	}
	if g.closed.Load() {
		return errKilled
	}
	return nil
}

// through a gate.
type (
	gatedKernel struct {
		fabrics.Kernel
		gate *gate
	}
	gatedControl struct {
		mapper.Control
		gate *gate
	}
	gatedExec struct {
		exec.Interface
		gate *gate
	}
)

func (k gatedKernel) Create(options string) (string, error) {
	if err := k.gate.pass(); err != nil {
		return "", err
	}
	return k.Kernel.Create(options)
}

func (k gatedKernel) Delete(c *own.Controller) error {
	if err := k.gate.pass(); err != nil {
		return err
	}
	return k.Kernel.Delete(c)
}

func (k gatedKernel) OpenDirect(device string, write bool) (fabrics.DirectDevice, error) {
	if err := k.gate.pass(); err != nil {
		return nil, err
	}
	return k.Kernel.OpenDirect(device, write)
}

func (c gatedControl) Create(label, id string) error {
	return errors.Join(c.gate.pass(), c.unless(func() error { return c.Control.Create(label, id) }))
}

func (c gatedControl) Load(label string, t mapper.Table) error {
	return errors.Join(c.gate.pass(), c.unless(func() error { return c.Control.Load(label, t) }))
}

func (c gatedControl) Resume(label string) error {
	return errors.Join(c.gate.pass(), c.unless(func() error { return c.Control.Resume(label) }))
}

func (c gatedControl) Suspend(label string) error {
	return errors.Join(c.gate.pass(), c.unless(func() error { return c.Control.Suspend(label) }))
}

func (c gatedControl) Remove(label string) error {
	return errors.Join(c.gate.pass(), c.unless(func() error { return c.Control.Remove(label) }))
}

func (c gatedControl) RemoveLater(label string) error {
	return errors.Join(c.gate.pass(), c.unless(func() error { return c.Control.RemoveLater(label) }))
}

// unless the plugin was killed.
func (c gatedControl) unless(do func() error) error {
	if c.gate.closed.Load() {
		return nil
	}
	return do()
}

func (e gatedExec) CommandContext(ctx context.Context, command string, args ...string) exec.Cmd {
	if e.gate.pass() != nil {
		return e.Interface.CommandContext(ctx, "false")
	}
	return e.Interface.CommandContext(ctx, command, args...)
}

// rigLeg is a replica on a device that can hang, or answer errors.
type rigLeg struct {
	*labLeg
	image, loop, label string
	// former attachments, which the target refuses.
	former []volume
	// rotating is the host that is to be retired, and next the other one that is admitted beside or after it; empty
	// without one.
	rotating, next string
	// untold: since this host was admitted, the kernel may have dropped it by itself, because it answered errors or its
	// controllers were deleted. Writes may be acknowledged without it before that is recorded.
	untold atomic.Bool
	// read from its device when that was measured last.
	read int64
}

func (g *rigLeg) table(target string) {
	g.Helper()
	g.run("dmsetup", "load", g.label, "--table", fmt.Sprintf("0 %d %s", v1alpha1.WithOverhead(rigBytes)/512, target))
	g.run("dmsetup", "suspend", "--noflush", "--nolockfs", g.label)
	g.run("dmsetup", "resume", g.label)
}

// faults that a device can have: everything, only writes or only reads answer errors, or everything in every other
// second.
var faults = []string{"error", "flakey /dev/%s 0 0 3600 1 error_writes", "flakey /dev/%s 0 0 3600 1 error_reads", "flakey /dev/%s 0 1 1"}

// fail makes the device answer errors, and mend makes it work again.
func (g *rigLeg) fail(fault string) {
	g.Helper()
	g.untold.Store(true)
	g.table(strings.ReplaceAll(fault, "%s", g.loop))
}
func (g *rigLeg) mend() { g.Helper(); g.table("linear /dev/" + g.loop + " 0") }

// readBytes of the device so far.
func (g *rigLeg) readBytes() int64 {
	g.Helper()
	name := filepath.Base(g.run("readlink", "--canonicalize", "/dev/mapper/"+g.label))
	sectors, err := strconv.ParseInt(strings.Fields(sysfs(g, name, "stat"))[2], 10, 64)
	must(g, err)
	return sectors * 512
}

// freeze makes the device hang, until it thaws.
func (g *rigLeg) freeze() {
	g.Helper()
	g.run("dmsetup", "suspend", "--noflush", "--nolockfs", g.label)
}
func (g *rigLeg) thaw() { g.Helper(); g.run("dmsetup", "resume", g.label) }

// away: the target answers no more, and has nothing in flight; back lets it serve the same identity again.
func (g *rigLeg) away() {
	g.Helper()
	g.port.close(g.volume)
	for i := range g.former {
		g.port.close(&g.former[i])
	}
}

func (g *rigLeg) back() {
	g.Helper()
	g.refuseFormer()
	g.port.open(g.volume)
}

// dismiss this host. The target goes on listening, or begins to, for those that it refuses.
func (g *rigLeg) dismiss() {
	g.Helper()
	g.retire()
	if g.next != "" {
		g.write(filepath.Join(nvmet, "hosts", v1alpha1.HostNQN(g.next), "dhchap_key"), unknownKey)
	}
	g.rotating, g.next = "", ""
	g.former = append(g.former, *g.volume)
	g.refuseFormer()
}

func (g *rigLeg) refuseFormer() {
	g.Helper()
	for i := range g.former {
		if !g.port.serves(&g.former[i]) {
			g.port.open(&g.former[i])
		}
	}
}

// rig is a mirrored volume of this machine, its node plugin, its CSI controller and its targets.
type rig struct {
	*lab
	moving
	store   client.WithWatch
	apiAway atomic.Bool
	// deaf: the API server stores what it is sent, and its answers are lost.
	deaf       atomic.Bool
	attachment string
	legs       []*rigLeg
	made       int
	gate       *gate
	plugin     *node.Service
	kept       chan error
	end        context.CancelFunc
	staging    string
	begun      time.Time
	// everyLeg that there was, by its name.
	everyLeg sync.Map
	// settled is when everything was in sync last, and filled tells whether a replica was copied whole since.
	settled time.Time
	filled  bool
	*workload
}

func newRig(t *testing.T) *rig {
	l := setUpLab(t)
	l.SetDefaultEventuallyTimeout(settleWithin)
	r := &rig{lab: l, attachment: attachment, staging: filepath.Join(l.dir, "staging"), begun: time.Now(), settled: time.Now()}
	must(t, os.MkdirAll(r.staging, 0o750))
	r.legs = []*rigLeg{r.newLeg(), r.newLeg()}
	r.store = mirrorAPI(l, time.Now(), r.legs[0].context.Connection, rigBytes, r.legs[0].leg, r.legs[1].leg).(client.WithWatch)
	r.moving = moving{l, r.store, time.Now, r.changed}
	for _, g := range r.legs {
		r.admit(g, true)
	}
	must(t, l.service.Filesystems.(*filesystem.Host).LoadModule(t.Context(), "dm_flakey"))
	r.workload = newWorkload()
	r.start()
	return r
}

func (r *rig) newLeg() *rigLeg {
	r.lab.Helper()
	r.made++
	label := fmt.Sprintf("lab-leg%d", r.made)
	file := filepath.Join(r.dir, label+".img")
	must(r.lab, os.WriteFile(file, nil, 0o600))
	must(r.lab, os.Truncate(file, v1alpha1.WithOverhead(rigBytes)))
	g := &rigLeg{image: file, loop: r.loop(file), label: label}
	l := r.lab
	l.Cleanup(func() { l.run("losetup", "--detach", "/dev/"+g.loop) })
	l.run("dmsetup", "create", label, "--table", fmt.Sprintf("0 %d linear /dev/%s 0", v1alpha1.WithOverhead(rigBytes)/512, g.loop))
	l.Cleanup(func() { l.run("dmsetup", "remove", "--retry", label) })
	g.labLeg = l.legOn(r.made, "/dev/mapper/"+label)
	g.read = g.readBytes()
	r.everyLeg.Store(g.name, g)
	return g
}

// admit this host to a replica under a fresh identity. None of the former one's commands is in flight then.
func (r *rig) admit(g *rigLeg, blank bool) {
	r.lab.Helper()
	if g.identity != "" {
		g.dismiss()
	}
	g.identity = uuid.NewString()
	g.attach(g.identity, g.port)
	editReplica(r.lab, r.store, g.name, func(is *v1alpha1.NvmfReplica) {
		g.admitted(blank)(is)
		is.Spec.Hosts[0].Attachment = r.attachment
	})
}

// through the gate of a node plugin, unless the API server is away.
func (r *rig) through(g *gate) client.Client {
	pass := func() error {
		if r.apiAway.Load() {
			return errAway
		}
		return g.pass()
	}
	return interceptor.NewClient(r.store, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			if err := pass(); err != nil {
				return err
			}
			return c.Get(ctx, key, obj, opts...)
		},
		Update: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.UpdateOption) error {
			if err := pass(); err != nil {
				return err
			}
			err := c.Update(ctx, obj, opts...)
			if r.deaf.Load() {
				return errDeaf
			}
			return err
		},
	})
}

// start a node plugin, which knows what is on the machine's disk and in the kernel.
func (r *rig) start() {
	g := &gate{}
	fs := r.service.Filesystems
	load := r.mirrors().LoadModule
	kernel := gatedKernel{fabrics.LinuxKernel{}, g}
	config := r.initiator.Config
	config.Kernel, config.Clock = kernel, nil
	api := r.through(g)
	s := &node.Service{
		NodeName: "n1", NodeUID: r.service.NodeUID, Initiator: fabrics.New(config),
		Mapper:      &mapper.Host{Root: "/", Control: gatedControl{mapper.Linux{}, g}, LoadModule: load, OpenDevice: kernel.Open},
		Mirrors:     &md.Host{Root: "/", Exec: gatedExec{exec.New(), g}, OpenDirect: kernel.OpenDirect, LoadModule: load},
		Filesystems: fs, Processes: r.service.Processes, Records: r.service.Records,
		Volumes: api, MirrorRecords: api, MirrorGrace: rigGrace,
	}
	ctx, end := context.WithCancel(r.logged(context.Background()))
	ended := make(chan error, 1)
	must(r.lab, s.TakeUpMirrors(ctx))
	go func() { ended <- s.KeepMirrors(ctx) }()
	r.gate, r.plugin, r.end, r.kept = g, s, end, ended
}

// kill the node plugin.
func (r *rig) kill() {
	r.lab.Helper()
	r.gate.closed.Store(true)
	r.end()
	if err := <-r.kept; err != nil && !errors.Is(err, errKilled) && !errors.Is(err, context.Canceled) {
		r.lab.Logf("the node plugin ended: %v", err)
	}
	r.plugin.LeaveMirrors()
}

// changed tells the node plugin, if there is one, what its watch would.
func (r *rig) changed(ctx context.Context, volume string) error {
	ctx, cancel := context.WithTimeout(ctx, labTimeout)
	defer cancel()
	if err := r.plugin.MirrorChanged(ctx, volume); err != nil {
		r.lab.Logf("the node plugin cannot follow yet: %v", err)
	}
	return nil
}

// logged by the test what a node plugin logs, with the time since the test began.
func (r *rig) logged(ctx context.Context) context.Context {
	return logr.NewContext(ctx, funcr.New(func(_, args string) {
		r.lab.Logf("%6.2f %s", time.Since(r.begun).Seconds(), args)
	}, funcr.Options{}))
}

func (r *rig) tryStage() error {
	ctx, cancel := context.WithTimeout(r.logged(context.Background()), labTimeout)
	defer cancel()
	_, err := r.plugin.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
		VolumeId: vol, StagingTargetPath: r.staging, VolumeCapability: blockCapability(), PublishContext: nodetest.Attached{Attachment: r.attachment}.Encode(),
	})
	return err
}

func (r *rig) tryUnstage() error {
	ctx, cancel := context.WithTimeout(r.logged(context.Background()), labTimeout)
	defer cancel()
	_, err := r.plugin.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: vol, StagingTargetPath: r.staging})
	return err
}

// stage and unstage as the kubelet does: until it succeeds.
func (r *rig) stage() {
	r.lab.Helper()
	r.Eventually(r.tryStage).Should(Succeed())
}

func (r *rig) unstage() {
	r.lab.Helper()
	r.Eventually(r.tryUnstage).Should(Succeed())
}

// top is the path of the volume's device.
func (r *rig) top() string {
	r.lab.Helper()
	all, err := r.service.Mapper.Of(volumeUUID)
	must(r.lab, err)
	i := slices.IndexFunc(all, func(d mapper.Device) bool { return d.Attachment == r.attachment && !d.Lost() })
	if i < 0 {
		r.lab.Fatalf("the volume has no device for %s: %+v", r.attachment, all)
	}
	return all[i].Path
}

// of a replica's name.
func (r *rig) leg(name string) *rigLeg {
	return r.legs[slices.IndexFunc(r.legs, func(g *rigLeg) bool { return g.name == name })]
}

// connected tells whether the kernel has controllers of a replica.
func (r *rig) connected(g *rigLeg) bool {
	r.lab.Helper()
	controllers, err := r.initiator.Controllers(g.nqn())
	must(r.lab, err)
	return len(controllers) > 0
}

// settle does what the CSI controller does, until all replicas are in sync, and the keeper has seen that nothing is
// disturbed any more: those that are out are admitted again.
func (r *rig) settle() {
	r.lab.Helper()
	begun := time.Now()
	deadline := begun.Add(settleWithin)
	for {
		r.readmit()
		r.filled = r.filled || slices.ContainsFunc(r.record().Members, func(m mirror.Member) bool { return m.State == v1alpha1.MemberFilling })
		why := r.unsettled()
		if why == "" {
			break
		}
		if time.Now().After(deadline) {
			r.dump()
			r.lab.Fatalf("not in sync after %s: %s", settleWithin, why)
		}
		<-time.After(200 * time.Millisecond)
	}
	for _, g := range r.legs {
		g.untold.Store(false)
	}
	if took := time.Since(begun); took > time.Second {
		r.lab.Logf("in sync after %s: %s", took.Round(time.Millisecond), mirror.String(r.record()))
	}
}

// readmit this host to those replicas that are out, and that it is not connected to any more.
func (r *rig) readmit() {
	r.lab.Helper()
	for _, m := range r.record().Members {
		if g := r.leg(m.Replica); m.State == v1alpha1.MemberOut && m.Identity == g.identity && !r.connected(g) {
			r.admit(g, false)
			g.untold.Store(false)
			must(r.lab, r.changed(context.Background(), vol))
		}
	}
}

// unsettled tells what is not as it is when nothing is disturbed; nothing if all is. The keeper has looked since then,
// and found nothing to record.
func (r *rig) unsettled() string {
	r.lab.Helper()
	disturbed := func() string {
		record := r.record()
		if !mirror.Whole(record) {
			return mirror.String(record)
		}
		for _, m := range record.Members {
			controllers, err := r.initiator.Controllers(r.leg(m.Replica).nqn())
			must(r.lab, err)
			if len(controllers) == 0 || slices.ContainsFunc(controllers, func(c fabrics.Controller) bool { return !c.Live() }) {
				return fmt.Sprintf("%s is connected by %v", m.Replica, controllers)
			}
		}
		a, err := r.mirrors().Of(volumeUUID)
		must(r.lab, err)
		state, err := r.mirrors().State(a)
		if err != nil || len(state.InSync()) != len(record.Members) || !state.Idle() {
			return fmt.Sprintf("the kernel has %+v, %v", state, err)
		}
		return ""
	}
	epoch := r.record().Epoch
	if why := disturbed(); why != "" {
		return why
	}
	// The keeper takes the second once the step that the first began has ended.
	for range 2 {
		must(r.lab, r.changed(context.Background(), vol))
	}
	if why := disturbed(); why != "" {
		return why
	}
	if now := r.record().Epoch; now != epoch {
		return fmt.Sprintf("the record went from epoch %d to %d", epoch, now)
	}
	return ""
}

// dump what the kernel has.
func (r *rig) dump() {
	r.lab.Helper()
	for _, command := range []string{
		"cat /proc/mdstat", "grep . /sys/block/md*/md/array_state /sys/block/md*/md/sync_action /sys/block/md*/md/dev-*/state /sys/block/md*/md/dev-*/slot",
		"grep . /sys/class/nvme/nvme*/state /sys/class/nvme/nvme*/subsysnqn /sys/class/nvme/nvme*/hostnqn", "dmsetup table", "dmsetup info -c",
		"dmesg | grep -v nvmet | tail -120", "for t in /proc/[0-9]*/task/*; do grep -q 'State:.D' $t/status && cat $t/comm $t/stack; done",
	} {
		out, err := osexec.CommandContext(context.WithoutCancel(r.lab.Context()), "sh", "-c", command).CombinedOutput()
		r.lab.Logf("%s: %v\n%s", command, err, out)
	}
}

// fence the holder, as the CSI controller does: from then on it can record nothing.
func (r *rig) fence() {
	r.lab.Helper()
	r.editMirror(func(is mirror.Record) (mirror.Record, error) { return mirror.Begin(is), nil })
}

// attachNext makes another holder after a fence, as the CSI controller does once all agents have confirmed.
func (r *rig) attachNext() {
	r.lab.Helper()
	next := uuid.NewString()
	r.attachment = next
	r.editVolume(func(v *v1alpha1.NvmfVolume) {
		v.Spec.Session, v.Spec.Attachments[0].NQN = next, v1alpha1.HostNQN(next)
	})
	var confirmed []mirror.Confirmation
	for _, g := range r.legs {
		r.admit(g, false)
		confirmed = append(confirmed, mirror.Confirmation{Replica: g.replica()})
	}
	r.editMirror(func(is mirror.Record) (mirror.Record, error) {
		is, err := mirror.Admit(is, next, confirmed, time.Now())
		is.HolderNode = "n1"
		return is, err
	})
}

// takeDown what a test left.
func (r *rig) takeDown() {
	r.apiAway.Store(false)
	r.deaf.Store(false)
	for _, g := range r.legs {
		g.mend()
	}
	if err := r.stopWriting(); err != nil {
		r.lab.Logf("writes failed: %v", err)
	}
	if err := r.tryUnstage(); err != nil {
		r.lab.Errorf("unstage in the end: %v", err)
	}
	r.kill()
}
