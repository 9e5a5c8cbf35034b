// SPDX-License-Identifier: Apache-2.0

//go:build !lab

package agent

import (
	"errors"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
)

// TestDroppedDrive: a drive that serves is not given up; once it is dead it is, its volume is lost and says so, and the
// other drive's goes on. When the drive comes back it is left alone until it is named no more, and then serves again.
func TestDroppedDrive(t *testing.T) {
	l := newLab(t)
	l.create(1, ofSize("80Gi")) // on a, the larger one
	l.create(2, ofSize("40Gi"))
	l.reconcile(l.agent())
	l.Expect(l.volume(1).Status.Device).To(Equal("a"))
	names := func(ids ...string) {
		t.Helper()
		node := l.nvmfNode()
		node.Spec.DroppedDrives = nil
		for _, id := range ids {
			node.Spec.DroppedDrives = append(node.Spec.DroppedDrives, v1alpha1.DroppedDrive{ID: id})
		}
		l.Expect(l.admin.Update(t.Context(), node)).To(Succeed())
		l.reconcile(l.agent())
	}
	dropped := func() v1alpha1.DroppedDriveStatus {
		t.Helper()
		l.Expect(l.nvmfNode().Status.DroppedDrives).To(HaveLen(1))
		return l.nvmfNode().Status.DroppedDrives[0]
	}

	names("a")
	l.Expect(dropped()).To(And(HaveField("Dropped", false), HaveField("Message", ContainSubstring("its pool can still be read"))))
	l.Expect(l.says(1)).To(HaveKeyWithValue("Ready", "True/AsExpected"))
	l.Expect(l.events).To(ContainElement(HavePrefix("Warning DriveNotDropped drive a: its pool can still be read")))

	l.target.BreakDevice(drivePathA, errors.New("input/output error"))
	l.reconcile(l.agent())
	l.Expect(dropped()).To(HaveField("Dropped", true))
	l.Expect(l.says(1)).To(And(HaveKeyWithValue("Degraded", "True/VolumeLost"), HaveKeyWithValue("Ready", "False/VolumeLost")))
	l.Expect(l.events).To(ContainElement(HavePrefix("Warning DriveDropped drive a and its data were given up")))
	l.Expect(l.events).To(ContainElement(And(HavePrefix("Warning VolumeLost"), ContainSubstring("its drive, a, was given up"))))
	l.Expect(l.says(2)).To(HaveKeyWithValue("Ready", "True/AsExpected"))
	l.Expect(said(l.nvmfNode().Status.Conditions)).To(HaveKeyWithValue("PoolReady", "True/AsExpected"))

	l.target.BreakDevice(drivePathA, nil)
	l.reconcile(l.agent())
	l.Expect(dropped()).To(And(HaveField("Dropped", true), HaveField("Message", ContainSubstring("the drive is present as /dev/nvme0n1"))))
	l.Expect(l.state().Pools).To(ConsistOf(HaveField("Device", "b")))
	l.Expect(l.says(1)).To(HaveKeyWithValue("Ready", "False/VolumeLost"))

	names()
	l.Expect(l.nvmfNode().Status.DroppedDrives).To(BeEmpty())
	l.Expect(l.state().Volumes).To(ContainElement(HaveField("ID", engine.ID(uuid(1)))))
	l.Expect(l.says(1)).To(HaveKeyWithValue("Ready", "True/AsExpected"))
}
