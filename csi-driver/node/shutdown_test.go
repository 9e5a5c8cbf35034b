// SPDX-License-Identifier: Apache-2.0

package node_test

// giveUp is the command by which an administrator ends the waiting for targets that are gone. The kernel's part is
// tried on a machine of the lab (TestLabShutdownWhileTheTargetIsGone), and docs/operations.md has it
// (TestShutdownIsDocumentedAsItIsTried).
const giveUp = `for c in /sys/class/nvme/nvme*; do
  grep -qs '^nqn.2026-11.storage.weft:' $c/subsysnqn && grep -qs '^connecting' $c/state && echo 1 >$c/delete_controller
done; true`
