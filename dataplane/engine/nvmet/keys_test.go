// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/internal/dhchap"
)

const keyedHost = v1alpha1.HostNQNPrefix + "00000000-0000-4000-8000-00000000000a"

func newKeys(t *testing.T) engine.Authentication {
	t.Helper()
	keys, err := dhchap.NewPair()
	if err != nil {
		t.Fatal(err)
	}
	return engine.Authentication{Keys: keys, Group: v1alpha1.DHGroupFFDHE2048}
}

// withAttributes is the folder of a host as the kernel makes it.
func (h *host) withAttributes(t *testing.T, host string) {
	t.Helper()
	for _, attr := range []string{hostKey, controllerKey, groupAttr} {
		put(t, h.config("hosts", host, attr), "")
		if err := os.Chmod(h.config("hosts", host, attr), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestKeysOfAHost(t *testing.T) {
	h := folders(t)
	nqn := v1alpha1.NQNPrefix + "a"
	h.admitting(t, nqn)
	h.withAttributes(t, keyedHost)
	a := newKeys(t)
	if err := h.admit(nqn, keyedHost, a); err != nil {
		t.Fatal(err)
	}
	for attr, want := range map[string]string{hostKey: a.Keys.Host.Text(), controllerKey: a.Keys.Controller.Text(), groupAttr: "ffdhe2048"} {
		if got, err := h.readAttr(h.config("hosts", keyedHost, attr)); err != nil || !strings.HasPrefix(got, want) {
			t.Errorf("%s has something else: %v", attr, err)
		}
		info, err := os.Stat(h.config("hosts", keyedHost, attr))
		if err != nil || attr != groupAttr && info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", attr, info.Mode(), err)
		}
	}
	is := h.read(t, nqn)
	if got := is.keys[keyedHost]; got.Fingerprint != a.Keys.Fingerprint() || !got.Keys.IsZero() {
		t.Errorf("read: %+v", is.keys)
	}

	if err := errors.Join(h.spoil(is), h.cutOff(is), h.disable(is)); err != nil {
		t.Fatal(err)
	}
	for _, attr := range []string{hostKey, controllerKey} {
		if got, err := h.readAttr(h.config("hosts", keyedHost, attr)); err != nil || !strings.HasPrefix(got, unusableKey) {
			t.Errorf("%s of a dismissed host still has its key: %v", attr, err)
		}
	}
	if is := h.read(t, nqn); len(is.hosts) > 0 || len(is.keys) > 0 || !slices.Equal(is.refused, []string{keyedHost}) {
		t.Errorf("retired: %+v", is)
	}
}

// A kernel without NVME_TARGET_AUTH has no attributes for keys: the host is not let in without.
func TestKernelThatCannotAuthenticate(t *testing.T) {
	h := folders(t)
	nqn := v1alpha1.NQNPrefix + "a"
	h.admitting(t, nqn)
	if err := h.admit(nqn, keyedHost, newKeys(t)); !errors.Is(err, engine.ErrUnsupported) {
		t.Errorf("admit: %v", err)
	}
	if is := h.read(t, nqn); len(is.hosts) > 0 {
		t.Errorf("hosts %v", is.hosts)
	}
	if _, err := os.Stat(h.config("hosts", keyedHost)); !isMissing(err) {
		t.Errorf("its folder is left: %v", err)
	}
	if can, err := h.authenticates(); can || err != nil {
		t.Errorf("it can: %t, %v", can, err)
	}
}

func TestKeysOfAnotherSubsystem(t *testing.T) {
	h := folders(t)
	first, second := v1alpha1.NQNPrefix+"a", v1alpha1.NQNPrefix+"b"
	h.admitting(t, first)
	h.admitting(t, second)
	h.withAttributes(t, keyedHost)
	a := newKeys(t)
	if err := h.admit(first, keyedHost, a); err != nil {
		t.Fatal(err)
	}
	if err := h.keysElsewhere(second, keyedHost, newKeys(t)); !errors.Is(err, engine.ErrInUse) {
		t.Errorf("other keys: %v", err)
	}
	if err := errors.Join(h.keysElsewhere(second, keyedHost, a), h.keysElsewhere(first, keyedHost, newKeys(t))); err != nil {
		t.Errorf("the same keys, and other ones of its only subsystem: %v", err)
	}
}

func TestStepsOfKeys(t *testing.T) {
	a, b := newKeys(t), newKeys(t)
	told := func(a engine.Authentication) map[string]engine.Authentication {
		return map[string]engine.Authentication{"host-1": {Fingerprint: a.Keys.Fingerprint()}}
	}
	withKeys := func(a engine.Authentication) map[string]engine.Authentication {
		return map[string]engine.Authentication{"host-1": a}
	}
	for name, tt := range map[string]struct {
		is, want map[string]engine.Authentication
		hosts    []string
		steps    []stepKind
	}{
		"the same":         {is: told(a), want: withKeys(a), hosts: []string{"host-1"}},
		"other ones":       {is: told(a), want: withKeys(b), hosts: []string{"host-1"}, steps: []stepKind{setKeys}},
		"some":             {want: withKeys(a), hosts: []string{"host-1"}, steps: []stepKind{setKeys}},
		"none any more":    {is: told(a), hosts: []string{"host-1"}, steps: []stepKind{removeSubsystem, makeSubsystem, admitHost}},
		"another host":     {is: told(a), want: map[string]engine.Authentication{"host-2": b}, hosts: []string{"host-2"}, steps: []stepKind{removeSubsystem, makeSubsystem, admitHost}},
		"a host more":      {is: told(a), want: map[string]engine.Authentication{"host-1": a, "host-2": b}, hosts: []string{"host-1", "host-2"}, steps: []stepKind{admitHost}},
		"somebody else's":  {is: map[string]engine.Authentication{"host-1": {Fingerprint: engine.UnknownKeys}}, want: withKeys(a), hosts: []string{"host-1"}, steps: []stepKind{setKeys}},
		"kept, but for it": {is: told(a), want: told(a), hosts: []string{"host-1"}},
	} {
		is := &subsystem{nqn: "a", serial: "s", model: "m", queues: 4, hosts: []string{"host-1"}, keys: tt.is}
		todo, err := steps(is, subsystem{nqn: "a", serial: "s", model: "m", queues: 4, hosts: tt.hosts, keys: tt.want})
		var kinds []stepKind
		for _, s := range todo {
			kinds = append(kinds, s.do)
		}
		if err != nil || !slices.Equal(kinds, tt.steps) {
			t.Errorf("%s: %v, %v", name, kinds, err)
		}
	}
}
