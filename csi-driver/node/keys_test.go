// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
	"github.com/weft-storage/weft/csi-driver/node/nodetest"
	"github.com/weft-storage/weft/internal/dhchap"
)

// keyed is a suite whose volume's target wants a proof, with keys that are sealed to this node.
func keyed(t *testing.T) (*suite, dhchap.Pair) {
	t.Helper()
	s := setUp(t)
	var err error
	s.service.Identity, err = dhchap.NewIdentity()
	must(t, err)
	return s, s.rekey(s.service.Identity.PublicKey())
}

// rekey the volume: its target has new keys, which are sealed to a public key.
func (s *suite) rekey(publicKey string) dhchap.Pair {
	s.Helper()
	keys, err := dhchap.NewPair()
	must(s, err)
	s.context.Sealed, err = keys.Seal(publicKey)
	must(s, err)
	s.context.Keys = keys.Fingerprint()
	var portals []string
	for _, p := range s.context.Portals {
		portals = append(portals, p.Address+":4420")
	}
	must(s, s.kernel.Serve(nodetest.Subsystem{
		NQN: s.context.NQN, Portals: portals, Hosts: []string{s.context.HostNQN()}, Keys: map[string]dhchap.Pair{s.context.HostNQN(): keys},
		Namespaces: []nodetest.Namespace{{NGUID: nguid, SizeBytes: v1alpha1.WithOverhead(size)}},
	}))
	return keys
}

func TestStageWithKeys(t *testing.T) {
	s, keys := keyed(t)
	must(t, s.stage(mountCapability("ext4")))
	if made := s.kernel.Creations(); len(made) != 1 || !strings.Contains(made[0], keys.Host.Text()) {
		t.Fatalf("%d creations, the last without the key", len(made))
	}
	must(t, filepath.WalkDir(filepath.Join(s.dir, "staged"), func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if strings.Contains(string(content), strings.Split(keys.Host.Text(), ":")[2]) {
			t.Errorf("%s has a key in it", path)
		}
		return err
	}))
	must(t, s.unstage())
}

// Without keys that it can read, a node does not connect, least of all without any.
func TestStageWithoutItsKeys(t *testing.T) {
	stranger, err := dhchap.NewIdentity()
	must(t, err)
	for name, change := range map[string]func(*suite){
		"sealed to another node":    func(s *suite) { s.rekey(stranger.PublicKey()) },
		"another key of this node":  func(s *suite) { s.service.Identity = stranger },
		"no key of this node":       func(s *suite) { s.service.Identity = nil },
		"the target has the former": func(s *suite) { s.context.Keys = strings.Repeat("0", 32) },
		"the target asks for none":  func(s *suite) { s.context.Keys = "" },
		"damaged":                   func(s *suite) { s.context.Sealed = "YWdl" },
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := keyed(t)
			change(s)
			if err := s.stage(mountCapability("ext4")); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "keys") {
				t.Errorf("stage: %v", err)
			}
			if made := s.kernel.Creations(); len(made) > 0 {
				t.Errorf("%d creations", len(made))
			}
		})
	}
}

// Keys that were sealed again are used for all paths that are connected from then on.
func TestPathsAreMendedWithTheKeysOfNow(t *testing.T) {
	s, _ := keyed(t)
	must(t, s.stage(mountCapability("ext4")))
	s.context.Portals = append(s.context.Portals, v1alpha1.Portal{Transport: v1alpha1.TransportTCP, Address: "10.0.0.2", Port: 4420})
	next := s.rekey(s.service.Identity.PublicKey())
	s.clock.Step(time.Hour)
	must(t, s.service.MendPaths(t.Context()))
	made := s.kernel.Creations()
	if len(made) != 2 || !strings.Contains(made[1], "traddr=10.0.0.2") || !strings.Contains(made[1], next.Host.Text()) {
		t.Fatalf("%d creations, the last without the new keys", len(made))
	}
	must(t, s.unstage())
}

// kernelThat can authenticate its hosts, or fails so.
type kernelThat struct{ fails error }

func (k *kernelThat) Authenticates(context.Context) error { return k.fails }

func TestConditionHasThePublicKey(t *testing.T) {
	identity, err := dhchap.NewIdentity()
	must(t, err)
	c, clock := newNode(t)
	kernel := &kernelThat{}
	r := &node.AuthenticationReporter{Initiator: kernel, Identity: identity, Clock: clock, Writer: &node.ConditionWriter{
		Client: c, Node: "node1", UID: "1", Clock: clock, Type: v1alpha1.ConditionAuthenticationUnavailable, FieldManager: v1alpha1.AuthenticationFieldManager,
	}}
	looks := func(want string) {
		t.Helper()
		if got := conditionOf(t, c, v1alpha1.ConditionAuthenticationUnavailable); got != want {
			t.Errorf("the condition is %q, not %q", got, want)
		}
	}
	must(t, r.Look(t.Context()))
	looks("False AsExpected " + identity.PublicKey())
	var machine corev1.Node
	must(t, c.Get(t.Context(), client.ObjectKey{Name: "node1"}, &machine))
	if key, reason := v1alpha1.HostPublicKey(&machine); key != identity.PublicKey() || reason != "" {
		t.Errorf("the key is %q, and the reason %q", key, reason)
	}

	kernel.fails = errors.New("held up")
	if err := r.Look(t.Context()); !errors.Is(err, kernel.fails) {
		t.Errorf("what is not known was reported: %v", err)
	}
	looks("False AsExpected " + identity.PublicKey())
	kernel.fails = fmt.Errorf("this kernel cannot: %w", fabrics.ErrUnsupported)
	must(t, r.Look(t.Context()))
	looks("True Unsupported " + kernel.fails.Error())
	r.Identity, r.IdentityErr = nil, errors.New("damaged")
	must(t, r.Look(t.Context()))
	looks("True KeysUnreadable this node has no private key: damaged")
}
