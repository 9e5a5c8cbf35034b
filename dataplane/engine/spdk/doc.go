// SPDX-License-Identifier: Apache-2.0

// Package spdk is the engine of an SPDK target (nvmf_tgt), driven through its JSON-RPC socket.
//
// # What is where
//
// A pool is a drive, or a file, with an lvstore. The base bdev is called
// "weft:" and the device's ID, so the target itself tells which device it is; the
// lvstore is called "weft-" and a hash of the ID, so that a device that is not what its ID says is
// noticed. A link <state dir>/spdk/pools/<device ID>, percent-encoded, is all that is kept on the node: it
// says that a pool was opened once, so that after the target's end it
// is listed as one that cannot be read, and its volumes as unknown. A volume is an lvol named by its
// UUID, and served with that UUID; the lvol's own UUID, which SPDK chooses, is used only to name it to SPDK.
// Other lvols of a pool:
//
//	s-<uuid>-<time>  a snapshot; SPDK keeps no time of creation, so the name does (seconds since 1970 in base 36)
//	c-<uuid>         the snapshot through which the volume of that UUID was cloned from another volume
//	d-<uuid>         a mark: the snapshot of that UUID was deleted by its user, and is still there
//	t-<uuid>         becomes the volume of that UUID, a clone, once it has its parent
//	h-<uuid>         a clone, never written, of a snapshot without another: meanwhile SPDK knows the snapshot for one
//	x-<uuid>         was the volume of that UUID, and is being cleared
//	f-<uuid>         holds clusters that are free and may hold old data, and is being cleared
//	clean            a mark: all free clusters are zeroes, but while there is the mark
//	soiled           from before anything is deleted until all is cleared
//
// Deleting takes what was deleted out of the way, and Clear does the rest, without the engine's lock: a volume gets
// another name, and a snapshot, which SPDK cannot rename, a mark. SPDK deletes a snapshot only while at most one lvol
// depends on it; so a marked one, and c-<uuid>, goes when that is so. Its clone and its base are busy meanwhile, for
// SPDK refuses to change what another operation changes, and forgets a snapshot whose deletion it refused, until its
// next start: so a mark whose snapshot is not listed stays until then. What an interrupted call left of
// t-<uuid> and h-<uuid> is deleted by Clear, or by the next call that creates something.
//
// A portal is open when the anchor, a subsystem that nobody may connect to, has a listener on
// it: its listener comes last and goes last, so an interrupted call is taken up
// again. Nothing else listens: a subsystem has listeners once it admits a host. SPDK answers discovery on
// every listener, and shows a host only what it may connect to.
//
// # Old data
//
// SPDK allocates clusters to thin lvols as they are: what a host did not write reads as what lay there
// before. So nothing may leave old data in a free cluster. A file, or a device that can deallocate with zeroes, is
// cleared by the kernel before it becomes a pool; the clusters of any other are held by lvols, f-<uuid>, which Clear
// deletes. A deleted lvol's clusters are overwritten with zeroes (clear_method write_zeroes).
//
// A target that is killed while it does that leaves free clusters as they were, because SPDK forgets the lvol first. So
// an lvstore has the mark clean once all of its free clusters are zeroes, and the mark soiled from before anything is
// deleted until every allocated cluster is that of an lvol again. Where a target that has just started does not find it
// clean, all free clusters are held; where it does, and finds clones, the lowest 256: SPDK copies a cluster for a clone
// before it enters that in the metadata, one at a time for each of its threads, and takes the lowest free one. A pool
// serves once enough is free for all that hosts may write to its volumes, because SPDK refuses a write that finds no
// free cluster.
//
// bdev_lvol_clone takes no clear_method, and only a snapshot inherits its origin's, so what hosts wrote to such a clone
// is unmapped when it is deleted, which a bdev without UNMAP (a kernel's block device) takes for done: of 4 MiB written
// 4 stayed on SPDK 26.05. So a clone is made blank, with its clear_method, then given its parent
// (bdev_lvol_set_parent), then the volume's name: what has that name is whole. Nothing changes a clear_method: clones
// made by releases of weft that called bdev_lvol_clone, and their snapshots, still leave their data. And hosts cannot
// discard (ONCS without Dataset Management, and no DMRSL, which Linux goes by first), because SPDK frees discarded
// clusters while commands of the host for them are pending, and clears none (docs/design/discard.md). SPDK before 26.01
// cannot hide the command from hosts; there each discard is longer than the subsystem allows (max_discard_size_kib),
// and refused.
//
// # Acknowledged means durable
//
// SPDK writes an lvol's metadata before it acknowledges a write to a new cluster, but to a drive it writes without FUA.
// So drives must not acknowledge from a volatile cache: that of an NVMe drive is turned off (Set Features, Volatile
// Write Cache), by bdev_nvme_send_cmd or, where the kernel drives it, by its ioctl, before its pool serves and with
// each Gather, because a reset of the controller turns it on again: what is written between such a reset and the next
// Gather may be lost with the node's power. The feature is not saved: a drive that is given back is as it was. A file
// is made synchronous. What cannot be had is in Pool.NotDurable, and the pool serves.
//
// # Settings
//
// What a plan decides, how SPDK calls it, and what a change of it needs is one table, in table.go. What cannot change
// while a target lives is read once for each connection to it, which ends with the target.
//
// # Releases of SPDK
//
// What each release understands is in version.go, and what those before 26.01 need where a pool is a block device of
// the kernel in nowait.go. Before 25.05 it is not known, and such a target is refused when it is started.
//
// # What differs from the kernel's target
//
// Queue depth, in-capsule data and the number of I/O queues are a
// transport's, and a transport is made once: other values need a restart of the target.
// Gather answers 0 for an export's MaxIOQueues. SPDK refuses a connection without
// "do not retry", so that hosts that come back too early try again: nothing needs to be guarded while
// the target fills. Whether a target can do RDMA is only seen when its transport is made.
// A subsystem has room for one namespace, or for those it is made with; more needs to make it again, which no host must
// see. It reports ANA, as the kernel's target does: a namespace is in the group of its NSID, optimized on every
// listener.
package spdk
