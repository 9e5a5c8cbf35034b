// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// HeaderBytes is the length of a volume's header: the first 4 MiB of what a target serves for it. The header holds a
// record of weft's, which tells what the device is and whether its data was formatted, and has room for the metadata of
// a mirror. The data begins behind it: a host hands out a device that begins there, so that what a pod writes is never
// at the start of what the target serves.
//
// It is a multiple of VolumeSizeStep, so that engines can keep it exactly, as are TrailerBytes.
const HeaderBytes = 4 << 20

// TrailerBytes are at the end of what a target serves for a volume, behind the data, and nothing is written there. MD's
// formats 0.90 and 1.0, DDF, the formats of RAID controllers, and ZFS have metadata at the end of a device, and hosts
// search for it. What a pod writes must not be found there: the pod's node would make it part of an array, even
// one of its own. Of the metadata that blkid knows, Promise's begins farthest from the end, at 3,087 sectors, which is
// 1.5 MiB; the rest is there so that a volume still takes whole clusters of SPDK's default size. When the volume grows,
// its trailer becomes data, and reads as zeros until it is written.
//
// Only a volume with spec.trailer has one: the data of those that were made before may reach to the end. What is
// promised and served is the same for all, since more than that hurts nobody.
const TrailerBytes = 4 << 20

// OverheadBytes is what a target serves for a volume besides its data.
//
// A size is one of data, without this, wherever people meet it: spec.size and status.size of an NvmfReplica, that of a
// snapshot or an orphan, what a claim asks for and what CSI answers. What engines make and serve, and what is promised,
// allocated and free of a pool, is what lies on the drive, with the overhead.
const OverheadBytes = HeaderBytes + TrailerBytes

// LUKSHeaderBytes is the length of the LUKS2 header with which the data of an encrypted volume begin, behind the
// volume's own header: its metadata twice, and room for 16 key slots. cryptsetup's default is 16 MiB, which has room to
// re-encrypt the volume in place. It is a multiple of VolumeSizeStep.
const LUKSHeaderBytes = 4 << 20

// HeaderBytes are the bytes of a volume's data that pods do not get, because the encryption keeps its header there.
func (e VolumeEncryption) HeaderBytes() int64 {
	if e == EncryptionLUKS2 {
		return LUKSHeaderBytes
	}
	return 0
}

// TrailerBytes at the end of what is served for a volume: 0 for one without a trailer.
func (v *NvmfVolume) TrailerBytes() int64 {
	if v.Spec.Trailer {
		return TrailerBytes
	}
	return 0
}

// SeenBytes are what pods see of a volume that is made of the snapshot. status.size leaves a trailer out, which the
// data of older volumes reach into, and counts the header of the encryption.
func (s *NvmfSnapshot) SeenBytes() int64 {
	seen := s.Status.Size.Value() - s.Spec.Encryption.HeaderBytes()
	if !s.Spec.Trailer {
		seen += TrailerBytes
	}
	return seen
}

// WithOverhead is what a target serves for a volume of so many bytes of data, and what its pool promises to it.
func WithOverhead(dataBytes int64) int64 { return dataBytes + OverheadBytes }

// ServedBytes of a volume of so many bytes of data in a pool with clusters of this size, 0 for none: with its header
// and trailer, in whole clusters.
func ServedBytes(dataBytes, clusterBytes int64) int64 {
	return InClusters(WithOverhead(dataBytes), clusterBytes)
}

// InClusters of this size, 0 for none, so many bytes take: they are rounded up.
func InClusters(bytes, clusterBytes int64) int64 {
	if clusterBytes <= 0 {
		return bytes
	}
	return (bytes + clusterBytes - 1) / clusterBytes * clusterBytes
}

// LeastData of a volume that a pool with clusters of this size serves with so many bytes: the smallest data size that
// is rounded up to them.
func LeastData(servedBytes, clusterBytes int64) int64 {
	return WithoutOverhead(servedBytes - max(0, clusterBytes-VolumeSizeStep))
}

// WithoutOverhead are the bytes of data in what a target serves, or in a volume that has so many bytes of its pool; 0
// where there is no more than a header and a trailer.
func WithoutOverhead(servedBytes int64) int64 { return max(0, servedBytes-OverheadBytes) }

// allocatedPart of a replica's size is how far status.allocated moves before it is written: 5 %.
const allocatedPart = 20

// AllocatedStep is how far status.allocated of a replica of this size can be from what it has in its pool, but for what
// was written since its agent last looked.
func AllocatedStep(sizeBytes int64) int64 { return max(sizeBytes/allocatedPart, 1<<20) }
