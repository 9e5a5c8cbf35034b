// SPDX-License-Identifier: Apache-2.0

package nvmftarget

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// overtaken reads slowly: another operator writes the target's status whenever something else than targets is read.
type overtaken struct {
	client.Client
	by func()
}

func (o overtaken) Get(ctx context.Context, key client.ObjectKey, out client.Object, opts ...client.GetOption) error {
	o.by()
	return o.Client.Get(ctx, key, out, opts...)
}

func (o overtaken) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if _, targets := list.(*v1alpha1.NvmfTargetList); !targets {
		o.by()
	}
	return o.Client.List(ctx, list, opts...)
}

// A turn is recorded with the version of the target from before the nodes were read. So it is refused if another
// operator, which may know more of the nodes, has written the target's status since.
func TestTurnsAreOfTheVersionFromBeforeTheNodesWereRead(t *testing.T) {
	f, r, at := newFleet(t, 2)
	slow := overtaken{at, func() {
		change(at.store, &v1alpha1.NvmfTarget{ObjectMeta: metav1.ObjectMeta{Name: f.Target}}, func(t *v1alpha1.NvmfTarget) { t.Status.Rollout.Outdated++ })
	}}
	for name, look := range map[string]func(context.Context, string) (*view, error){
		"look":     r.look,
		"lookLive": func(ctx context.Context, target string) (*view, error) { return r.lookLive(ctx, target, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			report(f, at, 1, 1)
			before := &v1alpha1.NvmfTarget{}
			if err := at.Get(t.Context(), client.ObjectKey{Name: f.Target}, before); err != nil {
				t.Fatal(err)
			}
			r.Client, r.Live = slow, slow
			v, err := look(t.Context(), f.Target)
			r.Client, r.Live = at, at
			if err != nil || v.target.ResourceVersion != before.ResourceVersion {
				t.Fatalf("%v: the target's version is %s, not %s", err, v.target.ResourceVersion, before.ResourceVersion)
			}
			now := &v1alpha1.NvmfTarget{}
			if err := at.Get(t.Context(), client.ObjectKey{Name: f.Target}, now); err != nil || now.ResourceVersion == before.ResourceVersion {
				t.Fatalf("%v: nobody wrote the target", err)
			}
		})
	}
}
