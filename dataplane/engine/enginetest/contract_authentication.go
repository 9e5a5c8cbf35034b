// SPDX-License-Identifier: Apache-2.0

package enginetest

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega" //nolint:staticcheck // gomega reads as sentences only so

	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/internal/dhchap"
)

// newKeys of a host and its target.
func (s *suite) newKeys() dhchap.Pair {
	s.t.Helper()
	keys, err := dhchap.NewPair()
	s.Expect(err).NotTo(HaveOccurred())
	return keys
}

// withKeys is an export whose hosts have these keys, in their order.
func withKeys(x engine.Export, keys ...dhchap.Pair) engine.Export {
	x.Authentication = map[string]engine.Authentication{}
	for i, k := range keys {
		x.Authentication[x.Hosts[i]] = engine.Authentication{Keys: k}
	}
	return x
}

// keyed is an export of a new volume in a new pool, with one host and its keys.
func (s *suite) keyed() engine.Export {
	s.t.Helper()
	return withKeys(exportOf(s.create(s.openPool().ID, 4*mib), newHost()), s.newKeys())
}

// hasKeys expects that the target has exactly the keys of the export.
func (s *suite) hasKeys(x engine.Export) {
	s.t.Helper()
	is := s.export(x.NQN)
	s.Expect(is).NotTo(BeNil())
	s.Expect(is.Authentication).To(Equal(Gathered(x.Authentication)))
	s.Expect(engine.SameAuthentication(is.Authentication, x.Authentication)).To(BeTrue())
}

func authenticationCases() map[string]func(*suite) {
	cases := map[string]func(*suite){
		"that hosts have keys is told, and the keys are not":                 toldWithoutKeys,
		"keys come, change and go":                                           keysChange,
		"an export with unfit keys is refused":                               unfitKeys,
		"keys are in no file that others can read, and gone with their host": keptFromOthers,
		"a target that comes back empty is given its keys again":             keysAfterRestart,
	}
	for name, do := range map[string]func(*keyedFixture){
		"a host connects with its keys":                                                     connectsWithKeys,
		"a host without its key is refused":                                                 refusedWithoutKey,
		"a target that cannot prove itself is refused":                                      targetUnproved,
		"a target that does not ask a host with keys for a proof is trusted":                targetAsksForNothing,
		"the keys of another volume, and of another host, are refused":                      keysOfAnother,
		"keys that change leave a host connected, and are asked for at its next connection": changedWhileConnected,
		"a host that was dismissed is refused with its keys":                                replayed,
		"a host goes on with its keys after a restart":                                      reconnectsWithKeys,
		"a host that meets other keys after a restart is refused":                           metOtherKeys,
		"hosts with and without keys share an export":                                       mixedHosts,
	} {
		cases[name] = func(s *suite) { s.withKeyedHost(do) }
	}
	for name, do := range cases {
		cases[name] = func(s *suite) {
			if reason := s.Traits().NoAuthentication; reason != "" {
				refusesKeys(s)
				s.t.Skip(reason)
			}
			do(s)
		}
	}
	return cases
}

// refusesKeys where they cannot be asked for: never is such a host admitted without.
func refusesKeys(s *suite) {
	x := s.keyed()
	s.Expect(s.one(s.engine.Export(s.ctx, []engine.Export{x}))).To(MatchError(engine.ErrUnsupported))
	s.Expect(s.export(x.NQN)).To(Or(BeNil(), HaveField("Hosts", BeEmpty())))
}

func toldWithoutKeys(s *suite) {
	info, err := s.engine.Info(s.ctx)
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(info.Authentication).To(BeTrue())
	x := s.keyed()
	for range 2 {
		s.done(s.fresh().Export(s.ctx, []engine.Export{x}))
		s.hasKeys(x)
	}
	told := fmt.Sprintf("%+v %#v", s.state(), s.state().Exports)
	for _, secret := range secretsOf(x) {
		s.Expect(strings.Contains(told, secret)).To(BeFalse(), "Gather tells a key")
	}
}

// secretsOf an export: what of its keys nobody may read, without what all keys have.
func secretsOf(x engine.Export) []string {
	var secrets []string
	for _, a := range x.Authentication {
		for _, k := range []dhchap.Key{a.Keys.Host, a.Keys.Controller} {
			if !k.IsZero() {
				secrets = append(secrets, strings.Split(k.Text(), ":")[2])
			}
		}
	}
	return secrets
}

func keysChange(s *suite) {
	bare := exportOf(s.create(s.openPool().ID, 4*mib), newHost(), newHost())
	first, second := s.newKeys(), s.newKeys()
	for _, x := range []engine.Export{
		bare, withKeys(bare, first), withKeys(bare, first, second), withKeys(bare, second, first), withKeys(bare, s.newKeys()), bare,
	} {
		s.done(s.fresh().Export(s.ctx, []engine.Export{x}))
		s.hasKeys(x)
		s.Expect(s.export(x.NQN).Hosts).To(ConsistOf(x.Hosts))
	}
}

func unfitKeys(s *suite) {
	x, keys := s.keyed(), s.newKeys()
	unlisted := withKeys(x, keys)
	unlisted.Authentication[newHost()] = engine.Authentication{Keys: keys}
	for name, bad := range map[string]engine.Export{
		"a host that is not listed": unlisted,
		"none":                      withKeys(x, dhchap.Pair{}),
		"no host's":                 withKeys(x, dhchap.Pair{Controller: keys.Controller}),
		"no controller's":           withKeys(x, dhchap.Pair{Host: keys.Host}),
		"one for both":              withKeys(x, dhchap.Pair{Host: keys.Host, Controller: keys.Host}),
	} {
		err := s.one(s.engine.Export(s.ctx, []engine.Export{bad}))
		s.Expect(err).To(MatchError(engine.ErrInvalid), name)
		for _, secret := range secretsOf(withKeys(x, keys)) {
			s.Expect(strings.Contains(err.Error(), secret)).To(BeFalse(), name)
		}
		s.Expect(s.export(x.NQN)).To(BeNil(), name)
	}
}

// largestRead of a file that may have a key: pools are larger.
const largestRead = mib

// filesWith any of the secrets, among all that the target and its engine keep.
func (s *suite) filesWith(secrets []string) map[string]fs.FileMode {
	s.t.Helper()
	found := map[string]fs.FileMode{}
	for _, folder := range s.Kept(s.t) {
		s.Expect(filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.Type().IsRegular() {
				return err
			}
			info, err := entry.Info()
			if err != nil || info.Size() > largestRead {
				return err
			}
			content, err := os.ReadFile(path) //nolint:gosec // of a test, which made the folder
			if err != nil {
				return nil //nolint:nilerr // attributes of the kernel that can only be written
			}
			if slices.ContainsFunc(secrets, func(secret string) bool { return strings.Contains(string(content), secret) }) {
				found[path] = info.Mode().Perm()
			}
			return nil
		})).To(Succeed())
	}
	return found
}

func keptFromOthers(s *suite) {
	bare := exportOf(s.create(s.openPool().ID, 4*mib), newHost(), newHost())
	x := withKeys(bare, s.newKeys(), s.newKeys())
	secrets := secretsOf(x)
	closed := func(why string) {
		s.t.Helper()
		for path, mode := range s.filesWith(secrets) {
			s.Expect(mode&0o077).To(BeZero(), "%s: %s has mode %o", why, path, mode)
		}
	}
	s.exportAs(x)
	closed("exported")
	one := withKeys(bare, x.Authentication[x.Hosts[0]].Keys)
	one.Hosts = one.Hosts[:1]
	s.exportAs(one)
	left := secretsOf(engine.Export{Authentication: map[string]engine.Authentication{x.Hosts[1]: x.Authentication[x.Hosts[1]]}})
	s.Expect(s.filesWith(left)).To(BeEmpty(), "of the host that has left")
	changed := withKeys(one, s.newKeys())
	s.exportAs(changed)
	s.Expect(s.filesWith(secrets)).To(BeEmpty(), "the former ones")
	secrets = secretsOf(changed)
	closed("changed")
	s.done(s.engine.Unexport(s.ctx, []string{x.NQN}))
	s.Expect(s.filesWith(secrets)).To(BeEmpty(), "not exported any more")
}

func keysAfterRestart(s *suite) {
	d := s.openPool()
	x := withKeys(exportOf(s.create(d.ID, 4*mib), newHost()), s.newKeys())
	s.exportAs(x)
	s.Restart(s.t)
	e := s.fresh()
	s.Expect(s.filesWith(secretsOf(x))).To(BeEmpty(), "they are given again")
	s.done(e.OpenPools(s.ctx, []engine.Device{d}))
	for range 2 {
		s.done(s.fresh().Export(s.ctx, []engine.Export{x}))
		s.hasKeys(x)
	}
}

// keyedFixture is a volume of 64 MiB, exported to a host with keys that is not attached yet.
type keyedFixture struct {
	*hostFixture
	keys dhchap.Pair
}

// withKeyedHost runs a test once for each portal.
func (s *suite) withKeyedHost(do func(*keyedFixture)) {
	if reason := s.Traits().NoHosts; reason != "" {
		s.t.Skip(reason)
	}
	device := s.openPool()
	for _, portal := range s.openPortals() {
		s.t.Run(portalName(portal), func(t *testing.T) {
			h := &keyedFixture{hostFixture: s.fixture(t, device, portal), keys: s.newKeys()}
			h.x = withKeys(exportOf(h.id, h.host), h.keys)
			h.exportAs(h.x)
			do(h)
		})
	}
}

// refusedWith keys.
func (h *keyedFixture) refusedWith(keys dhchap.Pair, why string) {
	h.t.Helper()
	c, err := h.Connect(h.ctx, h.t, h.portal.Portal, h.x.NQN, h.host, keys)
	if err == nil {
		c.Disconnect()
	}
	h.Expect(err).To(HaveOccurred(), why)
	for _, secret := range secretsOf(withKeys(h.x, keys)) {
		h.Expect(strings.Contains(err.Error(), secret)).To(BeFalse(), "%s: the error has a key", why)
	}
}

// mayFail skips the rest of a case where a proof that is wrong would take minutes.
func (h *keyedFixture) mayFail() {
	h.t.Helper()
	if slices.Contains(h.Traits().HangsUnproved, h.portal.Transport) {
		h.t.Skip("a proof that fails hangs this machine's initiator for minutes over " + portalName(h.portal))
	}
}

func connectsWithKeys(h *keyedFixture) {
	for i := range int64(2) {
		c, ns := h.attach(h.portal, h.x, h.host)
		h.write(ns, i, "proved")
		h.Expect(h.read(ns, 0)).To(Equal("proved"))
		c.Disconnect()
	}
}

func refusedWithoutKey(h *keyedFixture) {
	h.refusedWith(dhchap.Pair{}, "no key")
	h.mayFail()
	h.refusedWith(h.newKeys(), "other keys")
	h.refusedWith(dhchap.Pair{Host: h.keys.Controller, Controller: h.keys.Host}, "the controller's key as the host's")
	h.attach(h.portal, h.x, h.host)
}

func targetUnproved(h *keyedFixture) {
	h.mayFail()
	h.refusedWith(dhchap.Pair{Host: h.keys.Host, Controller: h.newKeys().Controller}, "another controller's key")
	h.attach(h.portal, h.x, h.host)
}

// targetAsksForNothing: neither Linux's host nor the fake insists on a proof, so whoever answers in the place of a
// target is told nothing of the keys, and is believed. This is why a node plugin connects only where the agent says
// that its target has the keys.
func targetAsksForNothing(h *keyedFixture) {
	bare := exportOf(h.id, h.host)
	h.exportAs(bare)
	h.hasKeys(bare)
	c, err := h.Connect(h.ctx, h.t, h.portal.Portal, bare.NQN, h.host, h.keys)
	h.Expect(err).NotTo(HaveOccurred())
	h.t.Cleanup(c.Disconnect)
	ns, err := c.Namespace(h.ctx, h.id)
	h.Expect(err).NotTo(HaveOccurred())
	h.write(ns, 0, "unproved")
	h.Expect(h.read(ns, 0)).To(Equal("unproved"))
}

func keysOfAnother(h *keyedFixture) {
	h.mayFail()
	other := withKeys(exportOf(h.create(h.device.ID, 4*mib), newHost()), h.newKeys())
	h.exportAs(other)
	h.refusedWith(other.Authentication[other.Hosts[0]].Keys, "of another volume")

	both := h.x
	both.Hosts = []string{h.host, newHost()}
	both = withKeys(both, h.keys, h.newKeys())
	h.exportAs(both)
	h.refusedWith(both.Authentication[both.Hosts[1]].Keys, "of another host of the volume")
	h.attach(h.portal, other, other.Hosts[0])
	h.attach(h.portal, both, both.Hosts[1])
}

func changedWhileConnected(h *keyedFixture) {
	c, ns := h.attach(h.portal, h.x, h.host)
	w := startWriter(ns, 0)
	h.goesOn(w)
	changed := withKeys(h.x, h.newKeys())
	for range 2 {
		h.done(h.fresh().Export(h.ctx, []engine.Export{changed}))
		h.hasKeys(changed)
		h.goesOn(w)
	}
	h.finish(w, ns, 0)
	h.Expect(c.Gone()).To(BeFalse())
	c.Disconnect()
	if !slices.Contains(h.Traits().HangsUnproved, h.portal.Transport) {
		h.refusedWith(h.keys, "the former keys")
	}
	_, ns = h.attach(h.portal, changed, h.host)
	h.write(ns, 1, "with the new keys")
}

// replayed: the keys of a host that was dismissed are of no use, nor are they for the next one.
func replayed(h *keyedFixture) {
	c, ns := h.attach(h.portal, h.x, h.host)
	h.write(ns, 0, "first")
	next := h.x
	next.Hosts = []string{newHost()}
	next = withKeys(next, h.newKeys())
	h.exportAs(next)
	h.turnedAway(c)
	h.Eventually(c.Gone).Should(BeTrue())
	h.refusedWith(h.keys, "dismissed")
	_, ns = h.attach(h.portal, next, next.Hosts[0])
	h.Expect(h.read(ns, 0)).To(Equal("first"))
}

// comeBack empty, and be filled with this export by another process.
func (h *keyedFixture) comeBack(x engine.Export) {
	h.t.Helper()
	portals := h.Portals(h.t)
	h.Restart(h.t)
	e := h.fresh()
	h.done(e.OpenPools(h.ctx, []engine.Device{h.device}))
	h.done(e.Export(h.ctx, []engine.Export{x}))
	h.done(e.OpenPortals(h.ctx, portals))
}

func reconnectsWithKeys(h *keyedFixture) {
	c, ns := h.attach(h.portal, h.x, h.host)
	w := startWriter(ns, 0)
	h.goesOn(w)
	h.comeBack(h.x)
	h.hasKeys(h.x)
	h.goesOn(w)
	h.finish(w, ns, 0)
	h.Expect(c.Gone()).To(BeFalse())
}

func metOtherKeys(h *keyedFixture) {
	h.mayFail()
	c, ns := h.attach(h.portal, h.x, h.host)
	h.write(ns, 0, "before")
	other := withKeys(h.x, h.newKeys())
	h.comeBack(other)
	h.Eventually(c.Gone).WithTimeout(2 * patience).Should(BeTrue())
	_, ns = h.attach(h.portal, other, h.host)
	h.Expect(h.read(ns, 0)).To(Equal("before"))
}

func mixedHosts(h *keyedFixture) {
	mixed := h.x
	mixed.Hosts = []string{h.host, newHost()}
	mixed.Authentication = maps.Clone(h.x.Authentication)
	h.exportAs(mixed)
	_, ns := h.attach(h.portal, mixed, mixed.Hosts[1])
	_, other := h.attach(h.portal, mixed, h.host)
	h.write(ns, 0, "without keys")
	h.Expect(h.read(other, 0)).To(Equal("without keys"))
	h.refusedWith(dhchap.Pair{}, "one with keys does not connect without")
}
