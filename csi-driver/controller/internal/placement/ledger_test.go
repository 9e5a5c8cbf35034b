// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// Whatever was set, moved, grown and removed before, and whatever was asked meanwhile, a ledger says what a new one
// says that has the same promises.
func TestLedgerSaysWhatItsPromisesSay(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var nodes []v1alpha1.NvmfNode
	for _, name := range []string{"a", "b", "c"} {
		nodes = append(nodes, node(name, pool("d", 100*gi), pool("e", 50*gi), subsystems(12)))
	}
	ledger, promises := &Ledger{}, map[string]Promise{}
	for step := range 3000 {
		name := fmt.Sprint(random.IntN(30))
		if random.IntN(5) == 0 {
			name = SnapshotPrefix + name
		}
		switch random.IntN(4) {
		case 0:
			ledger.Remove(name)
			delete(promises, name)
		case 1: // its pool changes
			i := random.IntN(len(nodes))
			n := nodes[i].DeepCopy()
			n.ResourceVersion = fmt.Sprint(step + 1)
			n.Status.Pools[0].Total.Set(int64(random.IntN(200)+1) * gi)
			nodes[i] = *n
		default:
			p := Promise{
				Volume: name, Node: []string{"a", "b", "c", "gone"}[random.IntN(4)], Device: []string{"", "d", "e"}[random.IntN(3)],
				SizeBytes: int64(random.IntN(20)+1) * gi,
			}
			ledger.Set(p)
			promises[name] = p
		}
		fresh := NewLedger(slices.Collect(maps.Values(promises))...)
		got, refused := candidates(Request{Target: "fast"}, nodes, ledger)
		want, wantRefused := candidates(Request{Target: "fast"}, nodes, fresh)
		if diff := cmp.Diff(want, got) + cmp.Diff(wantRefused, refused); diff != "" {
			t.Fatalf("step %d: %s", step, diff)
		}
		room, known := Room(&nodes[0], "d", name, ledger)
		if wantRoom, wantKnown := Room(&nodes[0], "d", name, fresh); room != wantRoom || known != wantKnown {
			t.Fatalf("step %d: room for %d (%v), want %d (%v)", step, room, known, wantRoom, wantKnown)
		}
	}
}
