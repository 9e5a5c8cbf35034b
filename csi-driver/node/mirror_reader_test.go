// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
	"github.com/weft-storage/weft/csi-driver/node"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
	"github.com/weft-storage/weft/internal/header"
)

// wantRead wants the headers of all replicas to be in the record, and nothing to be left of the reading.
func (m moving) wantRead(s *mirrorSuite, want map[string]mirror.Header) {
	m.Helper()
	s.Eventually(func() v1alpha1.MoverState { return m.record().Mover }).Should(Equal(v1alpha1.MoverStopped))
	if got := mirror.Headers(m.record()); !cmp.Equal(got, want) {
		m.Errorf("the record has the headers (-want +got)\n%s", cmp.Diff(want, got))
		for _, of := range m.record().Members {
			m.Logf("of %s: %+v", of.Replica, of.Header)
		}
	}
	s.wantGone()
	left, err := filepath.Glob(filepath.Join(s.service.Records, "*.json"))
	must(m, err)
	if len(left) > 0 || len(s.mounts()) > 0 {
		m.Errorf("left are %v and the mounts %v", left, s.mounts())
	}
}

// headersOnDisk are the mirror's parts of the replicas' headers.
func (s *mirrorSuite) headersOnDisk() map[string]mirror.Header {
	s.Helper()
	all := map[string]mirror.Header{}
	for name := range s.legs {
		h := s.headerOf(name)
		part, err := mirror.ParseHeader(h.Mirror)
		must(s, err)
		part.Holder = "" // which the record does not need
		if part.Members == nil {
			part.Members = map[string]v1alpha1.MirrorMemberState{}
		}
		all[name] = part
	}
	return all
}

// A node reads the headers of a volume whose record is in doubt, and writes nothing: neither to the replicas, one of
// which was never used, nor anything else that stays.
func TestReaderReadsTheHeaders(t *testing.T) {
	s, m := detachedWith(t)
	before := map[string]header.Header{"pvc-1-r1": s.headerOf("pvc-1-r1"), "pvc-1-r2": {}}
	m.changed = func(context.Context, string) error { return nil }
	m.give(s, uuid.NewString(), v1alpha1.MoverRead)
	editReplica(t, s.api, "pvc-1-r2", func(r *v1alpha1.NvmfReplica) { r.Status.Hosts[0].Blank = true })
	want := s.headersOnDisk()
	second := want["pvc-1-r2"]
	second.Blank = true
	want["pvc-1-r2"] = second
	m.changed = s.service.MirrorChanged
	must(t, m.changed(t.Context(), vol))
	m.wantRead(s, want)
	for name, was := range before {
		if is := s.headerOf(name); is != was {
			t.Errorf("the header of %s was %+v, and is %+v", name, was, is)
		}
	}
	must(t, m.changed(t.Context(), vol)) // nothing begins again
	s.wantGone()

	// The record is recovered, and a pod uses the volume.
	m.editMirror(func(r mirror.Record) (mirror.Record, error) {
		return mirror.Choose(mirror.Begin(r), "pvc-1-r1", mirror.Headers(r), m.now())
	})
	m.give(s, attachment, "")
	must(t, s.stage(blockCapability()))
	s.Eventually(m.stateOf(s.legs["pvc-1-r2"])).Should(Equal(v1alpha1.MemberInSync))
	must(t, s.unstage())
	s.wantEqualLegs()
}

// A replica that cannot be reached says why in place of its header. One that does not admit the node says nothing.
func TestReaderReadsWhatItReaches(t *testing.T) {
	s, m := detachedWith(t)
	m.changed = func(context.Context, string) error { return nil }
	reader := uuid.NewString()
	m.give(s, reader, v1alpha1.MoverRead)
	s.serveLeg("pvc-1-r2", false)
	m.changed = s.service.MirrorChanged
	must(t, m.changed(t.Context(), vol))
	s.Eventually(func() v1alpha1.MoverState { return m.record().Mover }).Should(Equal(v1alpha1.MoverStopped))
	r := m.record()
	if second, _ := mirror.Get(r, "pvc-1-r2"); second.Header == nil || second.Header.Error == "" || second.Header.Mark != "" {
		t.Errorf("of the second, the record says %+v", second.Header)
	}
	if headers := mirror.Headers(r); len(headers) != 1 || headers["pvc-1-r1"].Epoch == 0 {
		t.Errorf("the headers are %v", headers)
	}
	s.wantGone()
}

// The node plugin ends while it is connected to read, and takes that away before it reads again.
func TestReaderThatWasCutOffReadsAgain(t *testing.T) {
	s, m := detachedWith(t)
	reader := uuid.NewString()
	// A mover connects in the same way. It starts nothing from a record that its headers do not know.
	m.editMirror(func(r mirror.Record) (mirror.Record, error) {
		r.Members[0].Marks = []string{"of the past"}
		return r, nil
	})
	m.give(s, reader, v1alpha1.MoverCopy)
	s.Eventually(func() []string { return s.controllers("pvc-1-r2") }).ShouldNot(BeEmpty())
	want := s.headersOnDisk()
	s.service.LeaveMirrors()
	m.changed = func(context.Context, string) error { return nil }
	m.editMirror(func(r mirror.Record) (mirror.Record, error) { return mirror.AdmitReader(mirror.Doubt(r), reader, "n1") })
	m.changed = s.service.MirrorChanged
	s.keepWith(s.service)
	m.wantRead(s, want)
}

// leavingInitiator loses a replica's target when its header is about to be read.
type leavingInitiator struct {
	node.Initiator
	leave func(fabrics.Namespace)
}

func (l leavingInitiator) ReadStart(ctx context.Context, ns fabrics.Namespace, length int) ([]byte, error) {
	l.leave(ns)
	return l.Initiator.ReadStart(ctx, ns, length)
}

// A replica whose target goes away while its header is read is given up, and nothing is left of it.
func TestReaderGivesUpAReplicaThatHangs(t *testing.T) {
	s, m := detachedWith(t)
	m.changed = func(context.Context, string) error { return nil }
	m.give(s, uuid.NewString(), v1alpha1.MoverRead)
	lost := s.legs["pvc-1-r2"]
	left, reads := make(chan struct{}), make(chan struct{})
	s.service.Initiator = leavingInitiator{s.service.Initiator, func(ns fabrics.Namespace) {
		if ns.NQN != lost.nqn() {
			close(reads)
			return
		}
		s.hang("pvc-1-r2")
		close(left)
	}}
	read := make(chan error, 1)
	go func() { read <- s.service.MirrorChanged(t.Context(), vol) }()
	<-left
	<-reads
	s.Eventually(func() []string { return s.controllers("pvc-1-r1") }).Should(BeEmpty(), "the other one has been read")
	s.Eventually(func() chan error {
		s.clock.Step(time.Minute)
		return read
	}).Should(Receive(BeNil()))
	s.Eventually(func() v1alpha1.MoverState { return m.record().Mover }).Should(Equal(v1alpha1.MoverStopped))
	r := m.record()
	if second, _ := mirror.Get(r, "pvc-1-r2"); second.Header == nil || !strings.Contains(second.Header.Error, "has not answered") {
		t.Errorf("of the second, the record says %+v", second.Header)
	}
	if headers := mirror.Headers(r); len(headers) != 1 || headers["pvc-1-r1"].Epoch == 0 {
		t.Errorf("the headers are %v", headers)
	}
	s.wantGone()
	s.untilNothingIsOverdue()
}
