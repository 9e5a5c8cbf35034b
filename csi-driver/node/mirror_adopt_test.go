// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"os"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	. "github.com/onsi/gomega"
	"google.golang.org/grpc/codes"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
)

// The replica's object does not say at this moment that this node is admitted (it was created again by the controller,
// or its target restarts): the volume goes on being used.
func TestAdoptionWaitsUntilThisNodeIsAdmitted(t *testing.T) {
	s, m := setUpPlain(t)
	first := s.legs["pvc-1-r1"]
	must(t, s.stage(blockCapability()))
	before := s.mounts()
	m.mirrored(first)
	editReplica(t, s.api, first.name, func(r *v1alpha1.NvmfReplica) { r.Status.Hosts = nil })
	want(t, s.service.MirrorChanged(t.Context(), vol), codes.Unavailable, "does not say that this one is admitted")
	if s.processes.wasKilled() {
		t.Error("the volume's users were killed")
	}
	if got := s.controllers(first.name); len(got) == 0 {
		t.Error("its connections are gone")
	}
	s.wantMounts(before)
}

// The keys of a volume are rotated when it becomes mirrored: its mirror is made once one host is left. It knows the leg
// by the subsystem, which stayed the same.
func TestAdoptionOfAVolumeWhoseKeysAreRotated(t *testing.T) {
	s, m := setUpPlain(t)
	first := s.legs["pvc-1-r1"]
	must(t, s.stage(blockCapability()))
	before := s.mounts()
	s.list(first.name, attachment, secondIdentity)
	m.mirrored(first)
	want(t, s.service.MirrorChanged(t.Context(), vol), codes.Unavailable, "does not say that this one is admitted")
	s.clock.Step(time.Hour)
	must(t, s.service.MendPaths(t.Context()))
	want(t, s.service.MirrorChanged(t.Context(), vol), codes.Unavailable, "does not say that this one is admitted")
	s.list(first.name, secondIdentity)
	must(t, s.service.MirrorChanged(t.Context(), vol))
	if is, _ := mirror.Get(m.record(), first.name); is.Identity != first.identity {
		t.Errorf("the mirror knows the leg as %s", is.Identity)
	}
	if got := s.controllers(first.name); len(got) != 1 {
		t.Errorf("controllers %v", got)
	}
	s.wantMounts(before)
	must(t, s.unstage())
}

// setUpGrown is setUpPlain with a staged volume that has become mirrored, and grew before that was taken over.
func setUpGrown(t *testing.T) (*mirrorSuite, moving) {
	t.Helper()
	s, m := setUpPlain(t)
	must(t, s.stage(blockCapability()))
	m.mirrored(s.legs["pvc-1-r1"])
	s.double(s.legs["pvc-1-r1"])
	must(t, s.expand())
	return s, m
}

// The volume grows between its conversion and its adoption, and a member that is to join is smaller still.
func TestAdoptionOfADeviceThatGrew(t *testing.T) {
	s, m := setUpGrown(t)
	second := s.legs["pvc-1-r2"]
	// The second is listed; its node has no room for the new size yet. The node plugin is restarted, or its watch
	// begins again.
	must(t, s.api.Create(t.Context(), second.object(size)))
	m.editVolume(func(v *v1alpha1.NvmfVolume) { v.Spec.Members = append(v.Spec.Members, second.member()) })
	must(t, s.service.MirrorChanged(t.Context(), vol))
	// Its node has room again.
	editReplica(t, s.api, second.name, func(r *v1alpha1.NvmfReplica) { r.Spec.Size.Set(2 * size) })
	if err := s.service.MirrorChanged(t.Context(), vol); err != nil {
		t.Errorf("adoption, once all are large: %v", err)
	}
	must(t, s.expand())
	if err := s.stage(blockCapability()); err != nil {
		t.Errorf("NodeStage, repeated: %v", err)
	}
	must(t, s.unstage())
	s.service.LeaveMirrors()
	if err := s.stage(blockCapability()); err != nil {
		t.Errorf("stage again: %v", err)
	}
	all, err := s.service.Mapper.Of(volumeUUID)
	must(t, err)
	for _, d := range all {
		if d.SizeBytes < 2*size {
			t.Errorf("%s has %d bytes, but had %d when it was used last", d.Name, d.SizeBytes, 2*size)
		}
	}
}

// As before, and then the volume is moved, and expanded again: what the pod wrote behind the array's end is still
// there.
func TestWhatWasWrittenBeforeTheAdoptionIsCopied(t *testing.T) {
	s, m := setUpGrown(t)
	first, second := s.legs["pvc-1-r1"], s.legs["pvc-1-r2"]
	f, err := os.OpenFile(s.kernel.Backing(first.nguid()), os.O_RDWR, 0)
	must(t, err)
	_, err = f.WriteAt([]byte("the pod's"), size+size/2)
	must(t, err)
	must(t, f.Close())
	must(t, s.api.Create(t.Context(), second.object(size)))
	m.editVolume(func(v *v1alpha1.NvmfVolume) { v.Spec.Members = append(v.Spec.Members, second.member()) })
	must(t, s.service.MirrorChanged(t.Context(), vol))
	must(t, s.unstage())
	s.service.LeaveMirrors()
	must(t, s.stage(blockCapability()))
	second.identity = "11111111-2222-4333-8444-555555555555"
	s.double(second)
	editReplica(t, s.api, second.name, second.admitted(true))
	m.editMirror(func(r mirror.Record) (mirror.Record, error) { return mirror.Add(r, second.replica(), m.now()) })
	s.Eventually(m.stateOf(second)).Should(Equal(v1alpha1.MemberInSync))
	must(t, s.expand())
	data, err := os.ReadFile(s.kernel.Backing(second.nguid()))
	must(t, err)
	if len(data) < 2*size || string(data[size+size/2:size+size/2+9]) != "the pod's" {
		t.Errorf("%s is in sync by the record, and lacks what the pod wrote (%d bytes); record %s", second.name, len(data), mirror.String(m.record()))
	}
}

// A volume with one replica, that has a mirror because it was moved, can be expanded as before.
func TestMirrorOfOneReplicaGrows(t *testing.T) {
	s, m := setUpPlain(t)
	first := s.legs["pvc-1-r1"]
	must(t, s.stage(blockCapability()))
	m.mirrored(first)
	must(t, s.service.MirrorChanged(t.Context(), vol))
	s.double(first)
	must(t, s.expand())
	must(t, s.unstage())
	must(t, s.stage(blockCapability()))
	must(t, s.expand())
}

// A volume with two replicas, of which one was moved, can be expanded as before.
func TestMovedMirrorGrows(t *testing.T) {
	s := setUpMirror(t)
	m := moving{t, s.api, s.clock.Now, s.service.MirrorChanged}
	s.legs["pvc-1-r3"] = &leg{name: "pvc-1-r3", uuid: "0a0b0c0d-0e0f-4001-8203-000000000003", portal: "10.0.0.3"}
	third := s.legs["pvc-1-r3"]
	must(t, s.stage(blockCapability()))
	m.add(third, size)
	s.admit(third.name, true)
	s.Eventually(m.stateOf(third)).Should(Equal(v1alpha1.MemberInSync))
	m.retire(s, s.legs["pvc-1-r1"])
	s.double(s.legs["pvc-1-r2"])
	s.double(third)
	if err := s.expand(); err != nil {
		t.Errorf("expand, with all of %s: %v", mirror.String(m.record()), err)
	}
}

// The record is there before the volume says that it is mirrored: the change is told again until it has been taken
// over.
func TestAdoptionWaitsUntilTheVolumeIsMirrored(t *testing.T) {
	s, m := setUpPlain(t)
	must(t, s.stage(blockCapability()))
	m.recorded(s.legs["pvc-1-r1"])
	want(t, s.service.MirrorChanged(t.Context(), vol), codes.Unavailable, "is not mirrored yet")
	m.editVolume(func(v *v1alpha1.NvmfVolume) { v.Spec.Mirrored = true })
	must(t, s.service.MirrorChanged(t.Context(), vol))
	if all, err := s.kernel.Mirrors().All(); err != nil || len(all) != 1 {
		t.Errorf("the mirrored volume has arrays %v: %v", all, err)
	}
}

// The API server is restored to before the volume was mirrored, and the kubelet stages it again: it stays as it is.
func TestARestoredPlainVolumeKeepsItsDevice(t *testing.T) {
	s, m := setUpPlain(t)
	must(t, s.stage(blockCapability()))
	m.mirrored(s.legs["pvc-1-r1"])
	must(t, s.service.MirrorChanged(t.Context(), vol))
	before := s.mounts()
	must(t, s.api.Delete(t.Context(), &v1alpha1.NvmfMirror{ObjectMeta: metav1.ObjectMeta{Name: vol}}))
	m.editVolume(func(v *v1alpha1.NvmfVolume) { v.Spec.Mirrored = false })
	want(t, s.stage(blockCapability()), codes.FailedPrecondition, "restored to an earlier state")
	s.wantMounts(before)
	all, err := s.service.Mapper.Of(volumeUUID)
	must(t, err)
	if len(all) != 1 || all[0].Lost() {
		t.Errorf("the device that is in use is %+v", all)
	}
}

// double the size of a replica.
func (s *mirrorSuite) double(l *leg) {
	s.Helper()
	s.serveTo(l, 2*size, l.identity)
	editReplica(s, s.api, l.name, func(r *v1alpha1.NvmfReplica) { r.Spec.Size.Set(2 * size) })
}

// expand the volume to twice its size.
func (s *mirrorSuite) expand() error {
	_, err := s.NodeExpandVolume(s.Context(), &csi.NodeExpandVolumeRequest{
		VolumeId: vol, VolumePath: s.path("staging"), StagingTargetPath: s.path("staging"), CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * size},
	})
	return err
}
