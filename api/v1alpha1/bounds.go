// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import "time"

// Bounds and defaults of fields that Go code repeats: what plans, what checks a plan and what tells people what to
// write take them from here. The markers beside the fields say the same to the API server; a test holds the two
// together. Sizes are in bytes, bounds are included.
const (
	// MinPort and MaxPort of a portal; DefaultPort is the one that IANA gave to NVMe-oF.
	MinPort     = 1
	MaxPort     = 65535
	DefaultPort = 4420
	// MinQueueDepth and MaxQueueDepth of a queue, in commands; DefaultQueueDepth is SPDK's and the kernel initiator's.
	MinQueueDepth     = 16
	MaxQueueDepth     = 1024
	DefaultQueueDepth = 128
	// MinIOQueues and MaxIOQueues of a controller.
	MinIOQueues = 1
	MaxIOQueues = 127
	// DefaultMaxIOQueues is how many a transport gives a controller; DefaultAttachmentIOQueues how many an attachment
	// opens.
	DefaultMaxIOQueues        = 8
	DefaultAttachmentIOQueues = 2
	// MaxInCapsuleDataSize and DefaultInCapsuleDataSize of a transport; it grows in steps of InCapsuleDataStep.
	MaxInCapsuleDataSize     = 64 << 10
	DefaultInCapsuleDataSize = 4 << 10
	InCapsuleDataStep        = 16
	// MinMaxIOSize and MaxMaxIOSize of a transport; it is a power of two.
	MinMaxIOSize = 8 << 10
	MaxMaxIOSize = 2 << 20
	// MinSRQDepth and MaxSRQDepth of a shared receive queue, in work requests: SPDK keeps it in 16 bits. nvmet_rdma
	// takes no less than MinNvmetSRQDepth.
	MinSRQDepth      = 16
	MinNvmetSRQDepth = 256
	MaxSRQDepth      = 65535
	// MaxHosts that an NvmfReplica can list.
	MaxHosts = 64
	// MaxPools and MaxPortals that the status of a node lists; that of a replica lists as many portals.
	MaxPools   = 64
	MaxPortals = 8
	// MaxWaiting is in characters, of what a volume, a move or a recovery waits for.
	MaxWaiting = 1024
	// MinXFSBytes of a filesystem, and so of a pool of files: mkfs.xfs takes no less since xfsprogs 5.19.
	MinXFSBytes = 300 << 20
	// MaxAttachments that a node can be expected to hold, and DefaultAttachments.
	MaxAttachments     = 4096
	DefaultAttachments = 128
	// DefaultMaxUnavailable is how many nodes of a target are changed at a time, and MaxUpdating the most.
	DefaultMaxUnavailable = 1
	MaxUpdating           = 100
	// NoOverProvisioning is the least, and the default, that may be promised of a pool, in percent of its size.
	NoOverProvisioning = 100
)

// Bounds of an SPDK target.
const (
	// MaxLoadLimit, MaxCoreLimit and MaxCoreBusy are in percent, as are the defaults, which are SPDK's.
	MaxLoadLimit     = 99
	MaxCoreLimit     = 100
	MaxCoreBusy      = 100
	DefaultLoadLimit = 20
	DefaultCoreLimit = 80
	DefaultCoreBusy  = 95
	// MinSchedulerPeriod, MaxSchedulerPeriod and DefaultSchedulerPeriod lie between two decisions of the scheduler.
	MinSchedulerPeriod     = time.Millisecond
	MaxSchedulerPeriod     = time.Minute
	DefaultSchedulerPeriod = time.Second
	// MaxBuffers of a pool, and MaxCachePerCore that each poll group keeps of it.
	MaxBuffers      = 1 << 20
	MaxCachePerCore = 65535
	// MinMemoryBytes that a target takes.
	MinMemoryBytes = 64 << 20
	// MinClusterSize, MaxClusterSize and DefaultClusterSize of a pool's clusters; it is a power of two.
	MinClusterSize     = 1 << 20
	MaxClusterSize     = 16 << 20
	DefaultClusterSize = 4 << 20
)

// Bounds of sockets.
const (
	// MinSocketBuffer and MaxSocketBuffer, each way.
	MinSocketBuffer = 4 << 10
	MaxSocketBuffer = 64 << 20
	// MaxZeroCopyThreshold of what is copied all the same.
	MaxZeroCopyThreshold = 1 << 20
	// MaxSocketPriority of packets; 0 is none.
	MaxSocketPriority = 15
	// MaxIdlePollPeriod of the kernel's target.
	MaxIdlePollPeriod = 100 * time.Millisecond
)

// Bounds of what the operator writes, in items or in characters.
const (
	// MaxPlanDrives, MaxPlanSettings (of tuning) and MaxNotCapable nodes that a status lists.
	MaxPlanDrives   = 64
	MaxPlanSettings = 512
	MaxNotCapable   = 50
	// MaxDriveSerial of a planned drive.
	MaxDriveSerial = 64
	// MaxChoiceValue and MaxChoiceWords (why, warning) of a choice.
	MaxChoiceValue = 258
	MaxChoiceWords = 1024
)
