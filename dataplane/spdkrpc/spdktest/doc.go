// SPDX-License-Identifier: Apache-2.0

// Package spdktest stands in for SPDK's nvmf_tgt where no real one can be had: a stateful fake that speaks
// JSON-RPC on a Unix socket, and a way to start a real nvmf_tgt for the same tests (StartReal).
//
// The fake answers what SPDK 26.05 answers, success and error, as far as recorded transcripts and that version's
// source tell; the replay test of this package holds it to the transcripts, and runs against a real target too.
// It moves no data: hosts cannot connect to it (Target.Connect says what a target would know of one that did), and
// what I/O would have written is told with Target.Write.
//
// Recorded answers are in ../testdata/transcripts-26.05.json, and more in testdata/more-26.05.json; after a change of
// its steps these are recorded anew with
//
//	WEFT_SPDK_TARGET=/path/to/nvmf_tgt go test ./dataplane/spdkrpc/spdktest -run TestRecord -args -record
//
// What happens when:
//   - The server polls its socket every Options.PollInterval, as SPDK does every 4 ms: a poll sends the answers that
//     are ready, then reads and carries out what has come in. A call made alone therefore takes one to two
//     intervals, and pipelined calls share them.
//   - Requests are begun in the order in which they came in. Many complete later, as in SPDK: logical volumes when
//     their metadata is written, subsystems when they are paused and resumed. So answers may come out of order, and a
//     request that needs what an earlier one in the same batch makes may come too early.
//   - An lvstore takes 512 operations at once; the next one fails with "Cannot allocate memory".
//
// What is where: lvstores and logical volumes are kept in the device's own file, in the space that SPDK's metadata
// would take, so they outlive the fake, its process and a copy of the file, and wiping the device wipes them. They
// are not in SPDK's format: a real target does not read them, and the fake refuses a device that a real target has
// written. All else (transports, subsystems, namespaces, hosts, listeners, keys, QoS) is gone with the target. With its
// node's power (LosePower), what a volatile cache holds is gone as well: the last writes to a drive whose cache is on,
// and to a file that is not synchronous.
package spdktest
