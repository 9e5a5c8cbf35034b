// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
)

const (
	nodeName = "node-1"
	gib      = 1 << 30
	overhead = v1alpha1.OverheadBytes
	hostA    = v1alpha1.HostNQNPrefix + "00000000-0000-4000-8000-00000000000a"
	hostB    = v1alpha1.HostNQNPrefix + "00000000-0000-4000-8000-00000000000b"
)

var (
	now  = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	tcp  = v1alpha1.Portal{Transport: v1alpha1.TransportTCP, Address: "10.0.0.1", Port: 4420}
	tcp2 = v1alpha1.Portal{Transport: v1alpha1.TransportTCP, Address: "10.0.0.1", Port: 4421}
	rdma = v1alpha1.Portal{Transport: v1alpha1.TransportRDMA, Address: "10.0.0.1", Port: 4420}
)

// uuid of a thing in a test: n in the last digits.
func uuid(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012x", n) }

func id(n int) engine.ID { return engine.ID(uuid(n)) }

// uid of the object of a thing in a test.
func uid(n int) types.UID { return types.UID(fmt.Sprintf("object-%d", n)) }

// acted on all that tests make, as it is.
func acted() Records {
	r := Records{Items: map[engine.ID]Record{}, Next: "next"}
	for n := range 30 {
		r.Items[id(n)] = Record{UID: uid(n), ResourceVersion: "7", Generation: 1}
	}
	return r
}

func planned(p v1alpha1.Portal) v1alpha1.PlannedPortal {
	return v1alpha1.PlannedPortal{Portal: p, MaxIOQueues: 8, QueueDepth: 128, InCapsuleDataSize: 4096}
}

func openedPortal(p v1alpha1.Portal) engine.Portal {
	return engine.Portal{Portal: p, QueueDepth: 128, InCapsuleDataBytes: 4096}
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
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("v%d", n), UID: uid(n), ResourceVersion: "7", Generation: 1},
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
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("s%d", n), UID: uid(n), ResourceVersion: "7", Generation: 1},
		Spec:       v1alpha1.NvmfSnapshotSpec{UUID: uuid(n), Volume: volumeOf(replica), Replica: replica, Node: nodeName},
	}
	for _, c := range change {
		c(s)
	}
	return s
}

func isCreatedOn(device string) func(*v1alpha1.NvmfReplica) {
	return func(v *v1alpha1.NvmfReplica) {
		v.Status.Device = device
		meta.SetStatusCondition(&v.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionCreated, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAsExpected})
	}
}

func recordedOn(device string) func(*v1alpha1.NvmfReplica) {
	return func(v *v1alpha1.NvmfReplica) { v.Status.Device = device }
}

func withHosts(nqns ...string) func(*v1alpha1.NvmfReplica) {
	return func(v *v1alpha1.NvmfReplica) {
		for _, nqn := range nqns {
			v.Spec.Hosts = append(v.Spec.Hosts, v1alpha1.VolumeHost{NQN: nqn})
		}
	}
}

func wasWritten(v *v1alpha1.NvmfReplica) { v.Status.Written = true }

func reportedHost(nqn string, blank bool) func(*v1alpha1.NvmfReplica) {
	return func(v *v1alpha1.NvmfReplica) {
		v.Status.Hosts = append(v.Status.Hosts, v1alpha1.AdmittedHost{NQN: nqn, Blank: blank})
	}
}

// isDeleting as CSI asked for it.
func isDeleting(v *v1alpha1.NvmfReplica) {
	deletedByHand(v)
	v.Spec.DeletionMark = string(v.UID)
}

// deletedByHand bears no mark.
func deletedByHand(v *v1alpha1.NvmfReplica) {
	at := metav1.NewTime(now)
	v.DeletionTimestamp = &at
	v.Finalizers = []string{v1alpha1.EngineFinalizer}
}

func ofSize(size string) func(*v1alpha1.NvmfReplica) {
	return func(v *v1alpha1.NvmfReplica) { v.Spec.Size = resource.MustParse(size) }
}

func fromVolume(name string) func(*v1alpha1.NvmfReplica) {
	return func(v *v1alpha1.NvmfReplica) { v.Spec.Source = &v1alpha1.ReplicaSource{Replica: name} }
}

func fromSnapshot(name string) func(*v1alpha1.NvmfReplica) {
	return func(v *v1alpha1.NvmfReplica) { v.Spec.Source = &v1alpha1.ReplicaSource{Snapshot: name} }
}

func overRDMA(v *v1alpha1.NvmfReplica) {
	v.Spec.Connection.Transports = []v1alpha1.TransportType{v1alpha1.TransportRDMA}
}

func overBoth(v *v1alpha1.NvmfReplica) {
	v.Spec.Connection.Transports = []v1alpha1.TransportType{v1alpha1.TransportTCP, v1alpha1.TransportRDMA}
}

func snapshotDeleting(s *v1alpha1.NvmfSnapshot) {
	snapshotDeletedByHand(s)
	s.Spec.DeletionMark = string(s.UID)
}

func snapshotDeletedByHand(s *v1alpha1.NvmfSnapshot) {
	at := metav1.NewTime(now)
	s.DeletionTimestamp = &at
	s.Finalizers = []string{v1alpha1.EngineFinalizer}
}

func snapshotCreated(s *v1alpha1.NvmfSnapshot) {
	meta.SetStatusCondition(&s.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionCreated, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAsExpected})
}

// openPools a and b.
func openPools() []engine.Pool {
	return []engine.Pool{
		{Device: "a", Path: "/dev/nvme0n1", TotalBytes: 100 * gib, FreeBytes: 90 * gib},
		{Device: "b", Path: "/dev/nvme1n1", TotalBytes: 50 * gib, FreeBytes: 50 * gib},
	}
}

// engineVolume of testVolume number n.
func engineVolume(n int, pool string) engine.Volume {
	return engine.Volume{ID: id(n), Pool: pool, SizeBytes: 10*gib + overhead}
}

// subsystem of testVolume number n.
func subsystem(n int) string { return testVolume(n).CurrentSubsystem() }

// nameOf a subsystem: its volume's, with the attachment if that is not the one of subsystem.
func nameOf(nqn string) string {
	return strings.TrimSuffix(regexp.MustCompile(`00000000-.*$`).ReplaceAllString(nqn[len(v1alpha1.NQNPrefix):], ""), ":")
}

// exported is the export that Decide wants for a volume of testVolume.
func exported(n int, hosts ...string) engine.Export {
	e := engine.Export{
		NQN: subsystem(n), Serial: id(n).NGUID()[:20], Model: "weft", MaxIOQueues: 8,
		Namespaces: []engine.Namespace{{NSID: 1, Volume: id(n)}}, Hosts: hosts,
	}
	if len(hosts) > 0 {
		e.Portals = []v1alpha1.Portal{tcp}
	}
	return e
}

// former export of the volume, for an attachment that has ended.
func former(n int, hosts ...string) engine.Export {
	e := exported(n, hosts...)
	e.NQN = v1alpha1.SubsystemNQN(testVolume(n).Name, "former")
	return e
}

// quietNode has a node that serves, and nothing on it.
func quietNode() Observed {
	return Observed{
		Now: now, Refresh: true, Node: testNode(), Inventory: testInventory(), Attempts: Attempts{}, Records: acted(),
		Target: Target{
			Info:  engine.Info{Type: v1alpha1.EngineNvmet, Version: "6.12.0"},
			State: engine.State{Pools: openPools(), Portals: []engine.Portal{openedPortal(tcp)}},
		},
	}
}

// there is testVolume number 1 on pool a, and exported so.
func there(s *Observed, v *v1alpha1.NvmfReplica, e ...engine.Export) {
	s.Volumes = append(s.Volumes, v)
	holds(engineVolume(1, "a"))(s)
	s.Target.State.Exports = e
}

// written lists operations in words, in the order in which they are done.
func written(o Operations) []string {
	var all []string
	add := func(verb Verb, what string) { all = append(all, string(verb)+" "+what) }
	for _, d := range o.OpenPools {
		add(VerbOpenPool, d.ID+" "+d.Path+d.PCIAddress)
	}
	for _, device := range o.ForgetPools {
		add(VerbForgetPool, device)
	}
	for _, nqn := range o.Unexport {
		add(VerbUnexport, nameOf(nqn))
	}
	for _, i := range o.DeleteVolumes {
		add(VerbDeleteVolume, short(i))
	}
	for _, i := range o.DeleteSnapshots {
		add(VerbDeleteSnapshot, short(i))
	}
	for _, s := range o.CreateSnapshots {
		add(VerbCreateSnapshot, short(s.ID)+" of "+short(s.Volume))
	}
	for _, v := range o.CreateVolumes {
		what := fmt.Sprintf("%s on %s", short(v.ID), v.Pool)
		if source := v.Source.Snapshot + v.Source.Volume; source != "" {
			what += " from " + short(source)
		}
		add(VerbCreateVolume, what)
	}
	for _, v := range o.GrowVolumes {
		add(VerbGrowVolume, fmt.Sprintf("%s to %dGi", short(v.ID), v.SizeBytes/gib))
	}
	for _, e := range o.Export {
		add(VerbExport, fmt.Sprintf("%s to %d", nameOf(e.NQN), len(e.Hosts)))
	}
	for _, v := range o.SetQoS {
		add(VerbSetQoS, short(v.ID)+" "+wordsOfQoS(v.QoS))
	}
	for _, p := range o.ClosePortals {
		add(VerbClosePortal, PortalKey(p))
	}
	for _, p := range o.OpenPortals {
		add(VerbOpenPortal, PortalKey(p.Portal))
	}
	return all
}

// short is the number in a test's UUID.
func short(i engine.ID) string {
	var n int
	if _, err := fmt.Sscanf(string(i[24:]), "%x", &n); err != nil {
		return string(i)
	}
	return fmt.Sprint(n)
}

// said writes conditions as "Type=Status/Reason".
func said(conditions []metav1.Condition) map[string]string {
	m := map[string]string{}
	for _, c := range conditions {
		m[c.Type] = string(c.Status) + "/" + c.Reason
	}
	return m
}
