// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/internal/dhchap"
)

const sealedA, sealedB = "c2VhbGVkLWE=", "c2VhbGVkLWI="

func newKeys(t *testing.T) dhchap.Pair {
	t.Helper()
	keys, err := dhchap.NewPair()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return keys
}

// withSealed is a listed host with keys.
func withSealed(nqn, sealed string) func(*v1alpha1.NvmfReplica) {
	return func(v *v1alpha1.NvmfReplica) {
		v.Spec.Hosts = append(v.Spec.Hosts, v1alpha1.VolumeHost{NQN: nqn, Node: "host", SealedKeys: sealed, SealedTo: strings.Repeat("0", 32)})
	}
}

// keyedExport as Gather answers it.
func keyedExport(n int, keys dhchap.Pair, host string) engine.Export {
	e := exported(n, host)
	e.Authentication = map[string]engine.Authentication{host: {Fingerprint: keys.Fingerprint()}}
	return e
}

func TestKeysOfHosts(t *testing.T) {
	keys, others := newKeys(t), newKeys(t)
	for _, tt := range []struct {
		name   string
		volume *v1alpha1.NvmfReplica
		served []engine.Export
		known  map[string]dhchap.Pair
		does   []string
		says   string
		told   map[string]string
	}{
		{
			name: "a host with keys is admitted with them", volume: testVolume(1, isCreatedOn("a"), withSealed(hostA, sealedA)),
			known: map[string]dhchap.Pair{sealedA: keys}, does: []string{"Export v1 to 1"}, says: "False/Pending",
		},
		{
			name: "nothing to do", volume: testVolume(1, isCreatedOn("a"), withSealed(hostA, sealedA)), served: []engine.Export{keyedExport(1, keys, hostA)},
			known: map[string]dhchap.Pair{sealedA: keys}, says: "True/AsExpected", told: map[string]string{hostA: keys.Fingerprint()},
		},
		{
			name: "other keys", volume: testVolume(1, isCreatedOn("a"), withSealed(hostA, sealedA)), served: []engine.Export{keyedExport(1, others, hostA)},
			known: map[string]dhchap.Pair{sealedA: keys}, does: []string{"Export v1 to 1"}, says: "False/Pending", told: map[string]string{hostA: others.Fingerprint()},
		},
		{
			name: "admitted without the keys that it needs", volume: testVolume(1, isCreatedOn("a"), withSealed(hostA, sealedA)), served: []engine.Export{exported(1, hostA)},
			known: map[string]dhchap.Pair{sealedA: keys}, does: []string{"Export v1 to 1"}, says: "False/Pending", told: map[string]string{hostA: ""},
		},
		{
			name: "admitted with keys that it should not have", volume: testVolume(1, isCreatedOn("a"), withHosts(hostA)), served: []engine.Export{keyedExport(1, keys, hostA)},
			does: []string{"Export v1 to 1"}, says: "False/Pending", told: map[string]string{hostA: keys.Fingerprint()},
		},
		{
			name: "keys that cannot be read let nobody in", volume: testVolume(1, isCreatedOn("a"), withSealed(hostA, sealedA)), says: "False/KeysUnreadable",
		},
		{
			name: "keys that cannot be read any more leave their host connected", volume: testVolume(1, isCreatedOn("a"), withSealed(hostA, sealedA)),
			served: []engine.Export{keyedExport(1, keys, hostA)}, says: "False/KeysUnreadable", told: map[string]string{hostA: keys.Fingerprint()},
		},
		{
			name: "another host is shut out all the same", volume: testVolume(1, isCreatedOn("a"), withSealed(hostA, sealedA)),
			served: []engine.Export{exported(1, hostB)}, does: []string{"Export v1 to 0"}, says: "False/Pending", told: map[string]string{hostB: ""},
		},
		{
			name: "one can be read, and the other is not let in", volume: testVolume(1, isCreatedOn("a"), withSealed(hostA, sealedA), withSealed(hostB, sealedB)),
			known: map[string]dhchap.Pair{sealedA: keys}, served: []engine.Export{keyedExport(1, keys, hostA)}, says: "False/KeysUnreadable", told: map[string]string{hostA: keys.Fingerprint()},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			s := quietNode()
			there(&s, tt.volume, tt.served...)
			s.Keys = tt.known
			d := Decide(s)
			g.Expect(written(d.Operations)).To(Equal(tt.does))
			g.Expect(said(d.Volumes["v1"].Conditions)).To(HaveKeyWithValue("Exported", tt.says))
			told := map[string]string{}
			for _, h := range d.Volumes["v1"].Hosts {
				told[h.NQN] = h.Keys
			}
			if tt.told == nil {
				tt.told = map[string]string{}
			}
			g.Expect(told).To(Equal(tt.told))
			for _, x := range d.Operations.Export {
				for _, host := range x.Hosts {
					listed := tt.volume.Listed(host)
					g.Expect(x.Authentication[host].Keys).To(Equal(tt.known[listed.SealedKeys]), "never without the keys that are listed")
				}
			}
			g.Expect(recordedText(t, d)).NotTo(ContainSubstring(strings.Split(keys.Host.Text(), ":")[2]))
		})
	}
}

func recordedText(t *testing.T, d Decision) string {
	t.Helper()
	text, err := json.Marshal(d.Records)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return string(text) + fmt.Sprintf("%+v", d)
}

// A target that comes back empty while the objects may be from the past is given what it had, with its keys.
func TestKeysOnRecord(t *testing.T) {
	g := NewWithT(t)
	keys := newKeys(t)
	s := quietNode()
	there(&s, testVolume(1, isCreatedOn("a"), withSealed(hostA, sealedA)))
	s.Keys = map[string]dhchap.Pair{sealedA: keys}
	record := Decide(s).Records.Put[id(1)]
	g.Expect(record.Sealed).To(Equal(map[string]string{hostA: sealedA}))
	g.Expect(record.Export.Authentication).To(BeEmpty())

	past := testVolume(1, isCreatedOn("a"), withHosts(hostB))
	past.ResourceVersion = "1"
	s.Volumes, s.Records.Items[id(1)] = []*v1alpha1.NvmfReplica{past}, record
	d := Decide(s)
	g.Expect(d.Operations.Export).To(HaveLen(1))
	g.Expect(d.Operations.Export[0].Hosts).To(Equal([]string{hostA}))
	g.Expect(d.Operations.Export[0].Authentication[hostA].Keys).To(Equal(keys))

	s.Keys = nil
	g.Expect(Decide(s).Operations.Export).To(BeEmpty(), "nobody is let in without keys")
}

// What a host's entry says of the one whose place it took is told to the engine, unless that is to be admitted, or the
// host itself is not.
func TestRetiredHostIsNoneThatIsDismissed(t *testing.T) {
	g := NewWithT(t)
	retired := func(nqn string) func(*v1alpha1.NvmfReplica) {
		return func(r *v1alpha1.NvmfReplica) { r.Spec.Hosts[0].Retired, _ = v1alpha1.AttachmentOfHost(nqn) }
	}
	wanted := func(r *v1alpha1.NvmfReplica, served engine.Export) []engine.Export {
		s := quietNode()
		there(&s, r)
		s.Target.State.Exports = append(s.Target.State.Exports, served)
		return Decide(s).Operations.Export
	}
	g.Expect(wanted(testVolume(1, isCreatedOn("a"), withHosts(hostB), retired(hostA)), exported(1, hostA, hostB))).To(
		ConsistOf(And(HaveField("Hosts", []string{hostB}), HaveField("Retired", []string{hostA}))))
	g.Expect(wanted(testVolume(1, isCreatedOn("a"), withHosts(hostB), retired(hostA)), exported(1, hostB))).To(BeEmpty(), "it is gone")
	g.Expect(wanted(testVolume(1, isCreatedOn("a"), withHosts(hostB, hostA), retired(hostA)), exported(1, hostB))).To(
		ConsistOf(And(HaveField("Hosts", []string{hostA, hostB}), HaveField("Retired", BeEmpty()))))
	unread := testVolume(1, isCreatedOn("a"), withSealed(hostB, sealedB), retired(hostA))
	g.Expect(wanted(unread, exported(1, hostA))).To(ConsistOf(And(HaveField("Hosts", BeEmpty()), HaveField("Retired", BeEmpty()))))
}
