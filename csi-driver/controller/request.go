// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"reflect"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/controller/internal/parameters"
)

// Annotations of an NvmfVolume that say what was asked for.
const (
	requestNameAnnotation = "weft.storage/request-name"
	// requestLimitsAnnotation has the limits that the volume was made with: those in its spec may have been changed
	// since.
	requestLimitsAnnotation = "weft.storage/request-limits"
)

// maxVolumeName keeps the subsystem's NQN, which ends in the name, within NVMe's 223 bytes.
const maxVolumeName = 128

// volumeRequest is a CreateVolume request that has been checked.
type volumeRequest struct {
	// id of the volume: the NvmfVolume's name.
	id string
	// name in the request, from which id is made.
	name   string
	params parameters.Parameters
	sizes  sizeRange
	// source of its first data; nil for a blank volume.
	source *v1alpha1.VolumeSource
	// minBytes that the volume's uses need, and why.
	minBytes int64
	why      string
}

func newVolumeRequest(req *csi.CreateVolumeRequest) (volumeRequest, error) {
	r := volumeRequest{name: req.GetName(), id: objectName("vol-", req.GetName())}
	if r.name == "" {
		return r, failf(invalid, "name of the volume is required")
	}
	var err error
	if r.source, err = sourceOf(req); err != nil {
		return r, err
	}
	if r.params, err = parameters.Parse(req.GetParameters()); err != nil {
		return r, err
	}
	if len(req.GetMutableParameters()) > 0 {
		// A claim's VolumeAttributesClass takes the place of the StorageClass's limits, and of what it says of
		// replicas.
		with, err := parameters.ParseMutable(req.GetMutableParameters())
		if err != nil {
			return r, err
		}
		r.params.QoS, r.params.Replicas = with.QoS, cmp.Or(with.Replicas, r.params.Replicas)
		r.params.ReplaceLostReplicaAfterMinutes = cmp.Or(with.ReplaceLostReplicaAfterMinutes, r.params.ReplaceLostReplicaAfterMinutes)
	}
	if r.minBytes, r.why, err = checkCapabilities(req.GetVolumeCapabilities(), r.params.FSType); err != nil {
		return r, err
	}
	shared := func(c *csi.VolumeCapability) bool {
		a, err := access(c)
		return err == nil && a != v1alpha1.AccessExclusive
	}
	if r.params.Replicas > 1 && slices.ContainsFunc(req.GetVolumeCapabilities(), shared) {
		return r, errShared(r.id)
	}
	if r.params.Encryption != "" && slices.ContainsFunc(req.GetVolumeCapabilities(), sharedWrite) {
		return r, errSharedEncrypted(r.id)
	}
	if r.source == nil && needsData(req.GetVolumeCapabilities()) {
		return r, failf(invalid, "a read-only volume (ReadOnlyMany) requires initial data: set dataSource of the claim to a snapshot or another claim")
	}
	if r.sizes, err = newSizeRange(req.GetCapacityRange()); err != nil {
		return r, err
	}
	return r, nil
}

// objectName is the request's name where that can be an object's name, else one made from it; always the same one.
func objectName(prefix, name string) string {
	if validID(name) {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return prefix + hex.EncodeToString(sum[:16])
}

// validID says that a volume or snapshot can have this id. One that cannot was never given out.
func validID(id string) bool {
	return len(id) <= maxVolumeName && len(validation.IsDNS1123Subdomain(id)) == 0
}

// checkExisting returns an error that lists how the volume differs from what is asked for.
func (r volumeRequest) checkExisting(vol *v1alpha1.NvmfVolume) error {
	d := r.params.Differences(vol.Spec)
	if size := capacity(vol); !r.sizes.holds(size) {
		d = append(d, "its size is "+quantity(size)+", which is not the requested size")
	} else if size < r.minBytes {
		d = append(d, "its size is "+quantity(size)+": "+r.why)
	}
	if !reflect.DeepEqual(vol.Spec.Source, r.source) {
		d = append(d, "its source is "+describeSource(vol.Spec.Source)+", not "+describeSource(r.source))
	}
	if other, ok := vol.Annotations[requestNameAnnotation]; ok && other != r.name {
		d = append(d, "it was created for the name "+other)
	}
	limits := parameters.FormatQoS(r.params.QoS)
	if other, ok := vol.Annotations[requestLimitsAnnotation]; ok && other != limits {
		d = append(d, "it was created with the limits "+other+", not "+limits)
	}
	if len(d) > 0 {
		return failf(exists, "volume %s already exists, but differs from the request: %s", r.id, strings.Join(d, "; "))
	}
	return nil
}

func describeSource(source *v1alpha1.VolumeSource) string {
	switch {
	case source == nil:
		return "none"
	case source.Snapshot != "":
		return "snapshot " + source.Snapshot
	}
	return "volume " + source.Volume
}

// object returns the metadata of the volume to be made.
func (r volumeRequest) object() metav1.ObjectMeta {
	m := metav1.ObjectMeta{
		Name:       r.id,
		Finalizers: []string{v1alpha1.ReplicasFinalizer},
		Annotations: map[string]string{
			requestNameAnnotation: r.name, requestLimitsAnnotation: parameters.FormatQoS(r.params.QoS),
		},
	}
	v1alpha1.SetNames(&m, r.params.PVName, r.params.PVCNamespace, r.params.PVCName)
	return m
}
