// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/controller/internal/parameters"
	"github.com/weft-storage/weft/csi-driver/node/nodetest"
)

func encryptedRequest(st storage, name string, size int64) *csi.CreateVolumeRequest {
	r := createRequest(st, name, size)
	r.Parameters["encrypted"] = "true"
	return r
}

// newEncrypted makes an encrypted volume of 1Gi.
func newEncrypted(t testing.TB, s *Service, st storage, name string) string {
	t.Helper()
	resp, err := s.CreateVolume(within(t, enough), encryptedRequest(st, own(t, name), gi))
	if err != nil {
		t.Fatal(err)
	}
	return resp.Volume.VolumeId
}

// reportEncryption does what the node plugin does that has looked whether its node can use encrypted volumes.
func reportEncryption(t *testing.T, node string, status corev1.ConditionStatus) {
	t.Helper()
	w := nodetest.ConditionWriter{
		Client: api, Node: node, UID: types.UID(uidOf(t, node)), Clock: clock.RealClock{}, Type: v1alpha1.ConditionEncryptionUnavailable, FieldManager: "test-encryption",
	}
	reason, message := v1alpha1.ReasonAsExpected, "it can"
	if status == corev1.ConditionTrue {
		reason, message = v1alpha1.ReasonModuleMissing, "load kernel module dm_crypt"
	}
	if err := w.Write(t.Context(), status, reason, message); err != nil {
		t.Fatal(err)
	}
}

// A pod sees at least what was asked for: what is stored is larger by the LUKS header, from the beginning and when the
// volume grows. Whoever asks is told what pods see.
func TestSizesOfAnEncryptedVolume(t *testing.T) {
	const header = v1alpha1.LUKSHeaderBytes
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	req := encryptedRequest(st, own(t, "v"), gi)
	for range 2 { // as often as the provisioner asks
		resp, err := s.CreateVolume(within(t, enough), req)
		if err != nil {
			t.Fatal(err)
		}
		if got := resp.Volume.CapacityBytes; got != gi {
			t.Errorf("the answer says %d bytes", got)
		}
	}
	id := req.Name
	v := volume(t, id)
	if v.Spec.Encryption != v1alpha1.EncryptionLUKS2 || v.Spec.Size.Value() != gi+header {
		t.Errorf("encryption %q, size %s", v.Spec.Encryption, &v.Spec.Size)
	}
	grown, err := s.ControllerExpandVolume(within(t, enough), &csi.ControllerExpandVolumeRequest{VolumeId: id, CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * gi}})
	if err != nil {
		t.Fatal(err)
	}
	if size := volume(t, id).Spec.Size; grown.CapacityBytes != 2*gi || size.Value() != 2*gi+header {
		t.Errorf("grown to %d, and %s are stored", grown.CapacityBytes, &size)
	}
	got, err := s.ControllerGetVolume(within(t, enough), &csi.ControllerGetVolumeRequest{VolumeId: id})
	if err != nil || got.Volume.CapacityBytes != 2*gi {
		t.Errorf("GetVolume answers %v, %v", got, err)
	}
	plain, err := s.GetCapacity(within(t, enough), &csi.GetCapacityRequest{Parameters: map[string]string{"target": st.target}})
	if err != nil {
		t.Fatal(err)
	}
	encrypted, err := s.GetCapacity(within(t, enough), &csi.GetCapacityRequest{Parameters: map[string]string{"target": st.target, "encrypted": "true", "csi.storage.k8s.io/node-stage-secret-name": "x"}})
	if err != nil || encrypted.MaximumVolumeSize.Value != plain.MaximumVolumeSize.Value-header {
		t.Errorf("the largest volume has %v, and the largest encrypted one %v: %v", plain, encrypted, err)
	}
}

// A copy is encrypted if and only if its source is, and has its size.
func TestCopiesOfEncryptedVolumes(t *testing.T) {
	st := newStorage(t, 1, 20*gi)
	s, _ := newService(t)
	seen(t, s, st)
	sources := map[string]string{"true": newEncrypted(t, s, st, "encrypted"), "false": newVolume(t, s, st, "plain")}
	for encrypted, source := range sources {
		snap, err := s.CreateSnapshot(within(t, enough), &csi.CreateSnapshotRequest{Name: own(t, "snap-"+encrypted), SourceVolumeId: source})
		if err != nil {
			t.Fatal(err)
		}
		if snap.Snapshot.SizeBytes != gi {
			t.Errorf("encrypted %s: the snapshot has %d bytes", encrypted, snap.Snapshot.SizeBytes)
		}
		for kind, content := range map[string]*csi.VolumeContentSource{
			"clone":   contentSource(&v1alpha1.VolumeSource{Volume: source}),
			"restore": contentSource(&v1alpha1.VolumeSource{Snapshot: snap.Snapshot.SnapshotId}),
		} {
			for asked := range sources {
				req := createRequest(st, own(t, kind+encrypted+asked), gi)
				req.Parameters["encrypted"], req.VolumeContentSource = asked, content
				resp, err := s.CreateVolume(within(t, enough), req)
				if asked != encrypted {
					expectError(t, err, codes.InvalidArgument, "encrypted", "use a StorageClass")
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				if resp.Volume.CapacityBytes != gi {
					t.Errorf("encrypted %s: the %s has %d bytes", encrypted, kind, resp.Volume.CapacityBytes)
				}
			}
		}
	}
}

// A class that was deleted and created again as an encrypting one leaves the volumes that exist as they are.
func TestClassThatBecomesAnEncryptingOne(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	id := newVolume(t, s, st, "v")
	_, err := s.CreateVolume(within(t, enough), encryptedRequest(st, id, gi))
	expectError(t, err, codes.AlreadyExists, "encrypted is false, not true")
	if e := volume(t, id).Spec.Encryption; e != "" {
		t.Errorf("encryption %q", e)
	}
	publish(t, s, id, newHost(t, "host")) // as before
}

// A volume that nobody could open is not made: the class is asked for its Secret, which the provisioner does not pass
// on.
func TestEncryptingClassWithoutASecret(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	name := own(t, "v")
	class := &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: own(t, "class")}, Provisioner: v1alpha1.DriverName,
		Parameters: map[string]string{"target": st.target, "encrypted": "true", parameters.StageSecretName: "key"},
	}
	create(t, class)
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: own(t, "claim")}, Spec: corev1.PersistentVolumeClaimSpec{
		StorageClassName: &class.Name, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
	}}
	create(t, claim)
	req := encryptedRequest(st, name, gi)
	req.Parameters["csi.storage.k8s.io/pvc/name"], req.Parameters["csi.storage.k8s.io/pvc/namespace"] = claim.Name, claim.Namespace
	_, err := s.CreateVolume(within(t, enough), req)
	expectError(t, err, codes.InvalidArgument, "csi.storage.k8s.io/node-stage-secret-namespace is missing")

	complete := class.DeepCopy()
	complete.ObjectMeta = metav1.ObjectMeta{Name: own(t, "complete")}
	complete.Parameters[parameters.StageSecretNamespace] = "keys"
	create(t, complete)
	second := claim.DeepCopy()
	second.ObjectMeta = metav1.ObjectMeta{Namespace: claim.Namespace, Name: own(t, "second")}
	second.Spec.StorageClassName = &complete.Name
	create(t, second)
	req.Parameters["csi.storage.k8s.io/pvc/name"] = second.Name
	if _, err := s.CreateVolume(within(t, enough), req); err != nil {
		t.Fatal(err)
	}
}

// An encrypted volume is attached only where a node plugin says that it can use it: an earlier one would not encrypt.
func TestPublishOfAnEncryptedVolume(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	id, node := newEncrypted(t, s, st, "v"), newHost(t, "host")
	_, err := s.ControllerPublishVolume(within(t, enough), publishRequest(id, node))
	expectError(t, err, codes.Unavailable, id, node, "did not report condition WeftEncryptionUnavailable")
	reportEncryption(t, node, corev1.ConditionTrue)
	_, err = s.ControllerPublishVolume(within(t, enough), publishRequest(id, node))
	expectError(t, err, codes.Unavailable, "WeftEncryptionUnavailable (KernelModuleMissing: load kernel module dm_crypt)")
	publish(t, s, newVolume(t, s, st, "plain"), node)
	if hosts := volume(t, id).Spec.Attachments; len(hosts) != 0 {
		t.Errorf("hosts: %v", hosts)
	}
	reportEncryption(t, node, corev1.ConditionFalse)
	publish(t, s, id, node)
	reportEncryption(t, node, corev1.ConditionTrue)
	publish(t, s, id, node) // it is attached already
}

// Several nodes that write could each make a LUKS header.
func TestEncryptedVolumeIsNotShared(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	shared := block(csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER)
	req := encryptedRequest(st, own(t, "shared"), gi)
	req.VolumeCapabilities = []*csi.VolumeCapability{shared}
	_, err := s.CreateVolume(within(t, enough), req)
	expectError(t, err, codes.InvalidArgument, "cannot be written by several nodes")
	id, node := newEncrypted(t, s, st, "v"), newHost(t, "host")
	reportEncryption(t, node, corev1.ConditionFalse)
	valid, err := s.ValidateVolumeCapabilities(within(t, enough), &csi.ValidateVolumeCapabilitiesRequest{VolumeId: id, VolumeCapabilities: []*csi.VolumeCapability{shared}})
	if err != nil || valid.Confirmed != nil {
		t.Errorf("validated: %v, %v", valid, err)
	}
	publishShared := publishRequest(id, node)
	publishShared.VolumeCapability = shared
	_, err = s.ControllerPublishVolume(within(t, enough), publishShared)
	expectError(t, err, codes.InvalidArgument, "cannot be written by several nodes")
}
