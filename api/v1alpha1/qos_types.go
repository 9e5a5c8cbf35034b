// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// Steps in which limits of a volume can be set. SPDK rounds what lies between up without a word, so that a
// volume would get more than was asked for; it is refused instead.
const (
	// QoSIOPSStep is SPDK's unit of I/Os per second (bdev_set_qos_limit rw_ios_per_sec).
	QoSIOPSStep = 1000
	// QoSBandwidthStep is SPDK's unit of bandwidth in bytes per second: what it calls a megabyte is a MiB.
	QoSBandwidthStep = 1 << 20
	// QoSMaxIOPS and QoSMaxBandwidthMiBps are the largest limits of a volume, beyond any drive.
	QoSMaxIOPS           = 100_000_000
	QoSMaxBandwidthMiBps = 1 << 20
)

// VolumeQoS limits what a volume's hosts may do, all of them together. Every field may be added,
// changed and removed at any time, with hosts connected and I/O under way: the target takes the new limits while it
// runs, nobody is disconnected and nothing restarted, and they are put back when a target starts again. A limit that is
// left out, or taken away, is no limit. What is in force is read back into status.qos; condition
// QoSApplied tells when that is not what was asked for.
//
// The steps are SPDK's: 1,000 I/Os per second, and 1 MiB per second. The kernel's target has no such limits: its
// volumes are served without them, and QoSApplied is False with reason Unsupported.
type VolumeQoS struct {
	// IOPS that the volume's hosts may do, reads and writes together: a multiple of 1000.
	// +kubebuilder:validation:Minimum=1000
	// +kubebuilder:validation:Maximum=100000000
	// +kubebuilder:validation:XValidation:rule="self % 1000 == 0",message="iops must be a multiple of 1000, such as 2000 or 3000 for 2500; leave it out for no limit"
	// +optional
	IOPS *int64 `json:"iops,omitempty"`
	// BandwidthMiBps is how many MiB a second may be read and written together.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1048576
	// +optional
	BandwidthMiBps *int64 `json:"bandwidthMiBps,omitempty"`
	// ReadBandwidthMiBps is how many MiB a second may be read.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1048576
	// +optional
	ReadBandwidthMiBps *int64 `json:"readBandwidthMiBps,omitempty"`
	// WriteBandwidthMiBps is how many MiB a second may be written.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1048576
	// +optional
	WriteBandwidthMiBps *int64 `json:"writeBandwidthMiBps,omitempty"`
}
