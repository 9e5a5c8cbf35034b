// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"errors"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
)

// dropA asks for drive a to be dropped; done says that it was before.
func dropA(s *Observed, done bool) {
	s.Node.Spec.DroppedDrives = []v1alpha1.DroppedDrive{{ID: "a"}}
	s.Node.Status.DroppedDrives = nil
	if done {
		s.Node.Status.DroppedDrives = []v1alpha1.DroppedDriveStatus{{ID: "a", Dropped: true}}
	}
}

// forgotten: the engine does not hold a any more, and its drive is not in the node.
func forgotten(s *Observed) {
	s.Target.State.Pools = openPools()[1:]
	s.Inventory.Drives = s.Inventory.Drives[1:]
}

func dropped(is bool, says string) func(*WithT, Decision) {
	return func(g *WithT, d Decision) {
		g.Expect(d.Node.DroppedDrives).To(ConsistOf(And(HaveField("ID", "a"), HaveField("Dropped", is), HaveField("Message", ContainSubstring(says)))))
	}
}

func TestDecideDrops(t *testing.T) {
	onA := func(s *Observed) {
		s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("a"), withHosts(hostA))}
	}
	unknown := says{"Degraded": "True/PoolFailed", "Ready": "False/PoolFailed"}
	lost := says{"Created": "True/AsExpected", "Degraded": "True/VolumeLost", "Ready": "False/VolumeLost"}
	for _, c := range []decideCase{
		{
			name: "not one that can be read",
			given: func(s *Observed) {
				dropA(s, false)
				onA(s)
				holds(engineVolume(1, "a"))(s)
				s.Target.State.Exports = []engine.Export{exported(1, hostA)}
			},
			volumes: map[string]says{"v1": {"Ready": "True/AsExpected"}},
			also:    dropped(false, "its pool can still be read"),
		},
		{
			name:    "not while it is being tried",
			given:   func(s *Observed) { dropA(s, false); brokenA(s); delete(s.Attempts, attempt{VerbOpenPool, "a"}); onA(s) },
			does:    []string{"OpenPools a /dev/nvme0n1"},
			volumes: map[string]says{"v1": unknown},
			also:    dropped(false, "it is unknown whether"),
		},
		{
			name: "not while it is busy",
			given: func(s *Observed) {
				dropA(s, false)
				brokenA(s)
				s.Attempts[attempt{VerbOpenPool, "a"}] = engine.ErrBusy
				onA(s)
			},
			volumes: map[string]says{"v1": unknown},
			also:    dropped(false, "busy"),
		},
		{
			name:    "not while the node's drives are not known",
			given:   func(s *Observed) { dropA(s, false); s.Target.State.Pools = openPools()[1:]; s.Inventory = nil; onA(s) },
			volumes: map[string]says{"v1": unknown},
			also:    dropped(false, "it is unknown whether"),
		},
		{
			name:    "one that cannot be read is forgotten, and its volumes are not lost before",
			given:   func(s *Observed) { dropA(s, false); brokenA(s); onA(s) },
			does:    []string{"ForgetPools a"},
			volumes: map[string]says{"v1": unknown},
			also:    dropped(false, ""),
		},
		{
			name: "one that cannot be forgotten is not dropped",
			given: func(s *Observed) {
				dropA(s, false)
				brokenA(s)
				s.Attempts[attempt{VerbForgetPool, "a"}] = errors.New("it hangs")
				onA(s)
			},
			volumes: map[string]says{"v1": unknown},
			also:    dropped(false, "it hangs"),
		},
		{
			name:    "one that is gone, and forgotten: its volumes are lost, and the other pool is all there is",
			given:   func(s *Observed) { dropA(s, false); forgotten(s); onA(s) },
			volumes: map[string]says{"v1": lost},
			also:    dropped(true, ""),
		},
		{
			name: "what was dropped is not opened when it comes back, planned or not, and it is said",
			given: func(s *Observed) {
				dropA(s, true)
				s.Target.State.Pools = openPools()[1:]
				s.Inventory.Drives[0].Content = v1alpha1.ContentWeft
				onA(s)
			},
			volumes: map[string]says{"v1": lost},
			node:    says{"PoolReady": "True/AsExpected", "Ready": "True/AsExpected"},
			also:    dropped(true, "the drive is present as /dev/nvme0n1, not blank (Weft"),
		},
		{
			name:    "what the engine remembers after all is forgotten again",
			given:   func(s *Observed) { dropA(s, true); brokenA(s); onA(s) },
			does:    []string{"ForgetPools a"},
			volumes: map[string]says{"v1": lost},
			also:    dropped(true, ""),
		},
		{
			name: "a drive that is named no more is a drive as before",
			given: func(s *Observed) {
				dropA(s, true)
				s.Node.Spec.DroppedDrives = nil
				s.Target.State.Pools = openPools()[1:]
				onA(s)
			},
			does:    []string{"OpenPools a /dev/nvme0n1"},
			volumes: map[string]says{"v1": unknown},
			also:    func(g *WithT, d Decision) { g.Expect(d.Node.DroppedDrives).To(BeEmpty()) },
		},
	} {
		c.run(t)
	}
}
