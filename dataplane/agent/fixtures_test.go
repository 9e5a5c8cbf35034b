// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
)

const (
	nodeName = "node-1"
	gib      = 1 << 30
	hostA    = v1alpha1.HostNQNPrefix + "00000000-0000-4000-8000-00000000000a"
	hostB    = v1alpha1.HostNQNPrefix + "00000000-0000-4000-8000-00000000000b"
)

var (
	now = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	tcp = v1alpha1.Portal{Transport: v1alpha1.TransportTCP, Address: "10.0.0.1", Port: 4420}
)

// uuid of a thing in a test: n in the last digits.
func uuid(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012x", n) }

func id(n int) engine.ID { return engine.ID(uuid(n)) }

func planned(p v1alpha1.Portal) v1alpha1.PlannedPortal {
	return v1alpha1.PlannedPortal{Portal: p, MaxIOQueues: 8, QueueDepth: 128, InCapsuleDataSize: 4096}
}

// testNode with drives a and b and one portal.
func testNode() *v1alpha1.NvmfNode {
	return &v1alpha1.NvmfNode{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName, Generation: 3},
		Spec: v1alpha1.NvmfNodeSpec{Target: "fast", Plan: &v1alpha1.Plan{
			Engine:  v1alpha1.EngineNvmet,
			Portals: []v1alpha1.PlannedPortal{planned(tcp)},
			Drives:  []v1alpha1.PlannedDrive{{ID: "a"}, {ID: "b"}},
		}},
		Status: v1alpha1.NvmfNodeStatus{ObservedGeneration: 3},
	}
}

func testInventory() *v1alpha1.Inventory {
	return &v1alpha1.Inventory{Drives: []v1alpha1.Drive{
		{ID: "a", Name: "nvme0n1", SizeBytes: 100 * gib, Content: v1alpha1.ContentWeft},
		{ID: "b", Name: "nvme1n1", SizeBytes: 50 * gib, Content: v1alpha1.ContentWeft},
	}}
}

// volumeOf a replica, by its name: nothing but names tells them apart, so they differ.
func volumeOf(replica string) string { return "volume-of-" + replica }

// testVolume is the replica number n, of 10 GiB.
func testVolume(n int, change ...func(*v1alpha1.NvmfReplica)) *v1alpha1.NvmfReplica {
	v := &v1alpha1.NvmfReplica{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("v%d", n), Generation: 1},
		Spec: v1alpha1.NvmfReplicaSpec{
			Volume: v1alpha1.ReplicaOf{Name: volumeOf(fmt.Sprintf("v%d", n)), UUID: uuid(n)},
			UUID:   uuid(n), Target: "fast", Node: nodeName, Size: resource.MustParse("10Gi"),
			Connection: v1alpha1.Connection{Transports: []v1alpha1.TransportType{v1alpha1.TransportTCP}},
		},
	}
	for _, c := range change {
		c(v)
	}
	return v
}

func testSnapshot(n int, replica string, change ...func(*v1alpha1.NvmfSnapshot)) *v1alpha1.NvmfSnapshot {
	s := &v1alpha1.NvmfSnapshot{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("s%d", n), Generation: 1},
		Spec:       v1alpha1.NvmfSnapshotSpec{UUID: uuid(n), Volume: volumeOf(replica), Replica: replica, Node: nodeName},
	}
	for _, c := range change {
		c(s)
	}
	return s
}

func withHosts(nqns ...string) func(*v1alpha1.NvmfReplica) {
	return func(v *v1alpha1.NvmfReplica) {
		for _, nqn := range nqns {
			v.Spec.Hosts = append(v.Spec.Hosts, v1alpha1.VolumeHost{NQN: nqn, Node: "host", NodeUID: "1"})
		}
	}
}

func ofSize(size string) func(*v1alpha1.NvmfReplica) {
	return func(v *v1alpha1.NvmfReplica) { v.Spec.Size = resource.MustParse(size) }
}

func fromSnapshot(name string) func(*v1alpha1.NvmfReplica) {
	return func(v *v1alpha1.NvmfReplica) { v.Spec.Source = &v1alpha1.ReplicaSource{Snapshot: name} }
}

// said writes conditions as "Type=Status/Reason".
func said(conditions []metav1.Condition) map[string]string {
	m := map[string]string{}
	for _, c := range conditions {
		m[c.Type] = string(c.Status) + "/" + c.Reason
	}
	return m
}
