// SPDX-License-Identifier: Apache-2.0

// Package histories has one test: random sequences of what a cluster asks of a CSI driver, in which calls are repeated,
// made twice at once, cancelled and given up, and the controller, the node plugin, the agent and the target are killed
// in the middle of them; hosts reboot, or lose their way over one of two transports. Volumes have filesystems or are
// raw block devices, some of them shared. Afterwards objects, engine and nodes must agree, and every volume must read
// as it was written.
//
// All parts are the real ones but for the kernel, the filesystem programs and SPDK's target, which are stateful fakes:
// what a process has asked of those, and of the API server, survives its end, and nothing else does. A reboot ends what
// the host's kernel has, too.
//
//	make test-chaos                       several hundred sequences, from a seed of the moment
//	make test-chaos SEED=7 SEQUENCES=1    the one sequence of seed 7
package histories
