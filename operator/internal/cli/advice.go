// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// Pages that say what to do.
const (
	pageReasons      = "docs/reference/reasons.md"
	pageTargetImage  = "docs/tasks/change-the-target-image.md"
	pageTarget       = "docs/troubleshooting/target-not-ready.md"
	pagePoolFull     = "docs/troubleshooting/pool-full.md"
	pageLost         = "docs/troubleshooting/volume-lost.md"
	pageRestore      = "docs/troubleshooting/restore-suspected.md"
	pageRecover      = "docs/tasks/recover-a-deleted-volume.md"
	pageStuckNode    = "docs/troubleshooting/node-stuck.md"
	pageHangs        = "docs/troubleshooting/volume-hangs.md"
	pageIOHangs      = "docs/troubleshooting/io-hangs.md"
	pagePending      = "docs/troubleshooting/claim-pending.md"
	pagePod          = "docs/troubleshooting/pod-not-starting.md"
	pageTerminating  = "docs/troubleshooting/stuck-terminating.md"
	pageDrive        = "docs/tasks/replace-a-drive.md"
	pageReplicas     = "docs/tasks/replicate-a-volume.md"
	pageMove         = "docs/tasks/move-a-volume.md"
	pageLostNode     = "docs/tasks/recover-from-a-lost-node.md"
	pageKeys         = "docs/tasks/authentication.md"
	pageBuffers      = "docs/troubleshooting/buffers-exhausted.md"
	pageUpgrade      = "docs/tasks/upgrade.md"
	pageNotFormatted = "docs/troubleshooting/volume-not-formatted.md"
	pageWriteCache   = "docs/concepts/durability.md"
	pageLimits       = "docs/tasks/limit-a-volume.md"
	pageSizing       = "docs/sizing.md"
	pageRollout      = "docs/troubleshooting/rollout-stuck.md"
	pageOrphans      = "docs/troubleshooting/orphans-found.md"
	pageKernel       = "docs/platforms/kernel.md"
)

// adviceByReason is where to look, by the reason of a condition or of an Event.
var adviceByReason = map[string]string{
	v1alpha1.ReasonAgentSilent:          pageTarget + ", AgentSilent",
	v1alpha1.ReasonAttachmentsExhausted: pageSizing,
	v1alpha1.ReasonBuffersExhausted:     pageBuffers,
	v1alpha1.ReasonBuffersTooFew:        pageBuffers,
	v1alpha1.ReasonConnectStuck:         pageStuckNode,
	v1alpha1.ReasonCurrentUnknown:       pageReplicas,
	v1alpha1.ReasonDeviceInUse:          pageTarget,
	v1alpha1.ReasonDeviceMissing:        pageDrive,
	v1alpha1.ReasonDeviceSwapped:        pageTarget,
	v1alpha1.ReasonEngineNotAnswering:   pageTarget,
	v1alpha1.ReasonFilesystemTooSmall:   pagePoolFull,
	v1alpha1.ReasonKeysUnreadable:       pageKeys,
	v1alpha1.ReasonModuleMissing:        pageKernel,
	v1alpha1.ReasonNoSpace:              pagePoolFull,
	v1alpha1.ReasonNodeNotReady:         pageTarget,
	v1alpha1.ReasonNotMarked:            pageRecover,
	v1alpha1.ReasonOverdue:              pageHangs,
	v1alpha1.ReasonPodFailed:            pageTarget,
	v1alpha1.ReasonPodNotReady:          pageTarget,
	v1alpha1.ReasonPodPending:           pageTarget,
	v1alpha1.ReasonPoolFailed:           pageTarget,
	v1alpha1.ReasonPoolFull:             pagePoolFull,
	v1alpha1.ReasonPoolNearlyFull:       pagePoolFull,
	v1alpha1.ReasonPortalFailed:         pageTarget,
	v1alpha1.ReasonProgramMissing:       pageKernel,
	v1alpha1.ReasonQoSFailed:            pageLimits,
	v1alpha1.ReasonRestoreSuspected:     pageRestore,
	v1alpha1.ReasonSettingsDiffer:       pageRollout,
	v1alpha1.ReasonStillAdmitted:        pageTerminating,
	v1alpha1.ReasonVersionSkew:          pageUpgrade,
	v1alpha1.ReasonVolatileWriteCache:   pageWriteCache,
	v1alpha1.ReasonVolumeLost:           pageLost,
	v1alpha1.ReasonWriteCacheUnknown:    pageWriteCache,
}

// advice on a reason: what there is to read about it.
func advice(reason string) string { return "see " + cmp.Or(adviceByReason[reason], pageReasons) }

// Problem is one thing that is wrong, told of a claim where there is one, and what to do.
type Problem struct {
	Message string `json:"message"`
	// Do: a command, or the page that says more.
	Do string `json:"do,omitempty"`
}

func (p Problem) String() string {
	if p.Do == "" {
		return p.Message
	}
	return p.Message + "; " + p.Do
}
