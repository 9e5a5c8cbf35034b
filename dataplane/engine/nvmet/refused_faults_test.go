// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
)

const nqnGone = "nqn.2026-11.storage.weft:pvc-gone"

var portalA = engine.Portal{
	Portal:     v1alpha1.Portal{Transport: v1alpha1.TransportTCP, Address: "192.0.2.1", Port: 4420},
	QueueDepth: 128, InCapsuleDataBytes: 16384,
}

// refusing is a subsystem in configfs that does nothing but refuse these hosts.
func (h *host) refusing(t *testing.T, nqn string, hosts ...string) {
	t.Helper()
	dir := h.config("subsystems", nqn)
	for name, value := range map[string]string{
		"attr_serial": "refused", "attr_model": "weft", "attr_allow_any_host": "0", "attr_qid_max": "8", "attr_cntlid_max": strconv.Itoa(retiredIDs),
	} {
		put(t, filepath.Join(dir, name), value)
	}
	mkdir(t, filepath.Join(dir, "namespaces"))
	mkdir(t, filepath.Join(dir, "allowed_hosts"))
	for _, host := range hosts {
		put(t, h.config("hosts", host, "dhchap_key"), unusableKey)
		if err := os.Symlink(h.config("hosts", host), filepath.Join(dir, "allowed_hosts", host)); err != nil {
			t.Fatal(err)
		}
	}
}

// opened is portalA in configfs, without a link.
func (h *host) opened(t *testing.T) {
	t.Helper()
	for name, value := range map[string]string{
		"addr_trtype": "tcp", "addr_adrfam": "ipv4", "addr_trsvcid": "4420", "addr_traddr": "192.0.2.1",
		"param_inline_data_size": "16384", "param_max_queue_size": "128",
	} {
		put(t, h.config("ports", strconv.Itoa(FirstPort), name), value)
	}
	mkdir(t, h.config("ports", strconv.Itoa(FirstPort), "subsystems"))
}

func (h *host) record(t *testing.T, nqn string, since time.Time, hosts ...string) {
	t.Helper()
	r := h.recalled(t)
	r.byNQN[nqn] = refusedSince(since, hosts...)
	if err := r.write(); err != nil {
		t.Fatal(err)
	}
}

// A process that was killed after it wrote a port's address, before it linked all subsystems, leaves a portal that
// looks open. Exports are linked by the next Export; nothing but OpenPortals links what only refuses, and that is not
// called for a portal that is listed.
func TestPortalThatDoesNotKnowARefusalIsNotOpen(t *testing.T) {
	e := &Engine{host: *folders(t)}
	e.guard.tried = true
	e.opened(t)
	e.refusing(t, nqnGone, "host-9")
	e.admitting(t, nqnA, "host-1")
	if err := os.Symlink(e.config("subsystems", nqnA), e.link(FirstPort, nqnA)); err != nil {
		t.Fatal(err)
	}
	state, err := e.Gather(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(state.Portals) > 0 {
		t.Errorf("listed as open: %v, and host-9 is told to give up there", state.Portals)
	}
}

// A process that was killed between the making of a subsystem and the link of its host leaves one that refuses nobody.
func TestRefusalThatWasCutOffIsFinished(t *testing.T) {
	e := &Engine{host: *folders(t)}
	e.record(t, nqnGone, time.Now(), "host-9")
	e.refusing(t, nqnGone)
	put(t, e.config("hosts", "host-9", "dhchap_key"), "")
	if err := e.refuseAgain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if is := e.read(t, nqnGone); !slices.Equal(is.refused, []string{"host-9"}) {
		t.Errorf("refused: %v", is.refused)
	}
}

// That one refusal cannot be made again keeps no portal closed: all volumes of the node are reached through it.
func TestPortalOpensWithoutARefusal(t *testing.T) {
	e := &Engine{host: *folders(t)}
	e.guard.tried = true
	e.opened(t)
	e.admitting(t, nqnA, "host-1")
	e.record(t, nqnGone, time.Now(), "host-9") // plain folders have no attributes, so it cannot be made
	errs := e.OpenPortals(t.Context(), []engine.Portal{portalA})
	if _, err := os.Lstat(e.link(FirstPort, nqnA)); err != nil {
		t.Errorf("the volume of host-1 is not served: %v: %v", errs, err)
	}
}

// The subsystem of a host that is retired is never taken from its ports, whatever goes wrong meanwhile: its successor
// has no other path. Nor is it on record, where hosts that it is there for would have to make room.
func TestRetiredHostGoesFromALinkedSubsystem(t *testing.T) {
	e := &Engine{host: *folders(t)}
	e.guard.tried = true
	e.opened(t)
	former, host := v1alpha1.HostNQN(volumeA), v1alpha1.HostNQN(volumeB)
	e.admitting(t, nqnA, former, host)
	link := e.link(FirstPort, nqnA)
	if err := os.Symlink(e.config("subsystems", nqnA), link); err != nil {
		t.Fatal(err)
	}
	before, err := os.Lstat(link)
	if err != nil {
		t.Fatal(err)
	}
	x := engine.Export{
		NQN: nqnA, Serial: "serial", Model: "weft", MaxIOQueues: 8,
		Namespaces: []engine.Namespace{{NSID: 1, Volume: volumeA}}, Hosts: []string{host}, Retired: []string{former},
	}
	errs := e.Export(t.Context(), []engine.Export{x})
	if !errors.Is(errs[0], engine.ErrNotFound) {
		t.Errorf("the volume's file is not there: %v", errs)
	}
	if now, err := os.Lstat(link); err != nil || !os.SameFile(before, now) {
		t.Errorf("the port was taken from the subsystem: %v", err)
	}
	if is := e.read(t, nqnA); !slices.Equal(is.hosts, []string{host}) || !is.namespaces[1].enabled {
		t.Errorf("it admits %v and serves %v", is.hosts, is.namespaces)
	}
	if got := e.recalled(t).byNQN; len(got) > 0 {
		t.Errorf("on record as refused: %v", got)
	}
}

// That a refusal which ended cannot be taken away keeps nobody from being dismissed.
func TestDismissedThoughAnOldRefusalStays(t *testing.T) {
	e := &Engine{host: *folders(t)}
	e.guard.tried = true
	e.admitting(t, nqnA, "host-1")
	e.refusing(t, nqnGone, "host-9") // plain folders are not removed with what is in them
	e.record(t, nqnGone, time.Now().Add(-refusedFor-time.Minute), "host-9")
	errs := e.Unexport(t.Context(), []string{nqnA})
	if is := e.read(t, nqnA); len(is.hosts) > 0 {
		t.Errorf("%v are still admitted: %v", is.hosts, errs)
	}
}

// Where the key is not taken, hosts are shut out as on kernels without keys.
func TestShutOutWithoutAKey(t *testing.T) {
	e := &Engine{host: *folders(t)}
	e.guard.tried = true
	e.admitting(t, nqnA, "host-1")
	key := e.config("hosts", "host-1", "dhchap_key")
	mustRemove(t, key)
	if err := os.Symlink("/proc/version", key); err != nil { // can be read, and no write succeeds
		t.Fatal(err)
	}
	errs := e.Unexport(t.Context(), []string{nqnA})
	enabled, err := e.readAttr(e.config("subsystems", nqnA, "namespaces", "1", "enable"))
	if err != nil {
		t.Fatal(err)
	}
	if enabled != "0" {
		t.Errorf("host-1 can still write: %v", errs)
	}
}

// A volume that several nodes use keeps its subsystem while nodes come and go.
func TestRefusalsOfASharedSubsystemEnd(t *testing.T) {
	h := folders(t)
	h.admitting(t, nqnA, "host-stays")
	for i := range 3 {
		host := fmt.Sprintf("host-%d", i)
		put(t, h.config("hosts", host, "dhchap_key"), unusableKey)
		if err := os.Symlink(h.config("hosts", host), h.config("subsystems", nqnA, "allowed_hosts", host)); err != nil {
			t.Fatal(err)
		}
	}
	h.record(t, nqnA, time.Now().Add(-refusedFor-time.Minute), "host-0", "host-1", "host-2")
	put(t, h.config("hosts", "host-leaves", "dhchap_key"), "")
	if err := os.Symlink(h.config("hosts", "host-leaves"), h.config("subsystems", nqnA, "allowed_hosts", "host-leaves")); err != nil {
		t.Fatal(err)
	}
	s := h.read(t, nqnA)
	r := h.recalled(t)
	for _, ended := range r.expire() {
		r.forget(ended)
	}
	r.dismiss(s, []string{"host-stays"})
	if got := r.of(nqnA); !slices.Equal(got, []string{"host-leaves"}) {
		t.Errorf("after more than a week %v are refused", got)
	}
}

// Without the file, what configfs refuses ends as well, and counts.
func TestRefusalsEndWithoutTheFile(t *testing.T) {
	h := folders(t)
	for i := range 3 {
		h.refusing(t, fmt.Sprintf("%s-%d", nqnGone, i), fmt.Sprintf("host-%d", i))
	}
	put(t, h.refusalsFile(), "{")
	if got := len(h.recalled(t).byNQN); got != 3 {
		t.Errorf("%d of 3 subsystems would ever be removed", got)
	}
}

// A record that is behind, because it could not be saved, makes nobody look dismissed who can write.
func TestRefusalOfAHostThatIsAdmittedElsewhere(t *testing.T) {
	h := folders(t)
	h.admitting(t, nqnA, "host-1")
	h.refusing(t, nqnGone)
	if err := h.refuse(nqnGone, "host-1"); err != nil {
		t.Log(err)
	}
	if is := h.read(t, nqnA); !slices.Equal(is.hosts, []string{"host-1"}) {
		t.Errorf("a host with an enabled namespace is listed as refused: admitted %v, refused %v", is.hosts, is.refused)
	}
}
