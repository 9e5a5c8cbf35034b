// SPDX-License-Identifier: Apache-2.0

package spdk_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
	"github.com/weft-storage/weft/internal/dhchap"
)

// The target takes the group of the plan, and another one needs a restart.
func TestGroupOfAuthentication(t *testing.T) {
	m := newMachine(t)
	m.plan.Authentication = &v1alpha1.PlannedAuthentication{Mode: v1alpha1.AuthenticationRequired, DHGroup: v1alpha1.DHGroupFFDHE2048}
	m.restart(t)
	g := NewWithT(t)
	settings, err := m.engine(t).Settings(t.Context(), m.plan)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(settings).To(ContainElement(v1alpha1.EngineSetting{Setting: "authentication.dhGroup", Value: "FFDHE2048"}))

	m.plan.Authentication.DHGroup = v1alpha1.DHGroupNone
	err = m.engine(t).Start(t.Context(), m.plan)
	var restart *engine.RestartNeededError
	g.Expect(errors.As(err, &restart)).To(BeTrue(), "%v", err)
	g.Expect(restart.Differences).To(ConsistOf("Diffie-Hellman group of authentication is FFDHE2048, but should be None"))

	m.plan.Authentication = nil
	g.Expect(m.engine(t).Start(t.Context(), m.plan)).To(Succeed(), "nobody asks for a group")
}

// Keys that an agent left when it was killed, at any point, are taken up by the next call for their subsystem; files
// that somebody took away are written again.
func TestKeysOfAKilledAgent(t *testing.T) {
	r := newRig(t)
	x := r.exportOf(r.create(engine.Source{}, 4*mib))
	keys, err := dhchap.NewPair()
	r.Expect(err).NotTo(HaveOccurred())
	x.Authentication = map[string]engine.Authentication{x.Hosts[0]: {Keys: keys}}
	r.done(r.engine.Export(r.ctx, []engine.Export{x}))
	folder := filepath.Join(r.dir, "keys")
	files, err := os.ReadDir(folder)
	r.Expect(err).NotTo(HaveOccurred())
	r.Expect(files).To(HaveLen(2))

	// A key was given to the target, and its host was never admitted.
	stem := strings.Join(strings.Split(files[0].Name(), "-")[:3], "-")
	left := filepath.Join(folder, stem+"-"+strings.Repeat("0", 32)+"-h")
	r.Expect(os.WriteFile(left, []byte(keys.Host.Text()), 0o600)).To(Succeed())
	_, err = spdkrpc.Call(r.ctx, r.client, spdkrpc.KeyringFileAddKey{Name: filepath.Base(left), Path: left})
	r.Expect(err).NotTo(HaveOccurred())
	// Another was written, and not given.
	r.Expect(os.WriteFile(filepath.Join(folder, stem+"-"+strings.Repeat("1", 32)+"-c"), nil, 0o600)).To(Succeed())
	// And one of those in use is not there.
	r.Expect(os.Remove(filepath.Join(folder, files[1].Name()))).To(Succeed())

	for range 2 {
		r.done(r.engine.Export(r.ctx, []engine.Export{x}))
		now, err := os.ReadDir(folder)
		r.Expect(err).NotTo(HaveOccurred())
		r.Expect(now).To(HaveLen(2))
		r.Expect([]string{now[0].Name(), now[1].Name()}).To(Equal([]string{files[0].Name(), files[1].Name()}))
		ring, err := spdkrpc.Call(r.ctx, r.client, spdkrpc.KeyringGetKeys{})
		r.Expect(err).NotTo(HaveOccurred())
		r.Expect(ring).To(ConsistOf(HaveField("Name", files[0].Name()), HaveField("Name", files[1].Name())))
	}
	r.done(r.engine.Unexport(r.ctx, []string{x.NQN}))
	ring, err := spdkrpc.Call(r.ctx, r.client, spdkrpc.KeyringGetKeys{})
	r.Expect(err).NotTo(HaveOccurred())
	r.Expect(ring).To(BeEmpty())
}
