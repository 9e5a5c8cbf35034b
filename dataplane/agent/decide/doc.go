// SPDX-License-Identifier: Apache-2.0

// Package decide says, from what was observed of a node, what its engine has to do and what is true of the node's
// objects. It is pure: it reads and writes nothing, and has no memory. The agent gathers what it decides on, records
// what was acted on, and does what it decided; the invariants that both keep are in the agent's documentation.
package decide
