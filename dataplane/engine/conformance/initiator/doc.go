// SPDX-License-Identifier: Apache-2.0

// Package initiator connects the kernel's initiator to the target under test, for harnesses that run on a node of the
// lab: with build tag lab.
package initiator
