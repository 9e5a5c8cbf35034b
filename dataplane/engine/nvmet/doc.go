// SPDX-License-Identifier: Apache-2.0

// Package nvmet is the engine of the Linux kernel's NVMe target, driven
// through configfs.
//
// A pool is a block device, or a file behind a loop device, with an XFS that
// has reflinks. Its label is PoolLabel: that is how a later process, and a later boot,
// know it for weft's. It is mounted on <state dir>/pools/<device ID>, percent-encoded,
// and the directory stays when the machine restarts: a directory that is not
// mounted is a pool that cannot be read, and nothing is known of its volumes.
// Volumes are sparse files volumes/<uuid> in it, so they are thin; snapshots
// are files snapshots/<uuid>; snapshots and clones are made with FICLONE, which
// shares extents and copies no data. The kernel serves them with
// direct I/O, so a write that a host has seen completed is in every later snapshot.
//
// Nothing is remembered in the process but copies that are being made: pools are found in mountinfo, volumes in
// their directories, exports and portals in configfs. Ports of weft have the numbers
// from FirstPort; other ports and other subsystems are left alone.
//
// # Acknowledged means durable
//
// A file of a volume has the attribute S (chattr +S) before its namespace is made, and the kernel honours it with each
// write of its target, as if the write carried O_SYNC: it completes once data, and what XFS must know to find them, are
// on the drive. Without it a write to a block that the file did not have yet is lost with the power of the node, for
// XFS logs it later: hosts would see it acknowledged, and, as they only wait while the node is away, have their next
// flush succeed. XFS takes care of volatile caches of drives below: a write to a new block ends with a log record that
// is written with a preflush and FUA, an overwrite is written with FUA or followed by a flush, and neither is needed
// where the kernel knows of no such cache (queue/write_cache in sysfs says "write through"). A loop device passes
// flushes on to the filesystem of its file. Zeroing and discarding, which change the file's extents, wait for the log
// as well.
//
// # Copies of fragmented files
//
// FICLONE copies the list of a file's extents one by one, with the file locked: milliseconds as a rule, minutes for
// millions of extents, which is what random writes leave of a file that a snapshot shares. So it goes on beside the
// engine's calls (copy.go), and the file has no name until it is whole. Meanwhile writes to the source wait, and
// whatever would wait for them, or for the lock, is refused with ErrBusy: its growth, its deletion, the dismissal of
// its hosts. Since Linux 6.8, nobody else waits for it over TCP. Over RDMA, connections share completion queues, and
// a write that waits holds up the other connections of its queue.
//
// # Hosts that lose their admission
//
// The kernel does not disconnect a host when its link in allowed_hosts goes, and a controller that is disconnected may
// still have commands in its receive buffer. So if others stay admitted, the subsystem is taken off its ports, its
// namespaces are disabled, which waits for commands in flight, and it is removed and made again: what is left of an old
// controller knows only the old subsystem, which has no namespaces. Hosts
// that stay admitted lose their connection too, and reconnect by themselves. Where the volume's file cannot be opened
// any more, the subsystem stays without namespaces, hosts and ports until it can: a host that came back and missed its
// namespace would give up its block device.
//
// If nobody stays admitted, the subsystem is retired where it stands (retireAll in refused.go). Each port stops serving
// it, which disconnects its hosts, and serves it again at once. The namespaces are disabled, and never enabled again in
// this subsystem.
//
// A host that is retired has no controllers, by its node's word. Only its link in allowed_hosts goes, and what there is
// of its keys: nobody is disturbed, and it is not refused afterwards. A controller that it has after all goes with the
// next change of the subsystem's links.
//
// # Hosts that were dismissed
//
// A host that was dismissed reconnects, and must not be told "do not retry": since Linux 6.10 it would give up, failing
// its I/O, and a mirror over it and another target then acknowledges what only one of them has. The kernel's target
// says it to hosts that a subsystem does not admit, and to all when the port does not know the subsystem. So what
// was dismissed stays linked, without namespaces, and admits the host with a DH-HMAC-CHAP key that cannot be used: the
// target fails to set up authentication, and answers with an internal error (Linux 6.12), after which the host tries
// again. Gather does not list such a subsystem. It is removed after a week, or when there are more than 1024, the
// oldest first. A file in the state folder has them all, so that they are there again after a reboot before the portals
// open. A port that serves nothing else does not serve them either: it does not listen, and hosts try again.
//
// The key belongs to the host's NQN, for all subsystems. So a host that another subsystem admits at that moment is told
// to give up; weft has an NQN for each attachment, which is never admitted again once it was dismissed. The same holds
// on kernels without NVME_TARGET_AUTH, which came with Linux 6.0. Between the two changes of a link, a port does not
// know the subsystem, for some 0.1 milliseconds; the next attempt of a host that was connected comes seconds later. One
// that was refused before may try again at that moment; over TCP, the rule of the next section keeps it waiting.
//
// A write of attr_qid_max would disconnect hosts without that, but walks the list of controllers without the lock that
// their release takes (drivers/nvme/target/configfs.c), and could crash the node.
//
// # Hosts that come back too early
//
// Since Linux 6.10 a host that reconnects gives up for good, failing I/O, when
// it reaches a port that does not know its subsystem.
// A refused connection it tries again. But a port starts to listen with its first
// subsystem, and subsystems are linked one by one. While they are, new TCP
// connections to the port are dropped by a rule of nftables (table
// "weft-guard"), which a host's TCP repeats a second later. The rule ends by itself after a minute
// if this process does not live to remove it. Where nftables cannot be used the
// links are made all the same, as one burst; that is logged.
//
// RDMA connections pass no firewall. There, the window between the first link and
// the last remains: 0.1 milliseconds for each subsystem (measured on an emulated machine, Linux 6.12). A
// host reconnects once in reconnect_delay seconds, 10 by default, so with 100
// subsystems it has about one chance in two thousand to hit it. The same holds for the moment in
// which a subsystem is made again while other hosts stay admitted, which
// takes as long as its commands in flight.
//
// # What the kernel cannot do
//
// A change of MaxIOQueues makes connected hosts reconnect at once. Kernels before 6.1
// cannot limit I/O queues, before 6.9 not the queues' depth; there the host's own limits
// hold. RDMA takes at most 16 KiB in a capsule. A portal listens only while it has
// an export that admits somebody; its address is checked before, whether the port is free is seen then.
package nvmet
