// SPDX-License-Identifier: Apache-2.0

//go:build !lab

package agent

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
	"github.com/weft-storage/weft/internal/dhchap"
)

// sealed is a host of a volume with keys that were sealed to these public keys.
func (l *lab) sealed(nqn string, keys dhchap.Pair, publicKeys ...string) func(*v1alpha1.NvmfReplica) {
	l.t.Helper()
	text, err := keys.Seal(publicKeys...)
	l.Expect(err).NotTo(HaveOccurred())
	return func(v *v1alpha1.NvmfReplica) {
		v.Spec.Hosts = []v1alpha1.VolumeHost{{NQN: nqn, Node: "host", NodeUID: "1", SealedKeys: text, SealedTo: dhchap.SealedTo(publicKeys...)}}
	}
}

func (l *lab) newKeys() dhchap.Pair {
	l.t.Helper()
	keys, err := dhchap.NewPair()
	l.Expect(err).NotTo(HaveOccurred())
	return keys
}

// TestKeysReachTheEngineAlone: the agent publishes its public key, and hands what is sealed to it to the engine. No
// object, Event, log or file of the agent has a key in it.
func TestKeysReachTheEngineAlone(t *testing.T) {
	l := newLab(t)
	var told strings.Builder
	ctx := log.IntoContext(t.Context(), funcr.New(func(prefix, args string) { told.WriteString(prefix + args + "\n") }, funcr.Options{Verbosity: 10}))
	reconcile := func(r *Reconciler) {
		t.Helper()
		_, err := r.Reconcile(ctx, reconcile.Request{})
		l.Expect(err).NotTo(HaveOccurred())
	}
	r := l.agent()
	reconcile(r)
	public := l.nvmfNode().Status.PublicKey
	l.Expect(dhchap.CheckPublicKey(public)).To(Succeed())
	l.Expect(l.nvmfNode().Status.Engine.Authentication).To(BeTrue())

	plugin, err := dhchap.NewIdentity()
	l.Expect(err).NotTo(HaveOccurred())
	keys := l.newKeys()
	l.create(1, l.sealed(hostA, keys, public, plugin.PublicKey()))
	l.target.FailCall(enginetest.Export, engine.ErrBusy)
	reconcile(r)
	l.target.FailCall(enginetest.Export, nil)
	reconcile(r)
	l.Expect(l.says(1)).To(HaveKeyWithValue("Exported", "True/AsExpected"))
	l.Expect(l.volume(1).Status.Hosts).To(ConsistOf(v1alpha1.AdmittedHost{NQN: hostA, Node: "host", Blank: true, Keys: keys.Fingerprint()}))
	nqn := l.volume(1).Status.NQN
	_, err = l.target.Connect(t.Context(), tcp, nqn, hostA)
	l.Expect(err).To(HaveOccurred(), "without keys")
	host, err := l.target.ConnectWith(t.Context(), tcp, nqn, hostA, keys)
	l.Expect(err).NotTo(HaveOccurred())

	// Another process, and a target that came back empty: the same keys are in force.
	l.target.Restart()
	reconcile(l.anotherProcess())
	l.Expect(host.WriteAt(id(1), []byte("data"), 0)).To(Equal(4))

	// The same node with another identity, as after a reinstallation: who is connected goes on, until new keys are
	// sealed.
	l.identity, err = dhchap.NewIdentity()
	l.Expect(err).NotTo(HaveOccurred())
	reconcile(l.anotherProcess())
	l.Expect(l.says(1)).To(HaveKeyWithValue("Exported", "False/KeysUnreadable"))
	l.Expect(l.nvmfNode().Status.PublicKey).NotTo(Equal(public))
	l.Expect(host.WriteAt(id(1), []byte("data"), 0)).To(Equal(4))
	next := l.newKeys()
	l.change(1, l.sealed(hostA, next, l.nvmfNode().Status.PublicKey, plugin.PublicKey()))
	reconcile(l.agent())
	l.Expect(l.says(1)).To(HaveKeyWithValue("Exported", "True/AsExpected"))
	l.Expect(l.volume(1).Status.Hosts).To(ConsistOf(HaveField("Keys", next.Fingerprint())))
	_, err = l.target.ConnectWith(t.Context(), tcp, nqn, hostA, next)
	l.Expect(err).NotTo(HaveOccurred())

	l.nobodyTells(keys, next)
	l.Expect(told.String()).To(ContainSubstring("The engine rejected operations"))
	l.tellsNone("the log", told.String(), []dhchap.Pair{keys, next})
}

// nobodyTells expects that no object, Event or file of the agent has any of these keys in it.
func (l *lab) nobodyTells(all ...dhchap.Pair) {
	l.t.Helper()
	l.Expect(filepath.WalkDir(l.stateDir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		l.tellsNone(path, string(content), all)
		return err
	})).To(Succeed())
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tellsNone("Events", strings.Join(l.events, "\n"), all)
	for _, obj := range []any{l.volume(1), l.nvmfNode()} {
		text, err := json.Marshal(obj)
		l.Expect(err).NotTo(HaveOccurred())
		l.tellsNone("an object", string(text), all)
	}
}

func (l *lab) tellsNone(where, text string, all []dhchap.Pair) {
	l.t.Helper()
	for _, p := range all {
		for _, k := range []dhchap.Key{p.Host, p.Controller} {
			l.Expect(strings.Contains(text, strings.Split(k.Text(), ":")[2])).To(BeFalse(), "a key is in %s", where)
		}
	}
}

// A node without an identity serves volumes without keys, and says that it has none.
func TestWithoutIdentity(t *testing.T) {
	l := newLab(t)
	stranger := l.identity.PublicKey()
	l.identity = nil
	l.create(1, l.sealed(hostA, l.newKeys(), stranger))
	l.create(2, withHosts(hostB))
	l.reconcile(l.agent())
	l.Expect(l.nvmfNode().Status.PublicKey).To(BeEmpty())
	l.Expect(l.says(1)).To(HaveKeyWithValue("Exported", "False/KeysUnreadable"))
	l.Expect(l.says(2)).To(HaveKeyWithValue("Exported", "True/AsExpected"))
}
