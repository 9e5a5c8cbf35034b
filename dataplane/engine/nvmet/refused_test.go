// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// folders is a host whose configfs is plain folders, which do nothing by themselves.
func folders(t *testing.T) *host {
	t.Helper()
	root := t.TempDir()
	h := &host{root: root, stateDir: filepath.Join(root, "state")}
	for _, dir := range []string{"subsystems", "hosts", "ports"} {
		mkdir(t, h.config(dir))
	}
	return h
}

func mkdir(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
}

func put(t *testing.T, path, text string) {
	t.Helper()
	mkdir(t, filepath.Dir(path))
	if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// admitting is a subsystem in configfs with one namespace and these hosts.
func (h *host) admitting(t *testing.T, nqn string, hosts ...string) *subsystem {
	t.Helper()
	dir := h.config("subsystems", nqn)
	for name, value := range map[string]string{
		"attr_serial": "serial", "attr_model": "weft", "attr_allow_any_host": "0", "attr_qid_max": "8", "attr_cntlid_max": "65519",
		"namespaces/1/device_path": "/pool/volumes/" + volumeA, "namespaces/1/device_uuid": volumeA,
		"namespaces/1/device_nguid": volumeA, "namespaces/1/enable": "1",
	} {
		put(t, filepath.Join(dir, name), value)
	}
	mkdir(t, filepath.Join(dir, "allowed_hosts"))
	for _, host := range hosts {
		put(t, h.config("hosts", host, "dhchap_key"), "")
		if err := os.Symlink(h.config("hosts", host), filepath.Join(dir, "allowed_hosts", host)); err != nil {
			t.Fatal(err)
		}
	}
	return h.read(t, nqn)
}

func (h *host) read(t *testing.T, nqn string) *subsystem {
	t.Helper()
	s, err := h.subsystem(nqn)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (h *host) recalled(t *testing.T) *refusals {
	t.Helper()
	r, err := h.refusals(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRefusalsOutliveTheProcess(t *testing.T) {
	h := folders(t)
	s := h.admitting(t, nqnA, "host-1", "host-2")
	r := h.recalled(t)
	r.dismiss(s, []string{"host-2"})
	r.save(t.Context())

	r = h.recalled(t)
	if got := r.of(nqnA); !slices.Equal(got, []string{"host-1"}) {
		t.Fatalf("after a restart %v are refused", got)
	}
	if r.all(s) {
		t.Error("a host that stays is taken for dismissed")
	}
	r.dismiss(s, nil)
	if !r.all(s) {
		t.Errorf("of %v only %v are to be refused", s.hosts, r.of(nqnA))
	}
	r.admit([]string{"host-1", "host-2"})
	r.save(t.Context())
	if got := h.recalled(t).byNQN; len(got) > 0 {
		t.Errorf("hosts that were admitted again are to be refused: %v", got)
	}
}

func TestNotEveryHostCanBeRefused(t *testing.T) {
	tests := map[string]func(*testing.T, *host){
		"a kernel without keys":       func(t *testing.T, h *host) { mustRemove(t, h.config("hosts", "host-1", "dhchap_key")) },
		"another subsystem admits it": func(t *testing.T, h *host) { h.admitting(t, nqnA+"-other", "host-1") },
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			h := folders(t)
			h.admitting(t, nqnA, "host-1")
			change(t, h)
			s, r := h.read(t, nqnA), h.recalled(t)
			r.dismiss(s, nil)
			if r.all(s) || len(r.byNQN) > 0 {
				t.Errorf("to be refused: %v", r.byNQN)
			}
		})
	}
}

func mustRemove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

func TestRefusalsEnd(t *testing.T) {
	h := folders(t)
	r := h.recalled(t)
	for i := range maxRefusing + 2 {
		r.byNQN[fmt.Sprintf("%s-%d", nqnA, i)] = refusedSince(time.Now().Add(-time.Duration(i)*time.Second), "host")
	}
	r.byNQN["old"] = refusedSince(time.Now().Add(-refusedFor-time.Minute), "host")
	ended := r.expire()
	if want := []string{"old", fmt.Sprintf("%s-%d", nqnA, maxRefusing+1), fmt.Sprintf("%s-%d", nqnA, maxRefusing)}; !slices.Equal(ended, want) {
		t.Errorf("ended: %v, want %v", ended, want)
	}
}

func refusedSince(since time.Time, hosts ...string) refusal {
	r := refusal{Hosts: map[string]time.Time{}}
	for _, host := range hosts {
		r.Hosts[host] = since
	}
	return r
}

// A file that is damaged keeps nobody from being dismissed.
func TestRefusalsFileDamaged(t *testing.T) {
	h := folders(t)
	put(t, h.refusalsFile(), "{")
	s := h.admitting(t, nqnA, "host-1")
	r := h.recalled(t)
	r.dismiss(s, nil)
	r.save(t.Context())
	if !h.recalled(t).all(s) {
		t.Error("the host that was dismissed is not on record")
	}
}

// A process that was killed while it retired a subsystem may not have disconnected its hosts: they count as admitted
// until the last namespace is disabled, which comes last.
func TestHalfRetiredStillAdmits(t *testing.T) {
	h := folders(t)
	s := h.admitting(t, nqnA, "host-1", "host-2")
	// A folder in place of the namespace's attribute ends it before the last write.
	enable := h.space(nqnA, 1, "enable")
	mustRemove(t, enable)
	mkdir(t, enable)
	if err := errors.Join(h.spoil(s), h.cutOff(s), h.disable(s)); err == nil || !strings.Contains(err.Error(), "namespace 1") {
		t.Fatalf("retired, without its namespace: %v", err)
	}
	mustRemove(t, enable)
	put(t, enable, "1")
	half := h.read(t, nqnA)
	if !slices.Equal(half.hosts, []string{"host-1", "host-2"}) || len(half.refused) > 0 {
		t.Fatalf("half retired, it admits %v and refuses %v", half.hosts, half.refused)
	}
	if err := errors.Join(h.spoil(half), h.cutOff(half), h.disable(half)); err != nil {
		t.Fatal(err)
	}
	whole := h.read(t, nqnA)
	if len(whole.hosts) > 0 || !slices.Equal(whole.refused, []string{"host-1", "host-2"}) || !whole.retired {
		t.Errorf("retired, it admits %v and refuses %v", whole.hosts, whole.refused)
	}
	if x := whole.export(nil); len(x.Namespaces) != 1 || x.MaxIOQueues != 8 {
		t.Errorf("it is listed as %+v", x)
	}
}
