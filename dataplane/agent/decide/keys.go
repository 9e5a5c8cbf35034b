// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/internal/text"
)

// readable says whether this node has the keys of a host, or needs none.
func (d *decider) readable(sealed string) bool {
	_, known := d.Keys[sealed]
	return sealed == "" || known
}

// authentication of hosts, by what their keys are sealed as; nil when none has keys.
func (d *decider) authentication(sealed map[string]string) map[string]engine.Authentication {
	var group v1alpha1.DHGroup
	if a := d.Node.Spec.Plan.Authentication; a != nil {
		group = a.DHGroup
	}
	var all map[string]engine.Authentication
	for host, as := range sealed {
		if as == "" {
			continue
		}
		if all == nil {
			all = map[string]engine.Authentication{}
		}
		all[host] = engine.Authentication{Keys: d.Keys[as], Group: group}
	}
	return all
}

// unreadable are the listed hosts whose keys this node does not have: they were sealed to a key that it had before it
// was installed again, as a rule.
func (d *decider) unreadable(v *volume) []v1alpha1.VolumeHost {
	return slices.DeleteFunc(slices.Clone(v.obj.Spec.Hosts), func(h v1alpha1.VolumeHost) bool {
		return v.dismissed(h.NQN) || slices.Contains(v.held, h) || d.readable(h.SealedKeys)
	})
}

// admitsOnly these hosts, and some of those whose keys cannot be read, at most. Then it stays as it is: who is
// connected goes on, and nobody has to be shut out.
func (v *volume) admitsOnly(wanted []string, unread []v1alpha1.VolumeHost) bool {
	return len(unread) > 0 && !slices.ContainsFunc(v.admits(), func(nqn string) bool {
		return !slices.Contains(wanted, nqn) && !slices.ContainsFunc(unread, func(h v1alpha1.VolumeHost) bool { return h.NQN == nqn })
	})
}

// keysUnreadable says which hosts are not let in, or go on with the keys that they have.
func keysUnreadable(unread []v1alpha1.VolumeHost) metav1.Condition {
	names := make([]string, len(unread))
	for i, h := range unread {
		names[i] = h.Node
	}
	return no(v1alpha1.ReasonKeysUnreadable, "the keys of its attachment to %s are not sealed to this node, which may have been reinstalled; connected hosts stay connected, and the CSI controller seals new keys: check that it runs",
		text.Few(names, named, ", "))
}

// fingerprint of the keys that the engine has of a host; empty without.
func (v *volume) fingerprint(nqn string) string {
	for _, e := range append(slices.Clone(v.former), v.export) {
		if e == nil {
			continue
		}
		if a, has := e.Authentication[nqn]; has {
			return a.Fingerprint
		}
	}
	return ""
}

// sealedKeys that are to be on record with the export: those of its hosts. The keys themselves never are.
func (v *volume) sealedKeys(want engine.Export) map[string]string {
	var sealed map[string]string
	for _, h := range v.obj.Spec.Hosts {
		if h.SealedKeys == "" || !slices.Contains(want.Hosts, h.NQN) {
			continue
		}
		if sealed == nil {
			sealed = map[string]string{}
		}
		sealed[h.NQN] = h.SealedKeys
	}
	return sealed
}

// recordedExport is what was to be served, with the keys of its hosts. One whose keys cannot be read is left out.
func (d *decider) recordedExport(r Record) *engine.Export {
	if r.Export == nil {
		return nil
	}
	want := *r.Export
	want.Hosts = slices.DeleteFunc(slices.Clone(want.Hosts), func(host string) bool { return !d.readable(r.Sealed[host]) })
	sealed := map[string]string{}
	for _, host := range want.Hosts {
		sealed[host] = r.Sealed[host]
	}
	want.Authentication = d.authentication(sealed)
	return &want
}
