// SPDX-License-Identifier: Apache-2.0

//go:build lab

package node_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/uuid"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
	"github.com/weft-storage/weft/csi-driver/node/internal/users"
	"github.com/weft-storage/weft/csi-driver/node/nodetest"
)

// labLeg is a replica that this machine's target serves, through a subsystem for each identity.
type labLeg struct {
	*leg
	*volume
	port *port
}

func (l *lab) leg(n int) *labLeg {
	l.Helper()
	is := &leg{name: fmt.Sprintf("%s-r%d", vol, n), uuid: fmt.Sprintf("0a0b0c0d-0e0f-4001-8203-00000000000%d", n), portal: "127.0.0.1", port: int32(4460 + n)}
	v := &volume{lab: l, id: is.name, file: filepath.Join(l.dir, is.name+".img"), context: nodetest.New(is.name, is.nguid())}
	v.context.Replica = is.name
	must(l, os.WriteFile(v.file, nil, 0o600))
	must(l, os.Truncate(v.file, v1alpha1.WithHeader(labSize)))
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

// writer writes blocks to a file, one after the other, each durably.
type writer struct {
	pauses chan time.Duration
	stop   chan struct{}
	ended  chan error
}

func startWriter(path string) *writer {
	w := &writer{pauses: make(chan time.Duration, 1), stop: make(chan struct{}), ended: make(chan error, 1)}
	go func() { w.ended <- w.run(path) }()
	return w
}

func (w *writer) run(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|unix.O_DSYNC, 0o600)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // each write was durable
	longest := time.Duration(0)
	for n := 0; ; n++ {
		select {
		case <-w.stop:
			w.pauses <- longest
			return nil
		default:
		}
		begun := time.Now()
		if _, err := f.WriteAt(bytes.Repeat([]byte{byte(n)}, 16<<10), int64(n%512)*(16<<10)); err != nil {
			return err
		}
		longest = max(longest, time.Since(begun))
	}
}

// A replica's target goes away under a volume that is written: writes go on after the grace, without it. It comes back,
// and gets what it has missed.
func TestLabMirroredVolumeLosesAReplicaAndTakesItBack(t *testing.T) {
	l := setUpLab(t)
	l.SetDefaultEventuallyTimeout(2 * labTimeout)
	legs := []*labLeg{l.leg(1), l.leg(2)}
	connection := legs[0].volume.context.Connection
	api := mirrorAPI(t, time.Now(), connection, labSize, legs[0].leg, legs[1].leg)
	for _, g := range legs {
		g.admit(api, true)
	}
	s := l.service
	s.Clock, s.Volumes, s.MirrorRecords, s.Mirrors, s.Processes = nil, api, api, l.mirrors(), &users.Host{Proc: "/proc", Self: os.Getpid()}
	ctx, stop := context.WithCancel(context.Background())
	kept := make(chan error, 1)
	go func() { kept <- s.KeepMirrors(ctx) }()
	t.Cleanup(func() {
		stop()
		must(t, <-kept)
		s.LeaveMirrors()
	})
	staging := filepath.Join(l.dir, "staging")
	must(t, os.MkdirAll(staging, 0o750))
	in := nodetest.Attached{Attachment: attachment}
	unstage := func() error {
		_, err := s.NodeUnstageVolume(legs[0].timeout(), &csi.NodeUnstageVolumeRequest{VolumeId: vol, StagingTargetPath: staging})
		return err
	}
	var w *writer
	t.Cleanup(func() {
		if w != nil {
			close(w.stop)
			must(t, <-w.ended)
		}
		must(t, unstage())
	})
	_, err := s.NodeStageVolume(legs[0].timeout(), &csi.NodeStageVolumeRequest{
		VolumeId: vol, StagingTargetPath: staging, VolumeCapability: mountCapability("ext4"), PublishContext: in.Encode(),
	})
	must(t, err)
	record := func() mirror.Record {
		var m v1alpha1.NvmfMirror
		must(t, api.Get(context.Background(), client.ObjectKey{Name: vol}, &m))
		return m.Spec
	}
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
	close(w.stop)
	must(t, <-w.ended)
	t.Logf("longest write: %s", <-w.pauses)
	w = nil

	must(t, unstage())
	if r := record(); r.Dirty || !mirror.Whole(r) {
		t.Errorf("unstaged, the record is %s", mirror.String(r))
	}
	must(t, os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0))
	one, err := os.ReadFile(legs[0].file)
	must(t, err)
	other, err := os.ReadFile(legs[1].file)
	must(t, err)
	if !bytes.Equal(one[v1alpha1.HeaderBytes:], other[v1alpha1.HeaderBytes:]) {
		t.Error("the replicas differ")
	}
}
