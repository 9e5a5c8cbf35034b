// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	eventsv1 "k8s.io/api/events/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
	"github.com/weft-storage/weft/csi-driver/node/nodetest"
	"github.com/weft-storage/weft/internal/dhchap"
)

// Identities that the attachment of the volume gets when its keys are rotated.
const (
	secondIdentity = "a2a2a2a2-2222-4333-8444-555555555555"
	thirdIdentity  = "a3a3a3a3-2222-4333-8444-555555555555"
)

// rotated is a suite whose volume's keys are rotated.
type rotated struct {
	*suite
	portals []string
	// keys of each host, by its identity, and all keys that there ever were.
	keys map[string]dhchap.Pair
	all  []dhchap.Pair
	told strings.Builder
}

// staged with the attachment's own identity.
func staged(t *testing.T) *rotated {
	t.Helper()
	s := setUp(t)
	r := &rotated{suite: s, portals: []string{firstPortal, secondPortal}, keys: map[string]dhchap.Pair{}}
	var err error
	s.service.Identity, err = dhchap.NewIdentity()
	must(t, err)
	s.listen()
	r.list(attachment)
	must(t, s.stage(mountCapability("ext4")))
	return r
}

// list hosts of the attachment, which the target admits, with keys of their own.
func (r *rotated) list(identities ...string) {
	r.Helper()
	r.context.Rotated = nil
	for _, identity := range identities {
		if _, ok := r.keys[identity]; !ok {
			pair, err := dhchap.NewPair()
			must(r, err)
			r.keys[identity], r.all = pair, append(r.all, pair)
		}
		sealed, err := r.keys[identity].Seal(r.service.Identity.PublicKey())
		must(r, err)
		r.context.Rotated = append(r.context.Rotated, nodetest.RotatedHost{Identity: identity, Sealed: sealed, Keys: r.keys[identity].Fingerprint()})
	}
	r.admit()
}

// admit the hosts that are listed, unless they wait.
func (r *rotated) admit() {
	r.Helper()
	is := nodetest.Subsystem{
		NQN: r.context.NQN, Portals: r.portals, Keys: map[string]dhchap.Pair{},
		Namespaces: []nodetest.Namespace{{NGUID: nguid, SizeBytes: v1alpha1.WithOverhead(size)}},
	}
	for _, h := range r.context.Rotated {
		if !h.Waiting {
			is.Hosts = append(is.Hosts, v1alpha1.HostNQN(h.Identity))
			is.Keys[v1alpha1.HostNQN(h.Identity)] = r.keys[h.Identity]
		}
	}
	must(r, r.kernel.Serve(is))
}

// mend the paths, some minutes later.
func (r *rotated) mend() error {
	r.Helper()
	r.clock.Step(time.Hour)
	return r.service.MendPaths(logr.NewContext(r.Context(), funcr.New(func(prefix, args string) { r.told.WriteString(prefix + args + "\n") }, funcr.Options{Verbosity: 10})))
}

// wantHosts checks as which identities the volume's device has paths, each once for each portal that is given.
func (r *rotated) wantHosts(identities ...string) {
	r.Helper()
	r.untilNothingIsOverdue()
	var want, got []string
	for _, identity := range identities {
		want = append(want, v1alpha1.HostNQN(identity))
	}
	for _, p := range r.kernel.Paths("259:1") {
		got = append(got, p.HostNQN)
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		r.Errorf("paths as %v, want %v", got, want)
	}
	r.wantMounts("staging ext4 rw")
}

func (r *rotated) wantRetired(identities ...string) {
	r.Helper()
	if got, err := r.service.RetiredIdentities(); err != nil || !slices.Equal(got, identities) {
		r.Errorf("retired %v (%v), want %v", got, err, identities)
	}
}

// restart the node plugin.
func (r *rotated) restart() {
	r.Helper()
	was := r.service
	r.service = &node.Service{
		NodeName: was.NodeName, NodeUID: was.NodeUID, Initiator: was.Initiator, Mapper: was.Mapper, Filesystems: was.Filesystems,
		Records: was.Records, Volumes: was.Volumes, Identity: was.Identity, Clock: was.Clock,
	}
}

// wantNoKeys in what was told and recorded.
func (r *rotated) wantNoKeys() {
	r.Helper()
	record, err := os.ReadFile(r.path("staged/" + vol + ".json"))
	must(r, err)
	for _, pair := range r.all {
		for _, k := range []dhchap.Key{pair.Host, pair.Controller} {
			if secret := strings.Split(k.Text(), ":")[2]; strings.Contains(r.told.String(), secret) || strings.Contains(string(record), secret) {
				r.Error("a log or a record has a key in it")
			}
		}
	}
}

func TestRotateKeys(t *testing.T) {
	r := staged(t)
	r.wantHosts(attachment, attachment)
	r.context.Rotated = append(r.context.Rotated, nodetest.RotatedHost{Identity: secondIdentity, Waiting: true})
	must(t, r.mend())
	r.wantHosts(attachment, attachment)

	r.list(attachment, secondIdentity)
	must(t, r.mend())
	r.wantHosts(secondIdentity, secondIdentity)
	r.wantRetired(attachment)
	if got := r.health(); got != "" {
		t.Errorf("health %q", got)
	}
	must(t, r.mend())
	r.wantRetired(attachment) // until the object says so
	r.list(secondIdentity)
	must(t, r.mend())
	r.wantRetired()
	r.wantHosts(secondIdentity, secondIdentity)

	r.list(secondIdentity, thirdIdentity)
	must(t, r.mend())
	r.wantHosts(thirdIdentity, thirdIdentity)
	r.wantRetired(secondIdentity)
	r.wantNoKeys()
	must(t, r.unstage())
	r.wantRetired()
	r.wantGone()
}

// A controller that is live has no path before the kernel has looked for its namespaces. Were the former one removed
// then, the device would be lost.
func TestRotationWaitsForAPath(t *testing.T) {
	r := staged(t)
	r.kernel.ScanLate()
	r.list(attachment, secondIdentity)
	for range 2 {
		must(t, r.mend())
		if got := len(r.kernel.Controllers()); got != 4 {
			t.Errorf("%d controllers, want 2 of each host", got)
		}
		r.wantHosts(attachment, attachment)
		r.wantRetired()
		r.restart()
	}
	must(t, r.kernel.ScanNow())
	must(t, r.mend())
	r.wantHosts(secondIdentity, secondIdentity)
	r.wantRetired(attachment)
}

// A portal that does not answer now keeps the former's path to it from being removed; one that neither reaches does
// not.
func TestRotationNeedsEachPath(t *testing.T) {
	r := staged(t)
	r.portals = []string{firstPortal}
	r.list(attachment, secondIdentity)
	must(t, r.mend())
	r.wantHosts(attachment, attachment, secondIdentity)
	r.wantRetired()
	for _, name := range r.kernel.Controllers() {
		for _, p := range r.kernel.Paths("259:1") {
			if p.Controller == name && p.HostNQN == v1alpha1.HostNQN(attachment) {
				must(t, r.kernel.SetState(name, "connecting"))
			}
		}
	}
	must(t, r.mend())
	r.wantHosts(secondIdentity)
	r.portals = []string{firstPortal, secondPortal}
	r.admit()
	must(t, r.mend())
	r.wantHosts(secondIdentity, secondIdentity)
}

// In the middle of a rotation the volume is staged again, and keeps both hosts.
func TestStageWhileKeysAreRotated(t *testing.T) {
	r := staged(t)
	r.kernel.ScanLate()
	r.list(attachment, secondIdentity)
	must(t, r.mend())
	must(t, r.stage(mountCapability("ext4")))
	if got := len(r.kernel.Controllers()); got != 4 {
		t.Errorf("%d controllers, want 2 of each host", got)
	}
	r.wantHosts(attachment, attachment)
	must(t, r.kernel.ScanNow())
	must(t, r.mend())
	r.wantHosts(secondIdentity, secondIdentity)
	must(t, r.stage(mountCapability("ext4")))
	r.wantHosts(secondIdentity, secondIdentity)
	r.wantRetired(attachment)
}

// turned is a volume whose next host has just taken the former one's place in the record, whose connections are there
// still, and alone have paths.
func turned(t *testing.T) *rotated {
	t.Helper()
	r := staged(t)
	r.kernel.ScanLate()
	r.list(attachment, secondIdentity)
	must(t, r.mend())
	file := r.path("staged/" + vol + ".json")
	text, err := os.ReadFile(file)
	must(t, err)
	var record map[string]any
	must(t, json.Unmarshal(text, &record))
	only := record["replicas"].([]any)[0].(map[string]any)
	if only["next"] != secondIdentity {
		t.Fatalf("the record is %s", text)
	}
	delete(only, "next")
	only["identity"], only["former"], only["beside"], only["sealed"] = secondIdentity, attachment, true, r.context.Rotated[1].Sealed
	text, err = json.Marshal(record)
	must(t, err)
	must(t, os.WriteFile(file, text, 0o600))
	r.restart()
	return r
}

// While the former host's connections are those that carry the I/O, staging again leaves them.
func TestStageWhileTheFormerHostCarriesTheIO(t *testing.T) {
	r := turned(t)
	must(t, r.stage(mountCapability("ext4")))
	r.wantHosts(attachment, attachment)
	must(t, r.mend())
	r.wantHosts(attachment, attachment)
	r.wantRetired()
	must(t, r.kernel.ScanNow())
	must(t, r.mend())
	r.wantHosts(secondIdentity, secondIdentity)
	r.wantRetired(attachment)
}

// A path that the next host has lost for good is made again, although the former one has one to the same portal.
func TestNextHostGetsAPathThatItLostAgain(t *testing.T) {
	r := turned(t)
	controllers := r.kernel.Controllers()
	slices.Sort(controllers)
	must(t, r.kernel.Drop(controllers[len(controllers)-1]))
	must(t, r.kernel.ScanNow())
	must(t, r.mend())
	r.wantHosts(secondIdentity, secondIdentity)
	r.wantRetired(attachment)
}

// A host that is listed and not admitted was dismissed before the objects were restored from a backup: what was written
// as that must not go to the target by another host's connections. So these are not made beside it, and when the volume
// is staged again, its own go first.
func TestNothingIsConnectedBesideADismissedHost(t *testing.T) {
	r := staged(t)
	former := r.kernel.Controllers()
	r.list(attachment, secondIdentity)
	r.context.Rotated[0].Waiting = true
	r.admit()
	for _, name := range former {
		must(t, r.kernel.SetState(name, "connecting"))
	}
	made := len(r.kernel.Creations())
	must(t, r.mend())
	r.wantHosts(attachment, attachment)
	r.wantRetired()

	must(t, r.kernel.SetState(former[0], "deleting"))
	release := r.kernel.Stick(former[1])
	brief, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := r.stageIn(brief, mountCapability("ext4")); err == nil {
		t.Error("staged beside the connections of a host that was dismissed")
	}
	if got := r.kernel.Creations()[made:]; len(got) > 0 {
		t.Errorf("connected beside a host that was dismissed: %v", got)
	}
	release()
}

// A machine that was restarted in the middle of a rotation connects as the latest host that is admitted, and leaves the
// former to be dismissed.
func TestStageAnewWhileKeysAreRotated(t *testing.T) {
	r := staged(t)
	must(t, r.unstage())
	r.list(attachment, secondIdentity)
	r.context.Rotated[1].Waiting = true
	r.admit()
	must(t, r.stage(mountCapability("ext4")))
	r.wantRetired()
	must(t, r.unstage())
	r.list(attachment, secondIdentity)
	must(t, r.stage(mountCapability("ext4")))
	r.wantRetired(attachment)
	for _, made := range r.kernel.Creations()[4:] {
		if !strings.Contains(made, "hostnqn="+v1alpha1.HostNQN(secondIdentity)) {
			t.Error("connected as another host than the latest")
		}
	}
}

// A target that is away costs the volume no connection, as whichever host it is connected. One that was detached does.
func TestRevocationWhileKeysAreRotated(t *testing.T) {
	for name, hosts := range map[string][]string{"in the middle": {attachment, secondIdentity}, "afterwards": {secondIdentity}} {
		for _, record := range []string{"kept", "lost"} {
			t.Run(name+", record "+record, func(t *testing.T) {
				r := staged(t)
				r.list(attachment, secondIdentity)
				if len(hosts) == 2 {
					r.kernel.ScanLate()
				}
				must(t, r.mend())
				r.list(hosts...)
				if len(hosts) == 1 {
					must(t, r.mend())
				}
				if record == "lost" {
					must(t, os.WriteFile(r.path("staged/"+vol+".json"), []byte("{}"), 0o600))
				}
				for _, name := range r.kernel.Controllers() {
					must(t, r.kernel.SetState(name, "connecting"))
				}
				must(t, r.service.GiveUpRevoked(t.Context()))
				if got := len(r.kernel.Controllers()); got != 2*len(hosts) {
					t.Errorf("%d controllers are left of a volume that is attached", got)
				}
				r.context.Revoked = true
				must(t, r.service.GiveUpRevoked(t.Context()))
				if got := r.kernel.Controllers(); len(got) > 0 {
					t.Errorf("controllers %v are left of a volume that was detached", got)
				}
			})
		}
	}
}

// A node plugin that lost its record's host, which somebody dismissed, connects as the one that is admitted.
func TestDismissedHostIsReplaced(t *testing.T) {
	r := staged(t)
	r.list(secondIdentity)
	for _, name := range r.kernel.Controllers() {
		must(t, r.kernel.SetState(name, "connecting"))
	}
	must(t, r.mend())
	r.wantHosts(secondIdentity, secondIdentity)
	must(t, r.mend())
	r.wantRetired()
}

func TestRotationThatCannotBe(t *testing.T) {
	for name, c := range map[string]struct {
		change func(r *rotated)
		want   string
	}{
		"keys of another node": {func(r *rotated) {
			stranger, err := dhchap.NewIdentity()
			must(r, err)
			r.context.Rotated[1].Sealed, err = r.keys[secondIdentity].Seal(stranger.PublicKey())
			must(r, err)
		}, "keys"},
		"keys that the target does not have": {func(r *rotated) { r.context.Rotated[1].Keys = strings.Repeat("0", 32) }, "keys"},
		"a target that refuses it": {func(r *rotated) {
			delete(r.keys, secondIdentity)
			r.list(attachment)
			r.context.Rotated = append(r.context.Rotated, nodetest.RotatedHost{Identity: secondIdentity})
		}, "does not admit this host"},
	} {
		t.Run(name, func(t *testing.T) {
			r := staged(t)
			r.list(attachment, secondIdentity)
			c.change(r)
			err := r.mend()
			if err == nil || !strings.Contains(err.Error(), "rotate its keys") || !strings.Contains(err.Error(), c.want) {
				t.Errorf("mend: %v", err)
			}
			r.wantHosts(attachment, attachment)
			r.wantRetired()
			r.wantNoKeys()
		})
	}
}

// Without multipath another controller would be another block device.
func TestNoRotationWithoutMultipath(t *testing.T) {
	r := staged(t)
	must(t, r.unstage())
	must(t, r.kernel.DisableMultipath())
	must(t, r.stage(mountCapability("ext4")))
	r.list(attachment, secondIdentity)
	if err := r.mend(); err == nil || !strings.Contains(err.Error(), fabrics.ErrNoMultipath.Error()) {
		t.Errorf("mend: %v", err)
	}
	if got := r.kernel.Controllers(); len(got) != 1 {
		t.Errorf("controllers %v", got)
	}
	r.wantRetired()
}

func TestConditionHasTheRetiredIdentities(t *testing.T) {
	c, clock := newNode(t)
	var retired []string
	var fails error
	r := &node.IdentitiesReporter{Retired: func() ([]string, error) { return retired, fails }, Clock: clock, Writer: &node.ConditionWriter{
		Client: c, Node: "node1", UID: "1", Clock: clock, Type: v1alpha1.ConditionIdentitiesRetired, FieldManager: node.IdentitiesFieldManager, Quiet: true,
	}}
	for _, want := range []string{"False AsExpected ", "True KeysRotated a b", "False AsExpected "} {
		must(t, r.Look(t.Context()))
		if got := conditionOf(t, c, v1alpha1.ConditionIdentitiesRetired); got != want {
			t.Errorf("the condition is %q, not %q", got, want)
		}
		retired = map[bool][]string{true: {"a", "b"}}[len(retired) == 0]
	}
	must(t, r.Look(t.Context()))
	fails = errors.New("unreadable")
	if err := r.Look(t.Context()); !errors.Is(err, fails) {
		t.Error(err)
	}
	if got := conditionOf(t, c, v1alpha1.ConditionIdentitiesRetired); got != "True KeysRotated a b" {
		t.Errorf("what is not known was reported: %q", got)
	}
	var events eventsv1.EventList
	must(t, c.List(t.Context(), &events))
	if len(events.Items) > 0 {
		t.Errorf("%d Events", len(events.Items))
	}
}
