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
		Zones: slices.Clone(vol.Spec.Zones), ZoneLabel: vol.Spec.ZoneLabel, Encryption: vol.Spec.Encryption, Trailer: vol.Spec.Trailer, PersistentVolume: vol.Spec.PersistentVolume.DeepCopy(),
	}
	if from := vol.Spec.Source; from != nil {
		d.SourceVolume, d.SourceSnapshot = from.Volume, from.Snapshot
	}
	return d
}

// nameClaim of a volume as it is described. It is another one than the volume was created for if, for example, a backup
// tool has filled the volume for it. The former name is kept while there is none.
func nameClaim(vol *v1alpha1.NvmfVolume) {
	if by := vol.Spec.PersistentVolume; by != nil {
		v1alpha1.SetNames(&vol.ObjectMeta, "", by.ClaimNamespace, by.ClaimName)
	}
}

// lastPersistentVolume is the name of the PersistentVolume that a volume was described by last, else of the one that it
// was created for.
func lastPersistentVolume(vol *v1alpha1.NvmfVolume) string {
	if described := vol.Spec.PersistentVolume; described != nil {
		return described.Name
	}
	return cmp.Or(vol.Annotations[v1alpha1.PVNameKey], vol.Name)
}

// persistentVolumeOf a volume that is being attached, as it is now. The name is that of the PersistentVolume by which
// Kubernetes asks; empty if it is not known, and then it is the last one. What was described is not kept if that one is
// gone or is another volume's: the claim could be a former one, and who recovers by it would give the data to another
// tenant. What cannot be read keeps nobody waiting, and leaves all that was described but the claim.
func (s *Service) persistentVolumeOf(ctx context.Context, vol *v1alpha1.NvmfVolume, name string) *v1alpha1.PersistentVolumeDescription {
	known := vol.Spec.PersistentVolume
	name = cmp.Or(name, lastPersistentVolume(vol))
	var pv corev1.PersistentVolume
	switch err := s.live.Get(ctx, keyOf(name), &pv); {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		klog.FromContext(ctx).Info("Cannot read a PersistentVolume to describe it with its data", "volume", vol.Name, "persistentVolume", name, "reason", err)
		if known == nil || known.Name != name {
			return nil
		}
		known = known.DeepCopy()
		known.ClaimNamespace, known.ClaimName = "", ""
		return known
	}
	if from := pv.Spec.CSI; from == nil || from.Driver != v1alpha1.DriverName || from.VolumeHandle != vol.Name {
		return nil
	}
	return describePersistentVolume(&pv)
}

// describePersistentVolume by what the API has room for. Mount options of which it has not are those of the class. A
// claim that it is not bound to is none: it was deleted, or somebody else's claim may be bound instead.
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
	if ref := pv.Spec.ClaimRef; ref != nil && pv.Status.Phase == corev1.VolumeBound {
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
