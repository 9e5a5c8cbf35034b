// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"strings"
	"testing"
	"time"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node/nodetest"
)

// keepAlives that the kernel was told, in the order of the connections.
func (s *suite) keepAlives() []string {
	var all []string
	for _, c := range s.kernel.Creations() {
		_, after, _ := strings.Cut(c, "keep_alive_tmo=")
		value, _, _ := strings.Cut(after, ",")
		all = append(all, value)
	}
	return all
}

func TestVolumeWithOneReplicaKeepsAliveForLong(t *testing.T) {
	s := setUp(t)
	must(t, s.stage(mountCapability("ext4")))
	if got := strings.Join(s.keepAlives(), " "); got != "10" {
		t.Errorf("keep-alive timeouts: %s; want 10", got)
	}
}

// Writes wait until a silent replica is noticed, over whichever path, and whenever that was connected.
func TestMirroredVolumeNoticesASilentReplicaSoon(t *testing.T) {
	s := setUpMirror(t)
	must(t, s.stage(mountCapability("ext4")))
	if got := strings.Join(s.keepAlives(), " "); got != "2 2" {
		t.Fatalf("keep-alive timeouts: %s; want 2 for each replica", got)
	}
	l := s.legs["pvc-1-r1"]
	must(t, s.kernel.Serve(nodetest.Subsystem{
		NQN: l.nqn(), Portals: []string{"10.0.0.1:4420", "10.0.0.3:4420"}, Hosts: []string{v1alpha1.HostNQN(l.identity)},
		Namespaces: []nodetest.Namespace{{NGUID: l.nguid(), SizeBytes: v1alpha1.WithOverhead(size)}},
	}))
	editReplica(t, s.api, l.name, func(r *v1alpha1.NvmfReplica) {
		r.Status.Portals = append(r.Status.Portals, v1alpha1.Portal{Transport: v1alpha1.TransportTCP, Address: "10.0.0.3", Port: 4420})
	})
	s.clock.Step(time.Hour) // portals are read again
	must(t, s.service.MendPaths(t.Context()))
	if got := strings.Join(s.keepAlives(), " "); got != "2 2 2" {
		t.Errorf("keep-alive timeouts: %s; want 2 for the path that came later, too", got)
	}
}
