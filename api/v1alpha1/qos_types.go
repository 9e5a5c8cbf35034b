// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// Steps of a volume's limits. SPDK silently rounds other values up, so that a volume would get more than was requested;
// they are rejected instead.
const (
	// QoSIOPSStep is SPDK's unit of I/Os per second (bdev_set_qos_limit rw_ios_per_sec).
	QoSIOPSStep = 1000
	// QoSBandwidthStep is SPDK's unit of bandwidth in bytes per second: what it calls a megabyte is a MiB.
	QoSBandwidthStep = 1 << 20
	// QoSMaxIOPS and QoSMaxBandwidthMiBps are the largest limits of a volume, beyond any drive.
	QoSMaxIOPS           = 100_000_000
	QoSMaxBandwidthMiBps = 1 << 20
)

// VolumeQoS limits the I/O of all hosts of a volume together. You can add, change and remove limits at any time, even
// during I/O: no host is disconnected and nothing is restarted. A field that is not set means no limit. status.qos
// shows the limits in effect, and condition QoSApplied is False if they differ from the spec.
//
// Limits are multiples of 1,000 I/Os per second and of 1 MiB per second, as in SPDK. The kernel's target does not
// support limits: it serves the volumes without them, and QoSApplied is False with reason Unsupported.
type VolumeQoS struct {
	// IOPS is the maximum number of I/Os per second, reads and writes together. A multiple of 1000.
	// +kubebuilder:validation:Minimum=1000
	// +kubebuilder:validation:Maximum=100000000
	// +kubebuilder:validation:XValidation:rule="self % 1000 == 0",message="iops must be a multiple of 1000, such as 2000 or 3000 instead of 2500; remove iops for no limit"
	// +optional
	IOPS *int64 `json:"iops,omitempty"`
	// BandwidthMiBps is the maximum bandwidth in MiB per second, reads and writes together.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1048576
	// +optional
	BandwidthMiBps *int64 `json:"bandwidthMiBps,omitempty"`
	// ReadBandwidthMiBps is the maximum read bandwidth in MiB per second.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1048576
	// +optional
	ReadBandwidthMiBps *int64 `json:"readBandwidthMiBps,omitempty"`
	// WriteBandwidthMiBps is the maximum write bandwidth in MiB per second.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1048576
	// +optional
	WriteBandwidthMiBps *int64 `json:"writeBandwidthMiBps,omitempty"`
}
