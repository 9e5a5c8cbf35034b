// SPDX-License-Identifier: Apache-2.0

// Package agent makes one node's engine do what the node's objects say, and
// writes what is true into their status. What the engine calls a volume is one
// copy of a volume, an NvmfReplica: neither knows of other replicas, and no
// agent reads an NvmfVolume.
//
// One reconciler serves the whole node, in rounds:
//
//	start   the target with the plan's settings, if it waits for them
//	gather  the objects of this node and one engine.State: what is observed
//	decide  which operations follow from it, and which status each object has; package decide is pure
//	record  what is going to be acted on, durably
//	act     the Operations, in bulk, in an order that is safe to be killed in
//
// and again, until a round finds nothing left to do; then statuses are written
// where they changed, and finalizers taken off.
//
// A target that ends comes back empty, and its hosts wait. Its return is the one event that goes ahead of everything:
// it waits for no back-off, ends the writing of statuses, and starts the rounds again. What volumes' statuses say stays
// meanwhile.
//
// # Invariants
//
//   - Unknown is never absent. A volume is missing only when its own pool was
//     read and does not hold it; a pool that cannot be read proves nothing.
//   - A volume is made once. The pool chosen for it is written to status.device before the engine is asked, so that
//     an agent that comes after a killed one knows where to look; and what was
//     Created is never made again.
//   - No portal opens while something else is left to try: a host that
//     reconnects to a node that came back must find its subsystem.
//   - What has no object is never deleted, and no host is shut out for the lack of an object: objects
//     can be lost (a restored etcd, a deleted CRD, an agent that speaks to the
//     wrong cluster) while pods still do their I/O. It is counted and reported.
//   - A target is never restarted, nor a portal in use closed, for the sake of a setting: what differs is
//     said in a condition, and whoever owns the target chooses the moment.
//   - Nobody acts on the past. What was acted on for each volume and snapshot (UID, resourceVersion and generation of
//     the object, its export, the attachments that were dismissed) is recorded before anything is done. An object that
//     cannot have come after that, or data without a record, is served on as it is until a person declares the restore;
//     see decide.Record. The records are in a file under the state folder of the node, not in the pools: that
//     survives a reboot, and SPDK has no place in a pool that can be written while it serves. A drive that came from
//     another node has no record there, which is such a case.
//   - The process keeps nothing that its successor would miss.
package agent
