// SPDX-License-Identifier: Apache-2.0

package nvmftarget

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/test/apiserver"
)

// newTarget that no node serves yet, with its finalizer, and capable nodes.
func newTarget(t *testing.T, nodes int) (*Reconciler, *session, ctrl.Request) {
	t.Helper()
	f, s := apiserver.PaperFleet("fast", nodes, 0), newStore(t)
	target := f.NewTarget(f.Target)
	target.Finalizers = []string{v1alpha1.TargetFinalizer}
	s.put(target)
	for i := range nodes {
		s.put(f.KubernetesNode(i))
		node := f.NvmfNode(i)
		node.Spec = v1alpha1.NvmfNodeSpec{}
		s.put(node)
	}
	r, at := s.reconciler(newClock())
	return r, at, ctrl.Request{NamespacedName: types.NamespacedName{Name: f.Target}}
}

// written by a look, as the kinds of the objects, in order.
func (s *session) kinds() (kinds []string) {
	for _, w := range s.writes {
		for _, kind := range []string{"NvmfTarget", "NvmfNode"} {
			if strings.Contains(w.what, fmt.Sprintf(`"kind":%q`, kind)) {
				kinds = append(kinds, kind)
			}
		}
	}
	return kinds
}

// What becomes of a new target is told before its nodes get their plans: of many, that takes a while.
func TestVerdictOnANewTargetComesBeforeItsClaims(t *testing.T) {
	const nodes = 3
	r, at, req := newTarget(t, nodes)
	if _, err := r.Reconcile(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	if kinds := at.kinds(); len(kinds) != 1+nodes || kinds[0] != "NvmfTarget" {
		t.Fatalf("it wrote %v", kinds)
	}
	at.apply()
	target := &v1alpha1.NvmfTarget{}
	if err := at.Get(t.Context(), req.NamespacedName, target); err != nil {
		t.Fatal(err)
	}
	if is := target.Status.Nodes; is.Matching != nodes || is.Capable != nodes || is.Ready != 0 {
		t.Errorf("it says %+v", is)
	}
}

// A verdict that is refused, because another operator has given one since, is not carried out.
func TestWhatAnotherOperatorHasOvertakenIsNotCarriedOut(t *testing.T) {
	r, at, req := newTarget(t, 2)
	r.Client = overtaken{at, func() {
		change(at.store, &v1alpha1.NvmfTarget{ObjectMeta: metav1.ObjectMeta{Name: req.Name}}, func(t *v1alpha1.NvmfTarget) { t.Status.Rollout.Outdated++ })
	}}
	if _, err := r.Reconcile(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	if len(at.writes) > 0 {
		t.Errorf("it wrote %v", at.kinds())
	}
}
