// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// Ledger is what was promised of each node. What is left of a node's pools is worked out when it is asked for, and
// remembered until the node or one of its promises changes: so a choice among many nodes costs the promises of those
// that changed, and not all that there are. Its zero value, and nil, have no promises. It is not safe for concurrent
// use.
type Ledger struct {
	byVolume map[string]Promise
	byNode   map[string]*account
}

// account of a node.
type account struct {
	promises map[string]Promise
	// volumes among the promises.
	volumes int64
	// left of the pools, of the node with this UID and resourceVersion; nil when that is not known.
	left    map[string]space
	uid     types.UID
	version string
}

// NewLedger with these promises; of several to one volume, the first counts.
func NewLedger(promises ...Promise) *Ledger {
	l := &Ledger{}
	for _, p := range promises {
		if _, is := l.byVolume[p.Volume]; !is {
			l.Set(p)
		}
	}
	return l
}

// Set what is promised to a volume or snapshot, instead of what was.
func (l *Ledger) Set(p Promise) {
	if was, is := l.byVolume[p.Volume]; is && was == p {
		return
	}
	l.Remove(p.Volume)
	if l.byVolume == nil {
		l.byVolume, l.byNode = map[string]Promise{}, map[string]*account{}
	}
	a := l.byNode[p.Node]
	if a == nil {
		a = &account{promises: map[string]Promise{}}
		l.byNode[p.Node] = a
	}
	l.byVolume[p.Volume], a.promises[p.Volume] = p, p
	a.left = nil
	if !isSnapshot(p) {
		a.volumes++
	}
}

// Remove what is promised to a volume or snapshot.
func (l *Ledger) Remove(volume string) {
	p, is := l.byVolume[volume]
	if !is {
		return
	}
	a := l.byNode[p.Node]
	delete(l.byVolume, volume)
	delete(a.promises, volume)
	a.left = nil
	if !isSnapshot(p) {
		a.volumes--
	}
	if len(a.promises) == 0 {
		delete(l.byNode, p.Node)
	}
}

func isSnapshot(p Promise) bool { return strings.HasPrefix(p.Volume, SnapshotPrefix) }

// volumesOf a node, as many as were promised space there.
func (l *Ledger) volumesOf(node string) int64 {
	if l == nil || l.byNode[node] == nil {
		return 0
	}
	return l.byNode[node].volumes
}

// left of each ready pool of a node. The caller changes nothing in it.
func (l *Ledger) left(n *v1alpha1.NvmfNode) map[string]space {
	if l == nil || l.byNode[n.Name] == nil {
		return freeSpace(n, nil)
	}
	a := l.byNode[n.Name]
	if a.left == nil || n.ResourceVersion == "" || a.uid != n.UID || a.version != n.ResourceVersion {
		a.left, a.uid, a.version = freeSpace(n, a.but("")), n.UID, n.ResourceVersion
	}
	return a.left
}

// of a node, what is promised to others than a volume.
func (l *Ledger) of(node, but string) []Promise {
	if l == nil || l.byNode[node] == nil {
		return nil
	}
	return l.byNode[node].but(but)
}

func (a *account) but(volume string) []Promise {
	promises := make([]Promise, 0, len(a.promises))
	for _, p := range a.promises {
		if p.Volume != volume {
			promises = append(promises, p)
		}
	}
	return promises
}
