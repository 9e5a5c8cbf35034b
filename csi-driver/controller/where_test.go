// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"slices"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	. "github.com/onsi/gomega"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// drive of a node: its ID, its class, and what it has room for.
type drive struct {
	id, class string
	bytes     int64
}

// newDrives is a target with device classes, and with a node for each list of drives.
func newDrives(t testing.TB, classes []string, nodes ...[]drive) storage {
	t.Helper()
	st := newStorageOf(t, func(target *v1alpha1.NvmfTarget) {
		target.Spec.Devices = v1alpha1.Devices{}
		for _, c := range classes {
			selector := &v1alpha1.DeviceSelector{Models: []string{c + "*"}}
			target.Spec.Devices.Classes = append(target.Spec.Devices.Classes, v1alpha1.DeviceClass{Name: c, Selector: selector})
		}
	}, len(nodes), 0)
	for i, drives := range nodes {
		name := st.nodes[i]
		silence(t, name)
		var planned []v1alpha1.PlannedDrive
		var pools []v1alpha1.PoolStatus
		for _, d := range drives {
			agents[name].AddDrive(d.id, d.bytes)
			planned = append(planned, v1alpha1.PlannedDrive{ID: d.id, DeviceClass: d.class})
			pools = append(pools, v1alpha1.PoolStatus{Device: d.id, DeviceClass: d.class, Ready: true, Total: resource.NewQuantity(d.bytes, resource.BinarySI)})
		}
		setPlan(t, name, func(p *v1alpha1.Plan) { p.Drives = planned })
		setNodeStatus(t, name, func(s *v1alpha1.NvmfNodeStatus) { s.Pools = pools })
		agents[name].Start(t.Context())
	}
	return st
}

func ofClass(st storage, name, class string, size int64) *csi.CreateVolumeRequest {
	req := createRequest(st, name, size)
	if class != "" {
		req.Parameters["deviceClass"] = class
	}
	return req
}

func capacityOf(t testing.TB, s *Service, parameters map[string]string) *csi.GetCapacityResponse {
	t.Helper()
	resp, err := s.GetCapacity(t.Context(), &csi.GetCapacityRequest{Parameters: parameters})
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// A volume, its growth and its copies stay on drives of the class that was asked for, though others have more room.
func TestDeviceClasses(t *testing.T) {
	st := newDrives(t, []string{"tlc", "qlc"},
		[]drive{{"tlc0", "tlc", 4 * gi}, {"qlc0", "qlc", 40 * gi}},
		[]drive{{"tlc1", "tlc", 8 * gi}, {"qlc1", "qlc", 20 * gi}})
	s, _ := newService(t)
	seen(t, s, st)
	for class, want := range map[string]struct{ free, largest int64 }{
		"":    {72*gi - 4*overhead, 40*gi - overhead},
		"tlc": {12*gi - 2*overhead, 8*gi - overhead},
		"qlc": {60*gi - 2*overhead, 40*gi - overhead},
	} {
		resp := capacityOf(t, s, ofClass(st, "", class, 0).Parameters)
		if resp.AvailableCapacity != want.free || resp.MaximumVolumeSize.Value != want.largest {
			t.Errorf("class %q: got %v, want %+v", class, resp, want)
		}
	}
	on := func(name, class, node, device string) string {
		t.Helper()
		req := ofClass(st, own(t, name), class, gi)
		for range 2 { // asked again, it is the same
			if _, err := s.CreateVolume(within(t, enough), req); err != nil {
				t.Fatal(err)
			}
		}
		vol := replica(t, req.Name)
		if vol.Spec.Node != node || vol.Status.Device != device || vol.Spec.DeviceClass != class {
			t.Errorf("%s: on %s of %s, class %q", name, vol.Status.Device, vol.Spec.Node, vol.Spec.DeviceClass)
		}
		return req.Name
	}
	either := on("any", "", st.nodes[0], "qlc0")
	on("dense", "qlc", st.nodes[0], "qlc0")
	fast := on("fast", "tlc", st.nodes[1], "tlc1")

	_, err := s.CreateVolume(within(t, enough), ofClass(st, fast, "qlc", gi))
	expectError(t, err, codes.AlreadyExists, `deviceClass is "tlc", not "qlc"`)
	_, err = s.ControllerExpandVolume(within(t, enough), &csi.ControllerExpandVolumeRequest{VolumeId: fast, CapacityRange: &csi.CapacityRange{RequiredBytes: 9 * gi}})
	expectError(t, err, codes.OutOfRange, "tlc1", "has space for at most")
	_, err = s.CreateVolume(within(t, enough), ofClass(st, own(t, "large"), "tlc", 9*gi))
	expectError(t, err, codes.ResourceExhausted, "has enough space for a volume of 9Gi of device class tlc")
	_, err = s.CreateVolume(within(t, enough), ofClass(st, own(t, "mlc"), "mlc", gi))
	expectError(t, err, codes.InvalidArgument, `has no device class "mlc"; use tlc or qlc`)

	copyOf := func(name, source, class string) (*v1alpha1.NvmfReplica, error) {
		t.Helper()
		req := ofClass(st, own(t, name), class, gi)
		req.VolumeContentSource = contentSource(&v1alpha1.VolumeSource{Volume: source})
		_, err := s.CreateVolume(within(t, enough), req)
		return replica(t, req.Name), err
	}
	for _, c := range []struct{ name, source, class, device string }{
		{"copy-fast", fast, "tlc", "tlc1"}, {"copy-fast-any", fast, "", "tlc1"}, {"copy-any", either, "qlc", "qlc0"},
	} {
		if vol, err := copyOf(c.name, c.source, c.class); err != nil || vol.Status.Device != c.device {
			t.Errorf("%s: got %v, %v", c.name, vol, err)
		}
	}
	_, err = copyOf("copy-other", fast, "qlc")
	expectError(t, err, codes.FailedPrecondition, "the source is on drive tlc1, which has device class tlc",
		"use a StorageClass with deviceClass tlc, or without deviceClass")
}

// A target without classes has none to ask for.
func TestNoDeviceClasses(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	_, err := s.CreateVolume(within(t, enough), ofClass(st, own(t, "v"), "qlc", gi))
	expectError(t, err, codes.InvalidArgument, "has no device classes; remove deviceClass, or set devices.classes of the target")
}

// An agent whose drives of the class are gone is one without room: another node is tried.
func TestDeviceClassThatTheNodeNoLongerHas(t *testing.T) {
	st := newDrives(t, []string{"tlc"}, []drive{{"tlc0", "tlc", 40 * gi}}, []drive{{"tlc1", "tlc", 4 * gi}})
	setPlan(t, st.nodes[0], func(p *v1alpha1.Plan) { p.Drives[0].DeviceClass = "" })
	s, _ := newService(t)
	seen(t, s, st)
	req := ofClass(st, own(t, "v"), "tlc", gi)
	if _, err := s.CreateVolume(within(t, enough), req); err != nil {
		t.Fatal(err)
	}
	if got := replica(t, req.Name).Spec.Node; got != st.nodes[1] {
		t.Errorf("made on %s", got)
	}
}

// newClaim makes a claim for whose pod the scheduler has chosen a node, or none.
func newClaim(t testing.TB, name, node string) *corev1.PersistentVolumeClaim {
	t.Helper()
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: own(t, name), Annotations: map[string]string{}},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
	if node != "" {
		claim.Annotations[selectedNodeAnnotation] = node
	}
	create(t, claim)
	return claim
}

// A class may prefer the node of the pod that a claim waits for, or its zone, by the label that it names.
func TestPlacement(t *testing.T) {
	const rack = "example.com/rack"
	st := newStorageOf(t, func(*v1alpha1.NvmfTarget) {}, 4, 10*gi)
	for i, labels := range []map[string]string{
		{corev1.LabelTopologyZone: "east", rack: "1"}, {corev1.LabelTopologyZone: "east", rack: "2"}, {corev1.LabelTopologyZone: "west", rack: "1"}, {corev1.LabelTopologyZone: "west", rack: "2"},
	} {
		create(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: st.nodes[i], Labels: labels}})
	}
	pods := own(t, "pods") // a node that serves nothing
	create(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: pods, Labels: map[string]string{corev1.LabelTopologyZone: "west", rack: "1"}}})
	// The emptiest node is none that any of them prefers.
	for i, bytes := range []int64{10 * gi, 20 * gi, 11 * gi, 12 * gi} {
		setNodeStatus(t, st.nodes[i], func(s *v1alpha1.NvmfNodeStatus) { s.Pools[0].Total = resource.NewQuantity(bytes, resource.BinarySI) })
	}
	s, _ := newService(t)
	seen(t, s, st)
	for name, tc := range map[string]struct {
		placement, label, node string
		want                   int
	}{
		"spread":          {"", "", st.nodes[0], 1},
		"same-node":       {"PreferSameNode", "", st.nodes[0], 0},
		"same-zone":       {"PreferSameZone", "", st.nodes[2], 3},
		"node-serves-not": {"PreferSameNode", "", pods, 3},
		"rack":            {"PreferSameZone", rack, pods, 2},
		"bound-at-once":   {"PreferSameNode", "", "", 1},
	} {
		claim := newClaim(t, name, tc.node)
		req := createRequest(st, own(t, "v-"+name), 4<<20)
		req.VolumeCapabilities = []*csi.VolumeCapability{block(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER)}
		req.Parameters["csi.storage.k8s.io/pvc/name"], req.Parameters["csi.storage.k8s.io/pvc/namespace"] = claim.Name, claim.Namespace
		if tc.placement != "" {
			req.Parameters["placement"] = tc.placement
		}
		if tc.label != "" {
			req.Parameters["zoneLabel"] = tc.label
		}
		if _, err := s.CreateVolume(within(t, enough), req); err != nil {
			t.Fatal(err)
		}
		if got := slices.Index(st.nodes, replica(t, req.Name).Spec.Node); got != tc.want {
			t.Errorf("%s: on node %d, want %d", name, got, tc.want)
		}
	}
	req := createRequest(st, own(t, "gone"), gi)
	req.Parameters["placement"], req.Parameters["csi.storage.k8s.io/pvc/name"], req.Parameters["csi.storage.k8s.io/pvc/namespace"] = "PreferSameNode", own(t, "gone"), "default"
	if _, err := s.CreateVolume(within(t, enough), req); err != nil {
		t.Errorf("a claim that is gone: %v", err)
	}
}

// A cordoned node, be it by weft's own field or by Kubernetes', gets no new volumes, and keeps and grows those it has.
func TestCordoned(t *testing.T) {
	st := newStorage(t, 2, 10*gi)
	kube := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: st.nodes[0]}}
	create(t, kube)
	s, _ := newService(t)
	seen(t, s, st)
	first := newVolume(t, s, st, "first")
	if got := replica(t, first).Spec.Node; got != st.nodes[0] {
		t.Fatalf("made on %s", got)
	}
	free := func() int64 { return capacityOf(t, s, map[string]string{"target": st.target}).AvailableCapacity }
	all := free()
	cordon := func(obj client.Object, is bool) {
		t.Helper()
		patch := client.RawPatch(client.Merge.Type(), []byte(`{"spec":{"unschedulable":null}}`))
		if is {
			patch = client.RawPatch(client.Merge.Type(), []byte(`{"spec":{"unschedulable":true}}`))
		}
		if err := api.Patch(t.Context(), obj, patch); err != nil {
			t.Fatal(err)
		}
	}
	nvmf := &v1alpha1.NvmfNode{ObjectMeta: metav1.ObjectMeta{Name: st.nodes[0]}}
	for _, c := range []struct {
		obj  client.Object
		says string
	}{{kube, "kubectl uncordon " + st.nodes[0]}, {nvmf, "kubectl weft uncordon " + st.nodes[0]}} {
		cordon(c.obj, true)
		NewWithT(t).Eventually(free).WithTimeout(30 * time.Second).Should(Equal(10*gi - overhead))
		size := volume(t, first).Spec.Size
		copied := createRequest(st, own(t, "copy"), size.Value())
		copied.VolumeContentSource = contentSource(&v1alpha1.VolumeSource{Volume: first})
		_, err := s.CreateVolume(within(t, enough), copied)
		expectError(t, err, codes.FailedPrecondition, c.says)
		if _, err := s.CreateVolume(within(t, enough), createRequest(st, first, size.Value())); err != nil {
			t.Errorf("asked again: %v", err)
		}
		if _, err := s.ControllerExpandVolume(within(t, enough), &csi.ControllerExpandVolumeRequest{VolumeId: first, CapacityRange: &csi.CapacityRange{RequiredBytes: size.Value() + gi}}); err != nil {
			t.Errorf("growth: %v", err)
		}
		all -= gi
		if _, err := s.CreateSnapshot(within(t, enough), &csi.CreateSnapshotRequest{Name: own(t, "snap"), SourceVolumeId: first}); err != nil {
			t.Errorf("snapshot: %v", err)
		}
		cordon(c.obj, false)
		NewWithT(t).Eventually(free).WithTimeout(30 * time.Second).Should(Equal(all))
	}
	cordon(kube, true)
	NewWithT(t).Eventually(free).WithTimeout(30 * time.Second).Should(Equal(10*gi - overhead))
	for _, name := range []string{"second", "third", "fourth"} {
		if got := replica(t, newVolume(t, s, st, name)).Spec.Node; got != st.nodes[1] {
			t.Errorf("made on %s", got)
		}
	}
}
