// SPDX-License-Identifier: Apache-2.0

package spdkrpc

import "encoding/base64"

// BdevSetOptions sizes the block device layer. Only before init.
type BdevSetOptions struct {
	answers[Done]
	// IOPoolSize is how many I/Os there may be at once, 65535 by default, at 1,617
	// bytes of memory each. It must hold the caches of all threads.
	IOPoolSize uint32 `json:"bdev_io_pool_size,omitzero"`
	// IOCacheSize is per thread, 256 by default.
	IOCacheSize uint32 `json:"bdev_io_cache_size,omitzero"`
	// IobufSmallCacheSize and IobufLargeCacheSize are buffers per thread, 128 and 16 by default.
	IobufSmallCacheSize uint32 `json:"iobuf_small_cache_size,omitzero"`
	IobufLargeCacheSize uint32 `json:"iobuf_large_cache_size,omitzero"`
	// AutoExamine has SPDK look for lvstores, partition tables and RAID superblocks on each bdev that appears, lvols
	// included. SPDK does by default, which nil leaves as it is. Without it, BdevExamine names the bdevs.
	AutoExamine *bool `json:"bdev_auto_examine,omitzero"`
}

func (BdevSetOptions) method() string { return "bdev_set_options" }

// BdevGetBdevs lists bdevs. Only after init.
type BdevGetBdevs struct {
	answers[[]Bdev]
	// Name, alias or UUID of one; empty for all. One that is missing is ErrNotFound.
	Name string `json:"name,omitzero"`
	// TimeoutMillis to wait for the named bdev to appear.
	TimeoutMillis uint64 `json:"timeout,omitzero"`
}

func (BdevGetBdevs) method() string { return "bdev_get_bdevs" }

// Bdev is a block device of the target.
type Bdev struct {
	// Name of the bdev: for an lvol its UUID.
	Name string `json:"name"`
	// Aliases: for an lvol "lvstore/lvol".
	Aliases []string `json:"aliases"`
	// Product such as "AIO disk", "NVMe disk", "Logical Volume".
	Product    string `json:"product_name"`
	BlockBytes uint64 `json:"block_size"`
	Blocks     uint64 `json:"num_blocks"`
	// MetadataBytes of each block, beside it or in it.
	MetadataBytes uint32 `json:"md_size"`
	UUID          string `json:"uuid"`
	Limits        QoS    `json:"assigned_rate_limits"`
	// Claimed: something in SPDK uses it: an lvstore, or a namespace.
	Claimed bool         `json:"claimed"`
	Driver  DriverDetail `json:"driver_specific"`
}

// QoS are limits of a bdev; 0 is unlimited.
type QoS struct {
	// RWIOPS is a multiple of 1000.
	RWIOPS         uint64 `json:"rw_ios_per_sec"`
	RWMiBPerSec    uint64 `json:"rw_mbytes_per_sec"`
	ReadMiBPerSec  uint64 `json:"r_mbytes_per_sec"`
	WriteMiBPerSec uint64 `json:"w_mbytes_per_sec"`
}

// DriverDetail of a bdev: one of its fields is set, if any.
type DriverDetail struct {
	AIO  *AIODetail   `json:"aio"`
	Lvol *LvolDetail  `json:"lvol"`
	NVMe []NVMeDetail `json:"nvme"`
}

// AIODetail of a bdev on a file or on a block device of the kernel.
type AIODetail struct {
	Path     string `json:"filename"`
	ReadOnly bool   `json:"readonly"`
}

// LvolDetail of a logical volume.
type LvolDetail struct {
	LvstoreUUID string `json:"lvol_store_uuid"`
	BaseBdev    string `json:"base_bdev"`
	Thin        bool   `json:"thin_provision"`
	// AllocatedClusters of its own, without its parent's.
	AllocatedClusters uint64 `json:"num_allocated_clusters"`
	IsSnapshot        bool   `json:"snapshot"`
	IsClone           bool   `json:"clone"`
	// Base is the name of the snapshot that a clone depends on, in the same lvstore.
	Base string `json:"base_snapshot"`
	// Clones are the names of what depends on a snapshot, in the same lvstore.
	Clones []string `json:"clones"`
}

// NVMeDetail of a namespace of a drive.
type NVMeDetail struct {
	PCIAddress string `json:"pci_address"`
}

// BdevAioCreate makes a bdev of a file or of a block device of the kernel. It is answered when all
// bdevs were examined that are to be: lvstores and lvols on them are there then. The answer is its name.
type BdevAioCreate struct {
	answers[string]
	Name string `json:"name"`
	// Path as the target's mount namespace has it.
	Path string `json:"filename"`
	// BlockBytes is asked of the device by default, and required for a file.
	BlockBytes uint32 `json:"block_size,omitzero"`
	UUID       string `json:"uuid,omitzero"`
}

func (BdevAioCreate) method() string { return "bdev_aio_create" }

// BdevAioDelete takes a bdev away. What lies on it, lvstore and lvols, vanishes
// with it, exported or not; the data stays on the device.
type BdevAioDelete struct {
	answers[Done]
	Name string `json:"name"`
}

func (BdevAioDelete) method() string { return "bdev_aio_delete" }

// BdevAioRescan takes the present size of the file or device over.
type BdevAioRescan struct {
	answers[Done]
	Name string `json:"name"`
}

func (BdevAioRescan) method() string { return "bdev_aio_rescan" }

// TransportPCIe of a local drive.
const TransportPCIe = "PCIe"

// BdevNvmeAttachController attaches a local drive and makes a bdev of each of
// its namespaces: its name, "n" and the namespace's number. It is answered when all bdevs were examined that are to be.
// The answer is their names.
type BdevNvmeAttachController struct {
	answers[[]string]
	Name string `json:"name"`
	// Transport is TransportPCIe.
	Transport string `json:"trtype"`
	// Address on the PCI bus, such as "0000:5e:00.0".
	Address string `json:"traddr"`
}

func (BdevNvmeAttachController) method() string { return "bdev_nvme_attach_controller" }

// BdevNvmeDetachController gives a drive up, with its bdevs and all that lies on them.
type BdevNvmeDetachController struct {
	answers[Done]
	Name string `json:"name"`
}

func (BdevNvmeDetachController) method() string { return "bdev_nvme_detach_controller" }

// NvmeCommandType says which queue a command goes to.
type NvmeCommandType string

// Queues of a controller.
const (
	NvmeAdmin NvmeCommandType = "admin"
	NvmeIO    NvmeCommandType = "io"
)

// NvmeDataDirection says who sends data.
type NvmeDataDirection string

// Directions, seen from the host, which is SPDK here. A command without data has either.
const (
	NvmeToController   NvmeDataDirection = "h2c"
	NvmeFromController NvmeDataDirection = "c2h"
)

// NvmeCommandBytes is the size of a submission queue entry.
const NvmeCommandBytes = 64

// BdevNvmeSendCmd sends a command to the controller of a drive. A controller's refusal is an answer, with its status.
// An unknown name is ErrInvalid.
type BdevNvmeSendCmd struct {
	answers[NvmeReply]
	// Name of the controller, as it was attached.
	Name      string            `json:"name"`
	Type      NvmeCommandType   `json:"cmd_type"`
	Direction NvmeDataDirection `json:"data_direction"`
	// Command is the submission queue entry, of NvmeCommandBytes.
	Command Base64URL `json:"cmdbuf"`
	// DataBytes that the controller sends.
	DataBytes uint32 `json:"data_len,omitzero"`
}

func (BdevNvmeSendCmd) method() string { return "bdev_nvme_send_cmd" }

// Base64URL is bytes in the alphabet of RFC 4648 for URLs, padded: SPDK takes no other.
type Base64URL string

// EncodeBase64URL for a request.
func EncodeBase64URL(b []byte) Base64URL { return Base64URL(base64.URLEncoding.EncodeToString(b)) }

// Bytes that it stands for.
func (b Base64URL) Bytes() ([]byte, error) { return base64.URLEncoding.DecodeString(string(b)) }

// NvmeReply is what a controller answered.
type NvmeReply struct {
	// Completion queue entry, of 16 bytes.
	Completion Base64URL `json:"cpl"`
	// Data that the controller sent.
	Data Base64URL `json:"data"`
}

// BdevExamine has SPDK look for lvstores and other things on a bdev, which may appear later. It is answered before they
// are there: BdevWaitForExamine waits for them. Only a target that was told not to examine each bdev by itself takes
// it: others answer ErrInvalid. A bdev that was named since it appeared is ErrExists.
type BdevExamine struct {
	answers[Done]
	Name string `json:"name"`
}

func (BdevExamine) method() string { return "bdev_examine" }

// BdevWaitForExamine is answered when all bdevs were examined that are to be. It may take without end: SPDK has no time
// limit for a drive that does not answer.
type BdevWaitForExamine struct {
	answers[Done]
}

func (BdevWaitForExamine) method() string { return "bdev_wait_for_examine" }

// BdevSetQosLimit limits a bdev until the target ends. A limit that is nil stays; 0 lifts it. At least one is needed.
type BdevSetQosLimit struct {
	answers[Done]
	Name string `json:"name"`
	// RWIOPS is rounded up to a multiple of 1000.
	RWIOPS         *uint64 `json:"rw_ios_per_sec,omitzero"`
	RWMiBPerSec    *uint64 `json:"rw_mbytes_per_sec,omitzero"`
	ReadMiBPerSec  *uint64 `json:"r_mbytes_per_sec,omitzero"`
	WriteMiBPerSec *uint64 `json:"w_mbytes_per_sec,omitzero"`
}

func (BdevSetQosLimit) method() string { return "bdev_set_qos_limit" }
