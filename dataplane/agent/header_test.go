// SPDX-License-Identifier: Apache-2.0

//go:build !lab

package agent

import (
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
)

// serves volume number n with a header in front of so many bytes of data, and says what data there is.
func (l *lab) serves(n int, dataBytes int64) {
	l.t.Helper()
	l.Expect(l.says(n)).To(HaveKeyWithValue("Ready", "True/AsExpected"))
	l.Expect(l.volume(n).Status.Size.Value()).To(Equal(dataBytes), "of the data")
	l.Expect(l.state().Volumes).To(ContainElement(And(HaveField("ID", id(n)), HaveField("SizeBytes", dataBytes+v1alpha1.OverheadBytes))))
}

// Whatever a volume begins with, the engine has its header as well, and no object counts that as data.
func TestVolumesHaveAHeader(t *testing.T) {
	const smallest, larger = 4 << 20, 12 << 20
	l := newLab(t)
	r := l.agent()
	l.create(1, ofSize("4Mi"))
	l.reconcile(r)
	l.serves(1, smallest)

	l.createSnapshot(2, l.name(1))
	l.create(3, ofSize("4Mi"), func(v *v1alpha1.NvmfReplica) { v.Spec.Source = &v1alpha1.ReplicaSource{Replica: l.name(1)} })
	l.create(4, ofSize("12Mi"), fromSnapshot(l.name(2)))
	l.reconcile(r)
	var snap v1alpha1.NvmfSnapshot
	l.Expect(l.admin.Get(t.Context(), client.ObjectKey{Name: l.name(2)}, &snap)).To(Succeed())
	l.Expect(snap.Status.Size.String()).To(Equal("4Mi"))
	l.serves(3, smallest)
	l.serves(4, larger)

	l.change(1, ofSize("12Mi"))
	l.change(3, ofSize("12Mi"))
	l.reconcile(r)
	l.serves(1, larger)
	l.serves(3, larger)

	node := l.nvmfNode().Status
	l.Expect(node.Capacity.Allocated.Value()).To(Equal(int64(3 * (larger + v1alpha1.OverheadBytes))))
	l.Expect(node.Capacity.Free.Value()).To(Equal(int64(150*gib - 3*(larger+v1alpha1.OverheadBytes))))
}

// A volume that fills its drive leaves nothing for another, be it the smallest.
func TestAHeaderTakesRoom(t *testing.T) {
	l := newLab(t)
	r := l.agent()
	l.create(1, ofSize("102400Mi")) // as large as drive a
	l.create(2, ofSize("102392Mi")) // with its header and trailer
	l.create(3, ofSize("51192Mi"))  // drive b
	l.create(4, ofSize("4Mi"))
	l.reconcile(r)
	l.Expect(l.says(1)).To(HaveKeyWithValue("Created", "False/NoSpace"))
	l.serves(2, 100*gib-v1alpha1.OverheadBytes)
	l.serves(3, 50*gib-v1alpha1.OverheadBytes)
	l.Expect(l.says(4)).To(HaveKeyWithValue("Created", "False/NoSpace"))
	l.Expect(l.nvmfNode().Status.Capacity.Free.Value()).To(BeZero())
	l.Expect(l.state().Volumes).To(HaveLen(2))
}

// Data that has no object is served again with the size that was listed, as it was.
func TestATakenBackVolumeKeepsItsHeader(t *testing.T) {
	l := newLab(t)
	r := l.agent()
	l.create(1, ofSize("12Mi"))
	l.reconcile(r)
	l.Expect(l.admin.Delete(t.Context(), l.volume(1))).To(Succeed())
	for range 3 { // it is unexported, listed, and let go
		l.reconcile(r)
	}
	orphans := l.nvmfNode().Status.Orphans
	l.Expect(orphans).To(HaveLen(1))
	l.Expect(orphans[0].Size.String()).To(Equal("12Mi"))

	l.target.ForgetCalls()
	l.create(1, func(v *v1alpha1.NvmfReplica) { v.Spec.Used, v.Spec.Size = true, orphans[0].Size })
	l.reconcile(r)
	l.serves(1, 12<<20)
	for _, c := range l.changes() {
		l.Expect(c.Method).To(Equal(enginetest.Export), "nothing is made or grown")
	}
	l.change(1, ofSize("16Mi"))
	l.reconcile(r)
	l.serves(1, 16<<20)
}
