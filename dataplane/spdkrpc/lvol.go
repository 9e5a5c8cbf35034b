// SPDX-License-Identifier: Apache-2.0

package spdkrpc

// ClearMethod is what happens to the data area of a new lvstore or lvol.
type ClearMethod string

// Clear methods.
const (
	ClearNone        ClearMethod = "none"
	ClearUnmap       ClearMethod = "unmap"
	ClearWriteZeroes ClearMethod = "write_zeroes"
)

// BdevLvolCreateLvstore makes an lvstore on a bdev, and erases what was there.
// A bdev that something in SPDK uses, such as an lvstore, is left alone: ErrExists. The answer is the lvstore's UUID.
type BdevLvolCreateLvstore struct {
	answers[string]
	Bdev string `json:"bdev_name"`
	// Name, at most 63 characters.
	Name string `json:"lvs_name"`
	// ClusterBytes is 4 MiB by default; all allocation is in clusters.
	ClusterBytes uint32 `json:"cluster_sz,omitzero"`
	// Clear is ClearUnmap by default.
	Clear ClearMethod `json:"clear_method,omitzero"`
	// MetadataPagesPercent of metadata pages per cluster, 100 by default; more lets the lvstore grow further.
	MetadataPagesPercent uint32 `json:"num_md_pages_per_cluster_ratio,omitzero"`
}

func (BdevLvolCreateLvstore) method() string { return "bdev_lvol_create_lvstore" }

// BdevLvolGetLvstores lists lvstores: one, by either name, or all. One that is missing is ErrNotFound.
type BdevLvolGetLvstores struct {
	answers[[]Lvstore]
	UUID string `json:"uuid,omitzero"`
	Name string `json:"lvs_name,omitzero"`
}

func (BdevLvolGetLvstores) method() string { return "bdev_lvol_get_lvstores" }

// Lvstore on a bdev.
type Lvstore struct {
	UUID          string `json:"uuid"`
	Name          string `json:"name"`
	BaseBdev      string `json:"base_bdev"`
	TotalClusters uint64 `json:"total_data_clusters"`
	FreeClusters  uint64 `json:"free_clusters"`
	BlockBytes    uint64 `json:"block_size"`
	ClusterBytes  uint64 `json:"cluster_size"`
	// MaxGrowableBytes is the largest device that its metadata has room for.
	MaxGrowableBytes uint64 `json:"max_growable_size"`
}

// BdevLvolGrowLvstore takes over the size that its bdev has grown to. Give one of the two names.
type BdevLvolGrowLvstore struct {
	answers[Done]
	UUID string `json:"uuid,omitzero"`
	Name string `json:"lvs_name,omitzero"`
}

func (BdevLvolGrowLvstore) method() string { return "bdev_lvol_grow_lvstore" }

// BdevLvolCreate makes a volume. Its name in its lvstore being taken is ErrExists. The answer is its UUID,
// which SPDK chooses.
type BdevLvolCreate struct {
	answers[string]
	// Name, at most 63 characters.
	Name string `json:"lvol_name"`
	// SizeMiB is rounded up to whole clusters.
	SizeMiB uint64 `json:"size_in_mib"`
	// Thin allocates clusters when they are written first.
	Thin bool `json:"thin_provision,omitzero"`
	// LvstoreUUID or LvstoreName: give one of the two.
	LvstoreUUID string `json:"uuid,omitzero"`
	LvstoreName string `json:"lvs_name,omitzero"`
	// Clear is the lvstore's by default.
	Clear ClearMethod `json:"clear_method,omitzero"`
}

func (BdevLvolCreate) method() string { return "bdev_lvol_create" }

// BdevLvolGetLvols lists volumes and snapshots: of one lvstore, by either name, or of all.
type BdevLvolGetLvols struct {
	answers[[]Lvol]
	LvstoreUUID string `json:"lvs_uuid,omitzero"`
	LvstoreName string `json:"lvs_name,omitzero"`
}

func (BdevLvolGetLvols) method() string { return "bdev_lvol_get_lvols" }

// Lvol is a logical volume, or a snapshot.
type Lvol struct {
	// Alias is "lvstore/name".
	Alias string `json:"alias"`
	UUID  string `json:"uuid"`
	Name  string `json:"name"`
	// Thin is set for clones and snapshots too.
	Thin       bool `json:"is_thin_provisioned"`
	IsSnapshot bool `json:"is_snapshot"`
	// IsClone: it depends on a snapshot. A volume that a snapshot was made of is one.
	IsClone bool `json:"is_clone"`
	// IsDegraded: something it depends on is missing, and it cannot be read.
	IsDegraded bool `json:"is_degraded"`
	// AllocatedClusters of its own, without its parent's. 0 in a volume that is no clone: it was never written.
	AllocatedClusters uint64     `json:"num_allocated_clusters"`
	Lvstore           LvstoreRef `json:"lvs"`
}

// LvstoreRef names an lvstore.
type LvstoreRef struct {
	Name string `json:"name"`
	UUID string `json:"uuid"`
}

// BdevLvolResize sets a volume's size. Never a smaller one: SPDK cuts the data off before it finds an error.
type BdevLvolResize struct {
	answers[Done]
	// Name is its UUID or alias.
	Name string `json:"name"`
	// SizeMiB is rounded up to whole clusters.
	SizeMiB uint64 `json:"size_in_mib"`
}

func (BdevLvolResize) method() string { return "bdev_lvol_resize" }

// BdevLvolDelete deletes a volume or snapshot, exported or not: whoever calls
// it has seen that it is not. A snapshot that one clone depends on is merged into it; with more clones it is ErrBusy.
type BdevLvolDelete struct {
	answers[Done]
	// Name is its UUID or alias.
	Name string `json:"name"`
}

func (BdevLvolDelete) method() string { return "bdev_lvol_delete" }

// BdevLvolSnapshot freezes a volume's data; the volume becomes a thin clone of the snapshot. The answer is the
// snapshot's UUID.
type BdevLvolSnapshot struct {
	answers[string]
	// Volume is its UUID or alias.
	Volume string `json:"lvol_name"`
	// Name of the snapshot, without the lvstore's.
	Name string `json:"snapshot_name"`
}

func (BdevLvolSnapshot) method() string { return "bdev_lvol_snapshot" }

// BdevLvolClone makes a volume that begins with a snapshot's data. The answer is its UUID.
type BdevLvolClone struct {
	answers[string]
	// Snapshot is its UUID or alias.
	Snapshot string `json:"snapshot_name"`
	// Name of the clone, without the lvstore's.
	Name string `json:"clone_name"`
}

func (BdevLvolClone) method() string { return "bdev_lvol_clone" }

// BdevLvolSetParent makes a thin volume a clone of a snapshot of the same size: what the volume has not written itself
// reads as the snapshot's. A parent that is no snapshot, which after a start of the target is one that has no clone, is
// ErrInvalid; the parent that it has is ErrExists.
type BdevLvolSetParent struct {
	answers[Done]
	// Name is its UUID or alias.
	Name string `json:"lvol_name"`
	// Parent is the snapshot's UUID or alias.
	Parent string `json:"parent_name"`
}

func (BdevLvolSetParent) method() string { return "bdev_lvol_set_parent" }

// BdevLvolDecoupleParent copies what a volume shares with its parent; it stays thin. Without a parent it is ErrInvalid.
type BdevLvolDecoupleParent struct {
	answers[Done]
	// Name is its UUID or alias.
	Name string `json:"name"`
}

func (BdevLvolDecoupleParent) method() string { return "bdev_lvol_decouple_parent" }

// BdevLvolRename gives a volume or snapshot another name; its UUID stays.
type BdevLvolRename struct {
	answers[Done]
	// Name is its UUID or alias.
	Name string `json:"old_name"`
	// NewName, without the lvstore's.
	NewName string `json:"new_name"`
}

func (BdevLvolRename) method() string { return "bdev_lvol_rename" }
