// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/controller/internal/parameters"
)

// The node plugin encrypts; this service only sees to it that a volume is made large enough, is copied to volumes that
// are encrypted as it is, and is attached where it can be opened.

// capacity of a volume: what pods get of it.
func capacity(vol *v1alpha1.NvmfVolume) int64 {
	return vol.Spec.Size.Value() - vol.Spec.Encryption.HeaderBytes()
}

// checkSecret fails when an encrypted volume is asked for by a StorageClass that names no Secret: nobody could use it.
// csi-provisioner does not pass on which Secret that is, so the class is read. A class or a claim that is not there
// says nothing.
func (s *Service) checkSecret(ctx context.Context, params parameters.Parameters) error {
	if params.Encryption == "" || params.PVCName == "" {
		return nil
	}
	var claim corev1.PersistentVolumeClaim
	err := s.live.Get(ctx, client.ObjectKey{Namespace: params.PVCNamespace, Name: params.PVCName}, &claim)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read PersistentVolumeClaim %s/%s: %w", params.PVCNamespace, params.PVCName, err)
	}
	if claim.Spec.StorageClassName == nil || *claim.Spec.StorageClassName == "" {
		return nil
	}
	var class storagev1.StorageClass
	err = s.live.Get(ctx, client.ObjectKey{Name: *claim.Spec.StorageClassName}, &class)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read StorageClass %s: %w", *claim.Spec.StorageClassName, err)
	}
	for _, key := range []string{parameters.StageSecretName, parameters.StageSecretNamespace} {
		if class.Parameters[key] == "" {
			return &parameters.Error{Problems: []string{fmt.Sprintf("%s is \"true\", and %s is missing; create a class that names the Secret with the key", parameters.Encrypted, key)}}
		}
	}
	return nil
}

// copyableInto fails unless a copy is encrypted as its source: the data are copied as they are stored.
func (o origin) copyableInto(params parameters.Parameters) error {
	switch o.encryption {
	case params.Encryption:
		return nil
	case "":
		return failf(invalid, "the source %s is not encrypted, and a copy of it cannot be: use a StorageClass without %s, or create an empty encrypted volume and copy the data in a pod",
			o.name, parameters.Encrypted)
	}
	return failf(invalid, "the source %s is encrypted, and so is a copy of it: use a StorageClass with %s \"true\" and the Secret of the source", o.name, parameters.Encrypted)
}

// sharedWrite tells whether several nodes may write.
func sharedWrite(c *csi.VolumeCapability) bool {
	a, err := access(c)
	return err == nil && a == v1alpha1.AccessSharedWrite
}

// errSharedEncrypted explains why an encrypted volume is written by one node.
func errSharedEncrypted(volume string) error {
	return failf(invalid, "volume %s is encrypted, and cannot be written by several nodes: each could make a LUKS header of its own; use access mode ReadWriteOnce", volume)
}

// encryptable fails if an encrypted volume would be written by several nodes, and unless the node says that it can use
// encrypted volumes. One that says nothing has an earlier node plugin, which would format the volume as it is.
func encryptable(node *corev1.Node, vol *v1alpha1.NvmfVolume, access v1alpha1.HostAccess) error {
	if vol.Spec.Encryption == "" {
		return nil
	}
	if access == v1alpha1.AccessSharedWrite {
		return errSharedEncrypted(vol.Name)
	}
	c := v1alpha1.NodeCondition(node, v1alpha1.ConditionEncryptionUnavailable)
	switch {
	case c == nil:
		return failf(waiting, "encrypted volume %s cannot be attached to node %s yet: its node plugin did not report condition %s; update it, or wait until it has started",
			vol.Name, node.Name, v1alpha1.ConditionEncryptionUnavailable)
	case c.Status == corev1.ConditionTrue:
		return failf(waiting, "encrypted volume %s cannot be used by node %s: condition %s (%s: %s)", vol.Name, node.Name, c.Type, c.Reason, c.Message)
	}
	return nil
}
