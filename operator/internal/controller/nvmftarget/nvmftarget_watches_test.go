// SPDX-License-Identifier: Apache-2.0

package nvmftarget

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/weft-storage/weft/api/v1alpha1"
)

func TestNodesAreJudgedAnewOnlyForWhatIsJudged(t *testing.T) {
	node := func() *v1alpha1.NvmfNode {
		return &v1alpha1.NvmfNode{
			ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", Generation: 2},
			Status: v1alpha1.NvmfNodeStatus{
				ObservedGeneration: 2, Inventory: &v1alpha1.Inventory{KernelVersion: "6.12"},
				Pools: []v1alpha1.PoolStatus{{Device: "d", Ready: true, Total: resource.NewQuantity(9, resource.BinarySI), Free: resource.NewQuantity(8, resource.BinarySI)}},
				Conditions: []metav1.Condition{
					{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAsExpected},
					{Type: v1alpha1.ConditionVersionSkew, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonAsExpected},
					{Type: v1alpha1.ConditionEvictable, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAsExpected},
				},
			},
		}
	}
	for name, tc := range map[string]struct {
		change func(*v1alpha1.NvmfNode)
		want   bool
	}{
		"nothing":                  {func(*v1alpha1.NvmfNode) {}, false},
		"what hosts have written":  {func(n *v1alpha1.NvmfNode) { n.Status.Pools[0].Free = resource.NewQuantity(7, resource.BinarySI) }, false},
		"what is cleared":          {func(n *v1alpha1.NvmfNode) { n.Status.Pools[0].Clearing = resource.NewQuantity(7, resource.BinarySI) }, false},
		"how many are attached":    {func(n *v1alpha1.NvmfNode) { n.Status.Attachments = &v1alpha1.Places{Used: 3} }, false},
		"what has no object":       {func(n *v1alpha1.NvmfNode) { n.Status.Orphans = []v1alpha1.Orphan{{UUID: "o"}} }, false},
		"the version of its agent": {func(n *v1alpha1.NvmfNode) { n.Status.AgentVersion = "1.2.0" }, false},
		"whose versions agree":     {func(n *v1alpha1.NvmfNode) { n.Status.Conditions[1].Status = metav1.ConditionTrue }, false},
		"what a drain waits for":   {func(n *v1alpha1.NvmfNode) { n.Status.Conditions[2].Reason = v1alpha1.ReasonOnlyReplica }, false},
		"a replica that is alone":  {func(n *v1alpha1.NvmfNode) { n.Status.Conditions[2].Reason = v1alpha1.ReasonOnlyInSyncReplica }, true},
		"its resourceVersion":      {func(n *v1alpha1.NvmfNode) { n.ResourceVersion = "9" }, false},
		"a condition":              {func(n *v1alpha1.NvmfNode) { n.Status.Conditions[0].Status = metav1.ConditionFalse }, true},
		"a condition's message":    {func(n *v1alpha1.NvmfNode) { n.Status.Conditions[0].Message = "m" }, true},
		"its inventory":            {func(n *v1alpha1.NvmfNode) { n.Status.Inventory.KernelVersion = "6.13" }, true},
		"a pool's size":            {func(n *v1alpha1.NvmfNode) { n.Status.Pools[0].Total = resource.NewQuantity(10, resource.BinarySI) }, true},
		"a pool that fails":        {func(n *v1alpha1.NvmfNode) { n.Status.Pools[0].Ready = false }, true},
		"what was promised":        {func(n *v1alpha1.NvmfNode) { n.Status.Pools[0].Promised = resource.NewQuantity(1, resource.BinarySI) }, true},
		"its capacity":             {func(n *v1alpha1.NvmfNode) { n.Status.Capacity.Free = resource.NewQuantity(1, resource.BinarySI) }, true},
		"its public key":           {func(n *v1alpha1.NvmfNode) { n.Status.PublicKey = "k" }, true},
		"its spec":                 {func(n *v1alpha1.NvmfNode) { n.Generation++ }, true},
		"that its agent saw that":  {func(n *v1alpha1.NvmfNode) { n.Status.ObservedGeneration++ }, true},
		"that it is deleted":       {func(n *v1alpha1.NvmfNode) { n.DeletionTimestamp = new(metav1.Now()) }, true},
		"that it is another":       {func(n *v1alpha1.NvmfNode) { n.UID = "v" }, true},
	} {
		is := node()
		tc.change(is)
		if got := judgedAnew().Update(event.UpdateEvent{ObjectOld: node(), ObjectNew: is}); got != tc.want {
			t.Errorf("%s changed: judged anew %v, want %v", name, got, tc.want)
		}
	}
}

// Events wait in proportion to what a look costs, and never for long.
func TestPause(t *testing.T) {
	r := &Reconciler{}
	for took, want := range map[time.Duration]time.Duration{0: 0, 3 * time.Millisecond: 30 * time.Millisecond, time.Minute: longestPause} {
		r.took.Store(int64(took))
		if got := r.pause(); got != want {
			t.Errorf("after a look of %s: %s, want %s", took, got, want)
		}
	}
}
