// SPDX-License-Identifier: Apache-2.0

// Package tuning gives a node's kernel and NICs the settings of a plan, and puts back what they were.
//
// It works in rounds:
//
//	gather  the node's settings that are wanted or on record: what is observed
//	decide  which record and which Writes follow from it; Decide is pure
//	store   the record, where a successor finds it
//	act     the Writes, each read back
//
// until a round finds nothing to write. Changing a NIC's channels makes new interrupts, and some drivers
// reset one setting when another changes: that is what further rounds are for.
//
// # Invariants
//
//   - What a setting was is stored before it is written for the first time, and stays on record until it was seen to be
//     put back. So a process may be killed between any two steps.
//   - Nothing is written that is as it should be already.
//   - A record is good for one boot of the kernel and one appearance of a NIC: after either the values are
//     the kernel's or the driver's own, and what is on record is not put into them.
//   - What cannot be read is not absent: its record stays.
//   - What the kernel refuses or changes stops nothing else.
package tuning
