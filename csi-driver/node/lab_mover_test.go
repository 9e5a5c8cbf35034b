// SPDX-License-Identifier: Apache-2.0

//go:build lab

package node_test

import (
	"bytes"
	"crypto/rand"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"
	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
)

// give the mirror to an attachment of this machine, as the CSI controller does: a mover's, or a pod's. Every replica is
// admitted to under a fresh identity.
func (m labMirror) give(holder string, mover v1alpha1.MoverState, legs ...*labLeg) {
	m.lab.Helper()
	m.editMirror(func(r mirror.Record) (mirror.Record, error) { return mirror.Begin(r), nil })
	m.editVolume(func(v *v1alpha1.NvmfVolume) {
		v.Spec.Attachments = []v1alpha1.VolumeHost{{NQN: v1alpha1.HostNQN(holder), NodeUID: uid, Node: "n1", Mover: mover != ""}}
	})
	var confirmed []mirror.Confirmation
	for _, g := range legs {
		g.admit(m.api, false)
		editReplica(m.T, m.api, g.name, func(r *v1alpha1.NvmfReplica) {
			r.Spec.Hosts[0].Attachment, r.Spec.Hosts[0].Mover = holder, mover != ""
		})
		if mirror.StateOf(m.record(), g.name) == v1alpha1.MemberInSync {
			confirmed = append(confirmed, mirror.Confirmation{Replica: g.replica()})
		}
	}
	m.editMirror(func(r mirror.Record) (mirror.Record, error) {
		if mover == v1alpha1.MoverRead {
			return mirror.AdmitReader(mirror.Doubt(r), holder, "n1")
		}
		next, err := mirror.Admit(r, holder, confirmed, m.now())
		next.HolderNode, next.Mover = "n1", mover
		return next, err
	})
}

// whole tells whether every replica has everything. On a slow machine, one may have come late, and follow the others.
func (m labMirror) whole() bool { return mirror.Whole(m.record()) }

// wantEqual data on replicas, behind what is each one's own.
func (m labMirror) wantEqual(legs ...*labLeg) {
	m.lab.Helper()
	must(m.T, os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0))
	for _, g := range legs[1:] {
		if at := differences(m.T, legs[0], g); len(at) > 0 {
			m.lab.Errorf("%s and %s differ at %d, in all in %d places; the record is %s", legs[0].name, g.name, at[0], len(at), mirror.String(m.record()))
		}
	}
}

// differences of two replicas behind their headers: the offsets of the blocks of 64 KiB that are not equal.
func differences(t *testing.T, legs ...*labLeg) (at []int64) {
	t.Helper()
	const block = 64 << 10
	var blocks [2][block]byte
	var files [2]*os.File
	for i, g := range legs {
		f, err := os.Open(g.file)
		must(t, err)
		defer f.Close() //nolint:errcheck // it was only read
		_, err = f.Seek(v1alpha1.HeaderBytes, io.SeekStart)
		must(t, err)
		files[i] = f
	}
	is, err := files[0].Stat()
	must(t, err)
	for offset := int64(v1alpha1.HeaderBytes); offset < is.Size(); offset += block {
		for i, f := range files {
			_, err := io.ReadFull(f, blocks[i][:])
			must(t, err)
		}
		if blocks[0] != blocks[1] {
			at = append(at, offset)
		}
	}
	return at
}

// A volume that was written and unstaged is copied to a second replica by a mover, which stops when asked. Another
// mover is in the middle of a copy to a third when a pod gets the volume on the same machine: the pod has all data, and
// the copy ends under it.
func TestLabMoverCopiesForNobody(t *testing.T) {
	notInAShortRun(t)
	l, _, m, first := setUpPlainLab(t)
	m.mirrored(first.leg)
	must(t, m.stage())
	data := make([]byte, 24<<20)
	_, _ = rand.Read(data)
	file := filepath.Join(m.staging, "data")
	must(t, os.WriteFile(file, data, 0o600))
	must(t, m.unstage())

	second := l.leg(2)
	m.add(second.leg, labSize)
	m.give(uuid.NewString(), v1alpha1.MoverCopy, first, second)
	l.Eventually(m.whole).Should(BeTrue())
	asked := time.Now()
	m.editMirror(func(r mirror.Record) (mirror.Record, error) { r.Mover = v1alpha1.MoverStop; return r, nil })
	if r := m.record(); r.Mover != v1alpha1.MoverStopped || r.Dirty || !mirror.Whole(r) {
		t.Errorf("stopped (%s), the record is %s", r.Mover, mirror.String(r))
	}
	t.Logf("stopped after %s", time.Since(asked))
	m.wantEqual(first, second)

	third := l.leg(3)
	m.add(third.leg, labSize)
	m.give(uuid.NewString(), v1alpha1.MoverCopy, first, second, third)
	l.Eventually(func() bool {
		is, _ := mirror.Get(m.record(), third.name)
		return is.Identity == third.identity
	}).WithPolling(0).Should(BeTrue()) // it is being copied
	revoked := time.Now()
	m.give(attachment, "", first, second, third)
	if r := m.record(); r.Dirty || len(mirror.InSync(r)) < 2 {
		t.Errorf("given to a pod, the record is %s", mirror.String(r))
	}
	t.Logf("a pod gets the volume while the third replica is %s", mirror.StateOf(m.record(), third.name))
	must(t, m.stage())
	t.Logf("staged %s after the mover was revoked, the record is %s", time.Since(revoked), mirror.String(m.record()))
	must(t, os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0))
	found, err := os.ReadFile(file)
	must(t, err)
	if !bytes.Equal(found, data) {
		t.Error("the data is not what was written")
	}
	must(t, put(filepath.Join(m.staging, "after"), "after"))
	l.Eventually(m.whole).Should(BeTrue())
	must(t, m.unstage())
	m.wantEqual(first, second, third)
}

// The record of a volume that was written is in doubt: this machine reads the headers of both replicas, changes nothing
// of them, and has nothing of them afterwards. The volume is used by the record that follows.
func TestLabReaderLeavesNothing(t *testing.T) {
	l, _, m, first := setUpPlainLab(t)
	m.mirrored(first.leg)
	must(t, m.stage())
	must(t, put(filepath.Join(m.staging, "before"), "before"))
	second := l.leg(2)
	m.add(second.leg, labSize)
	second.admit(m.api, true)
	must(t, m.changed(t.Context(), vol))
	l.Eventually(m.whole).Should(BeTrue())
	must(t, m.unstage())

	begins := func(g *labLeg) []byte {
		must(t, os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0))
		f, err := os.Open(g.file)
		must(t, err)
		defer f.Close() //nolint:errcheck // it was only read
		data := make([]byte, v1alpha1.HeaderBytes)
		_, err = io.ReadFull(f, data)
		must(t, err)
		return data
	}
	before := [][]byte{begins(first), begins(second)}
	began := time.Now()
	m.give(uuid.NewString(), v1alpha1.MoverRead, first, second)
	l.Eventually(func() v1alpha1.MoverState { return m.record().Mover }).Should(Equal(v1alpha1.MoverStopped))
	t.Logf("read after %s", time.Since(began))
	headers := mirror.Headers(m.record())
	if len(headers) != 2 || headers[first.name].Epoch == 0 || headers[first.name].Mark != headers[second.name].Mark {
		t.Errorf("the headers are %+v", headers)
	}
	for i, g := range []*labLeg{first, second} {
		if !bytes.Equal(begins(g), before[i]) {
			t.Errorf("%s was written", g.name)
		}
	}
	left, err := filepath.Glob("/sys/class/nvme-fabrics/ctl/nvme*")
	must(t, err)
	if len(left) > 0 {
		t.Errorf("left are %v", left)
	}
	m.editMirror(func(r mirror.Record) (mirror.Record, error) { return mirror.Recover(mirror.Begin(r), headers, m.now()) })
	m.give(attachment, "", first, second)
	must(t, m.stage())
	if r := m.record(); !mirror.Whole(r) {
		t.Errorf("recovered, the record is %s", mirror.String(r))
	}
	if text, err := os.ReadFile(filepath.Join(m.staging, "before")); err != nil || string(text) != "before" {
		t.Errorf("got %q, %v", text, err)
	}
	must(t, m.unstage())
}
