// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
)

// How far a copy is is written to the record, which is otherwise as it was. Nothing is written when nothing was copied,
// or while a replica hangs.
func TestProgressIsWritten(t *testing.T) {
	s, m := setUpPlain(t)
	first, second := s.legs["pvc-1-r1"], s.legs["pvc-1-r2"]
	must(t, s.stage(blockCapability()))
	m.mirrored(first)
	must(t, s.service.MirrorChanged(t.Context(), vol))
	const some, more = size / 8, size / 2
	s.kernel.SyncMax(some)
	m.add(second, size)
	s.admit(second.name, true)
	copied := func() int64 { is, _ := mirror.Get(m.record(), second.name); return is.CopiedBytes }
	version := func() string {
		var is v1alpha1.NvmfMirror
		must(t, s.api.Get(t.Context(), client.ObjectKey{Name: vol}, &is))
		return is.ResourceVersion
	}
	grows := func(to int64) {
		t.Helper()
		s.Eventually(func() int64 { s.service.WriteProgress(t.Context()); return copied() }).Should(Equal(to))
	}
	grows(some)
	before, written := m.record(), version()
	s.service.WriteProgress(t.Context())
	s.Expect(version()).To(Equal(written), "nothing was copied since")

	s.hang(first.name)
	s.kernel.SyncMax(more)
	s.service.WriteProgress(t.Context())
	s.Expect(copied()).To(BeEquivalentTo(some), "a replica hangs")
	s.serveLeg(first.name, true)
	for _, controller := range s.controllers(first.name) {
		must(t, s.kernel.SetState(controller, "live"))
	}
	grows(more)
	for i := range before.Members {
		if before.Members[i].Replica == second.name {
			before.Members[i].CopiedBytes = more
		}
	}
	s.Expect(m.record()).To(Equal(before))

	s.kernel.SyncMax(-1)
	s.Eventually(m.stateOf(second)).Should(Equal(v1alpha1.MemberInSync))
	s.service.WriteProgress(t.Context())
	s.Expect(copied()).To(BeZero())
	must(t, s.unstage())
	s.wantEqualLegs()
}
