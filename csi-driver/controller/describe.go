// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// The agents know replicas only. So that a volume and its PersistentVolume can be made again from what lies on drives,
// each replica says what these two said, and its agent stores that with the data.

// description of a volume for its replicas.
func description(vol *v1alpha1.NvmfVolume) *v1alpha1.VolumeDescription {
	d := &v1alpha1.VolumeDescription{
		Replicas: int32(replicasOf(vol)), Mirrored: vol.Spec.Mirrored, Members: slices.Clone(vol.Spec.Members),
		Zones: slices.Clone(vol.Spec.Zones), ZoneLabel: vol.Spec.ZoneLabel, Encryption: vol.Spec.Encryption, PersistentVolume: vol.Spec.PersistentVolume.DeepCopy(),
	}
	if from := vol.Spec.Source; from != nil {
		d.SourceVolume, d.SourceSnapshot = from.Volume, from.Snapshot
	}
	return d
}

// persistentVolumeOf a volume that is being attached, as it is now. A volume that has none, or whose one cannot be
// read, keeps what was known of it: nobody waits for that.
func (s *Service) persistentVolumeOf(ctx context.Context, vol *v1alpha1.NvmfVolume) *v1alpha1.PersistentVolumeDescription {
	var pv corev1.PersistentVolume
	name := cmp.Or(vol.Annotations[pvNameKey], vol.Name)
	if err := s.live.Get(ctx, keyOf(name), &pv); err != nil {
		if !apierrors.IsNotFound(err) {
			klog.FromContext(ctx).Info("Cannot read a PersistentVolume to describe it with its data", "volume", vol.Name, "persistentVolume", name, "err", err)
		}
		return vol.Spec.PersistentVolume
	}
	if from := pv.Spec.CSI; from == nil || from.Driver != v1alpha1.DriverName || from.VolumeHandle != vol.Name {
		return vol.Spec.PersistentVolume
	}
	return describePersistentVolume(&pv)
}

// describePersistentVolume by what the API has room for. Mount options of which it has not are those of the class.
func describePersistentVolume(pv *corev1.PersistentVolume) *v1alpha1.PersistentVolumeDescription {
	d := &v1alpha1.PersistentVolumeDescription{
		Name: pv.Name, StorageClass: pv.Spec.StorageClassName, ReclaimPolicy: string(pv.Spec.PersistentVolumeReclaimPolicy),
		StageSecret: describeSecret(pv.Spec.CSI.NodeStageSecretRef), PublishSecret: describeSecret(pv.Spec.CSI.NodePublishSecretRef),
	}
	if fsType := pv.Spec.CSI.FSType; len(fsType) <= v1alpha1.MaxDescribedFSType {
		d.FSType = fsType // no node plugin mounts a longer one
	}
	for _, mode := range pv.Spec.AccessModes[:min(len(pv.Spec.AccessModes), v1alpha1.MaxDescribedModes)] {
		d.AccessModes = append(d.AccessModes, string(mode))
	}
	if pv.Spec.VolumeMode != nil {
		d.VolumeMode = string(*pv.Spec.VolumeMode)
	}
	if ref := pv.Spec.ClaimRef; ref != nil {
		d.ClaimNamespace, d.ClaimName = ref.Namespace, ref.Name
	}
	long := func(option string) bool { return len(option) > v1alpha1.MaxDescribedOption }
	if options := pv.Spec.MountOptions; len(options) <= v1alpha1.MaxDescribedOptions && !slices.ContainsFunc(options, long) {
		d.MountOptions = slices.Clone(options)
	}
	return d
}

func describeSecret(ref *corev1.SecretReference) *v1alpha1.DescribedSecret {
	if ref == nil {
		return nil
	}
	return &v1alpha1.DescribedSecret{Namespace: ref.Namespace, Name: ref.Name}
}
