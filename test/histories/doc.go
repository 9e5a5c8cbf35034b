// SPDX-License-Identifier: Apache-2.0

// Package histories has one test: random sequences of what a cluster asks of a CSI driver, in which calls are repeated,
// made twice at once, cancelled and given up, and the controller, the node plugin, the agent and the target are killed
// in the middle of them; hosts reboot, or lose their way over one of two transports. Volumes have filesystems or are
// raw block devices, some of them shared. Afterwards objects, engine and nodes must agree, and every volume must read
// as it was written.
//
// The CSI controller is killed between its writes of an NvmfVolume and of its NvmfReplica, too, or stalls there while
// another process of it goes on, and continues with what it knew before.
//
// The storage node loses its power at any moment, also right after what pods wrote, which nobody flushes. And the
// object of a volume, of its replica or of a snapshot, attached or not, is deleted by mistake: it is served on while it
// is attached. Then a volume that lacks its NvmfReplica only gets another. Else its data is an orphan, and is taken
// back, or deleted because that was meant after all.
//
// All parts are the real ones but for the kernel, the filesystem programs and SPDK's target, which are stateful fakes:
// what a process has asked of those, and of the API server, survives its end, and nothing else does. A reboot ends what
// the host's kernel has, too. A loss of power ends what is in a volatile cache of the storage node's drive, or of its
// kernel where the pool is a file.
//
//	make test-chaos                       several hundred sequences, from a seed of the moment
//	make test-chaos SEED=7 SEQUENCES=1    the one sequence of seed 7
package histories
