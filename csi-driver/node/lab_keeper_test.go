// SPDX-License-Identifier: Apache-2.0

//go:build lab

package node_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/uuid"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
	"github.com/weft-storage/weft/csi-driver/node/internal/filesystem"
	"github.com/weft-storage/weft/csi-driver/node/internal/keeper"
	"github.com/weft-storage/weft/csi-driver/node/internal/md"
	"github.com/weft-storage/weft/csi-driver/node/nodetest"
	"github.com/weft-storage/weft/internal/dhchap"
)

// labLeg is a replica that this machine's target serves, through a subsystem for each identity.
type labLeg struct {
	*leg
	*volume
	port *port
}

func (l *lab) leg(n int) *labLeg {
	l.Helper()
	file := filepath.Join(l.dir, fmt.Sprintf("%s-r%d.img", vol, n))
	must(l, os.WriteFile(file, nil, 0o600))
	must(l, os.Truncate(file, v1alpha1.WithOverhead(labSize)))
	return l.legOn(n, file)
}

// legOn serves a file or a device.
func (l *lab) legOn(n int, file string) *labLeg {
	l.Helper()
	is := &leg{name: fmt.Sprintf("%s-r%d", vol, n), uuid: fmt.Sprintf("0a0b0c0d-0e0f-4001-8203-%012d", n), portal: "127.0.0.1", port: int32(4460 + n)}
	v := &volume{lab: l, id: is.name, file: file, context: nodetest.New(is.name, is.nguid())}
	v.context.Replica = is.name
	return &labLeg{leg: is, volume: v, port: l.port(is.port, v1alpha1.TransportTCP)}
}

// admit this host to a replica under a fresh identity, after the former is off.
func (g *labLeg) admit(api client.Client, blank bool) {
	g.Helper()
	if g.identity != "" {
		g.port.close(g.volume)
		g.refuse()
	}
	g.identity = uuid.NewString()
	g.attach(g.identity, g.port)
	editReplica(g, api, g.name, g.admitted(blank))
}

// listNext host of the attachment, with these keys if there are any, and admit it beside those that are admitted.
func (g *labLeg) listNext(api client.Client, identity, sealed, keys string) {
	g.Helper()
	host := v1alpha1.HostNQN(identity)
	dir, link := filepath.Join(nvmet, "hosts", host), filepath.Join(g.subsystem, "allowed_hosts", host)
	if err := os.Mkdir(dir, 0o755); !errors.Is(err, fs.ErrExist) {
		must(g, err)
	}
	must(g, os.Symlink(dir, link))
	g.Cleanup(func() {
		if err := os.Remove(link); !errors.Is(err, fs.ErrNotExist) {
			must(g, err)
		}
	})
	editReplica(g, api, g.name, func(r *v1alpha1.NvmfReplica) {
		next := r.Spec.Hosts[0]
		next.NQN, next.SealedKeys = host, sealed
		r.Spec.Hosts, r.Status.Hosts = append(r.Spec.Hosts, next), append(r.Status.Hosts, v1alpha1.AdmittedHost{NQN: host, Keys: keys})
	})
}

// dismissFormer host of the two that are listed, which has no connection any more.
func (g *labLeg) dismissFormer(api client.Client) {
	g.Helper()
	editReplica(g, api, g.name, func(r *v1alpha1.NvmfReplica) {
		must(g, os.Remove(filepath.Join(g.subsystem, "allowed_hosts", r.Spec.Hosts[0].NQN)))
		r.Spec.Hosts, r.Status.Hosts = r.Spec.Hosts[1:], r.Status.Hosts[1:]
	})
}

func (g *labLeg) hosts() []string { return g.hostsOf(g.nqn()) }

// writer writes blocks to a file, one after the other, each durably.
type writer struct {
	stop  chan struct{}
	ended chan error
	// longest write, and how many there were. They are there when the writer has ended.
	longest time.Duration
	writes  int
}

func startWriter(path string) *writer {
	w := &writer{stop: make(chan struct{}), ended: make(chan error, 1)}
	go func() { w.ended <- w.run(path) }()
	return w
}

// end a writer, and tell whether a write failed.
func (w *writer) end() error {
	close(w.stop)
	return <-w.ended
}

const writerBlock, writerBlocks = 16 << 10, 512

// check that the file has what was written last to each block.
func (w *writer) check(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for n := max(0, w.writes-writerBlocks); n < w.writes; n++ {
		at := n % writerBlocks * writerBlock
		if !bytes.Equal(data[at:at+writerBlock], bytes.Repeat([]byte{byte(n)}, writerBlock)) {
			return fmt.Errorf("block %d does not have what write %d of %d wrote", n%writerBlocks, n, w.writes)
		}
	}
	return nil
}

func (w *writer) run(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|unix.O_DSYNC, 0o600)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // each write was durable
	for ; ; w.writes++ {
		select {
		case <-w.stop:
			return nil
		default:
		}
		begun := time.Now()
		if _, err := f.WriteAt(bytes.Repeat([]byte{byte(w.writes)}, writerBlock), int64(w.writes%writerBlocks)*writerBlock); err != nil {
			return err
		}
		w.longest = max(w.longest, time.Since(begun))
	}
}

// labMirror is a node plugin that keeps mirrors on this machine, and a volume.
type labMirror struct {
	*lab
	moving
	volume  *volume
	staging string
}

// keep mirrors, with the objects of an API server, until the test ends.
func (l *lab) keep(api client.Client, v *volume) labMirror {
	l.Helper()
	s := l.service
	s.Clock, s.Volumes, s.MirrorRecords, s.Mirrors, s.Processes = nil, api, api, l.mirrors(), &filesystem.Processes{Proc: "/proc", Self: os.Getpid()}
	ctx, stop := context.WithCancel(context.Background())
	kept := make(chan error, 1)
	must(l, s.TakeUpMirrors(ctx))
	go func() { kept <- s.KeepMirrors(ctx) }()
	l.Cleanup(func() {
		stop()
		must(l, <-kept)
		s.LeaveMirrors()
	})
	m := labMirror{l, moving{l, api, time.Now, s.MirrorChanged}, v, filepath.Join(l.dir, "staging")}
	must(l, os.MkdirAll(m.staging, 0o750))
	return m
}

func (m labMirror) stage() error {
	_, err := m.service.NodeStageVolume(m.volume.timeout(), &csi.NodeStageVolumeRequest{
		VolumeId: vol, StagingTargetPath: m.staging, VolumeCapability: mountCapability("ext4"), PublishContext: nodetest.Attached{Attachment: attachment}.Encode(), Secrets: m.volume.secrets,
	})
	return err
}

func (m labMirror) unstage() error {
	_, err := m.service.NodeUnstageVolume(m.volume.timeout(), &csi.NodeUnstageVolumeRequest{VolumeId: vol, StagingTargetPath: m.staging})
	return err
}

// twoReplicas of a volume, which this machine serves, and a node plugin that sees the API server as it is given.
func (l *lab) twoReplicas(seen func(client.Client) client.Client) (labMirror, []*labLeg) {
	l.Helper()
	legs := []*labLeg{l.leg(1), l.leg(2)}
	api := mirrorAPI(l, time.Now(), legs[0].context.Connection, labSize, legs[0].leg, legs[1].leg)
	for _, g := range legs {
		g.admit(api, true)
	}
	m := l.keep(seen(api), legs[0].volume)
	m.api = api
	return m, legs
}

// A replica's target goes away under a volume that is written: writes go on after the grace, without it. It comes back,
// and gets what it has missed.
func TestLabMirroredVolumeLosesAReplicaAndTakesItBack(t *testing.T) {
	l := setUpLab(t)
	l.SetDefaultEventuallyTimeout(2 * labTimeout)
	m, legs := l.twoReplicas(func(api client.Client) client.Client { return api })
	api := m.api
	staging, w := m.staging, (*writer)(nil)
	t.Cleanup(func() {
		if w != nil {
			must(t, w.end())
		}
		must(t, m.unstage())
	})
	must(t, m.stage())
	record := m.record
	state := func() v1alpha1.MirrorMemberState { return mirror.StateOf(record(), legs[1].name) }

	if r := record(); !mirror.Whole(r) {
		t.Fatalf("staged, the record is %s", mirror.String(r))
	}
	must(t, put(filepath.Join(staging, "before"), "before"))
	w = startWriter(filepath.Join(staging, "written"))
	gone := time.Now()
	legs[1].port.close(legs[1].volume)
	l.Eventually(state).Should(Equal(v1alpha1.MemberOut))
	t.Logf("recorded as out %s after its target went", time.Since(gone))
	must(t, put(filepath.Join(staging, "without"), "without"))
	t.Logf("the first fsync was answered %s after its target went", time.Since(gone))
	l.Eventually(func() (int, error) {
		controllers, err := l.initiator.Controllers(legs[1].nqn())
		return len(controllers), err
	}).Should(BeZero())

	back := time.Now()
	legs[1].admit(api, false)
	sawReturning := false
	l.Eventually(func() v1alpha1.MirrorMemberState {
		is := state()
		sawReturning = sawReturning || is == v1alpha1.MemberReturning
		return is
	}).Should(Equal(v1alpha1.MemberInSync))
	if !sawReturning {
		t.Error("it was not copied by bitmap")
	}
	t.Logf("in sync %s after its target was back: %s", time.Since(back), mirror.String(record()))
	must(t, w.end())
	t.Logf("longest write: %s", w.longest)
	w = nil

	must(t, m.unstage())
	if r := record(); r.Dirty || !mirror.Whole(r) {
		t.Errorf("unstaged, the record is %s", mirror.String(r))
	}
	m.wantEqual(legs...)
}

// The API server is away while a replica's target goes: nothing is acknowledged, however long it takes, and writes go
// on once the loss is recorded.
func TestLabMirroredVolumeWaitsForTheAPI(t *testing.T) {
	l := setUpLab(t)
	l.SetDefaultEventuallyTimeout(2 * labTimeout)
	var away atomic.Bool
	errAway := errors.New("the API server is away")
	m, legs := l.twoReplicas(func(api client.Client) client.Client {
		return interceptor.NewClient(api.(client.WithWatch), interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
				if away.Load() {
					return errAway
				}
				return c.Get(ctx, key, obj, opts...)
			},
			Update: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.UpdateOption) error {
				if away.Load() {
					return errAway
				}
				return c.Update(ctx, obj, opts...)
			},
		})
	})
	must(t, m.stage())
	defer func() { must(t, m.unstage()) }()
	away.Store(true)
	legs[1].port.close(legs[1].volume)
	written := make(chan error, 1)
	go func() { written <- put(filepath.Join(m.staging, "during"), "during") }()
	l.Consistently(written).WithTimeout(keeper.DefaultGrace + 5*time.Second).ShouldNot(Receive())
	if is := m.stateOf(legs[1].leg)(); is != v1alpha1.MemberInSync {
		t.Errorf("without the API server, the replica is recorded as %s", is)
	}
	away.Store(false)
	l.Eventually(written).Should(Receive(BeNil()))
	if is := m.stateOf(legs[1].leg)(); is != v1alpha1.MemberOut {
		t.Errorf("a write was acknowledged while the replica was recorded as %s", is)
	}
	legs[1].admit(m.api, false)
	l.Eventually(m.stateOf(legs[1].leg)).Should(Equal(v1alpha1.MemberInSync))
}

// writeForever writes blocks to a file past the page cache, one after the other, until it is killed.
const writeForever = `while dd if=/dev/zero of=%s bs=4096 count=256 oflag=direct conv=notrunc 2>/dev/null; do :; done`

// The attachment is fenced under programs that write: all are killed, also those that wait in the device that is held
// up, and then nothing of the volume is left but a filesystem whose device fails.
func TestLabFencedHolderLeaves(t *testing.T) {
	l := setUpLab(t)
	l.SetDefaultEventuallyTimeout(2 * labTimeout)
	m, legs := l.twoReplicas(func(api client.Client) client.Client { return api })
	must(t, m.stage())
	t.Cleanup(func() { must(t, m.unstage()) })
	ended := make(chan error, 8)
	for n := range cap(ended) {
		file := filepath.Join(m.staging, fmt.Sprint("written-", n))
		command := exec.CommandContext(t.Context(), "sh", "-c", fmt.Sprintf(writeForever, file))
		command.Dir = m.staging
		must(t, command.Start())
		go func() { ended <- command.Wait() }()
		l.Eventually(func() error { _, err := os.Stat(file); return err }).Should(Succeed())
	}
	fenced := time.Now()
	m.editMirror(func(r mirror.Record) (mirror.Record, error) { return mirror.Begin(r), nil })
	for range cap(ended) {
		l.Eventually(ended).Should(Receive(MatchError("signal: killed")))
	}
	t.Logf("the last program ended after %s", time.Since(fenced))
	for _, g := range legs {
		l.Eventually(func() (int, error) {
			controllers, err := l.initiator.Controllers(g.nqn())
			return len(controllers), err
		}).Should(BeZero())
	}
	l.Eventually(func() error { _, err := l.service.Mirrors.Of(volumeUUID); return err }).Should(MatchError(md.ErrNotFound))
	t.Logf("the mirror was gone after %s", time.Since(fenced))
}

// The keys of both replicas are rotated while the volume is written, from none to some: no write fails, and the mirror
// does not notice. Afterwards a replica is lost, and returns.
func TestLabRotateKeysOfAMirrorUnderAWriter(t *testing.T) {
	l := setUpLab(t)
	l.SetDefaultEventuallyTimeout(2 * labTimeout)
	m, legs := l.twoReplicas(func(api client.Client) client.Client { return api })
	var err error
	l.service.Identity, err = dhchap.NewIdentity()
	must(t, err)
	must(t, m.stage())
	w := startWriter(filepath.Join(m.staging, "written"))
	t.Cleanup(func() {
		if w != nil {
			must(t, w.end())
		}
		must(t, m.unstage())
	})
	before := m.record()
	var formers []string
	next := map[string]string{legs[0].name: secondIdentity, legs[1].name: thirdIdentity}
	for _, g := range legs {
		formers = append(formers, g.identity)
		pair, err := dhchap.NewPair()
		must(t, err)
		sealed, err := pair.Seal(l.service.Identity.PublicKey())
		must(t, err)
		g.listNext(m.api, next[g.name], sealed, pair.Fingerprint())
		host := filepath.Join(nvmet, "hosts", v1alpha1.HostNQN(next[g.name]))
		l.write(host+"/dhchap_ctrl_key", pair.Controller.Text())
		l.write(host+"/dhchap_key", pair.Host.Text())
	}
	begun := time.Now()
	l.Eventually(func(g Gomega) {
		g.Expect(l.service.MendPaths(legs[0].timeout())).To(Succeed())
		for _, leg := range legs {
			g.Expect(leg.hosts()).To(Equal([]string{next[leg.name]}))
		}
	}).Should(Succeed())
	rotated := time.Since(begun)
	must(t, w.end())
	t.Logf("both replicas were rotated within %s, during %d writes, of which the longest took %s", rotated.Round(time.Millisecond), w.writes, w.longest.Round(time.Millisecond))
	must(t, w.check(filepath.Join(m.staging, "written")))
	w = startWriter(filepath.Join(m.staging, "written"))
	retired, err := l.service.RetiredIdentities()
	must(t, err)
	slices.Sort(formers)
	l.Expect(retired).To(Equal(formers))
	l.Expect(m.record()).To(Equal(before))
	for _, g := range legs {
		g.dismissFormer(m.api)
	}
	must(t, l.service.MendPaths(legs[0].timeout()))
	retired, err = l.service.RetiredIdentities()
	must(t, err)
	l.Expect(retired).To(BeEmpty())

	state := func() v1alpha1.MirrorMemberState { return mirror.StateOf(m.record(), legs[1].name) }
	legs[1].port.close(legs[1].volume)
	l.Eventually(state).Should(Equal(v1alpha1.MemberOut))
	l.Eventually(legs[1].hosts).Should(BeEmpty())
	legs[1].admit(m.api, false)
	l.Eventually(state).Should(Equal(v1alpha1.MemberInSync))
	must(t, w.end())
	must(t, w.check(filepath.Join(m.staging, "written")))
	w = nil
	must(t, m.unstage())
	m.wantEqual(legs...)
}
