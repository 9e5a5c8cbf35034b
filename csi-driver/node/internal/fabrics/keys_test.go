// SPDX-License-Identifier: Apache-2.0

package fabrics_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"

	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
	"github.com/weft-storage/weft/csi-driver/node/nodetest"
	"github.com/weft-storage/weft/internal/dhchap"
)

func (f *fixture) newKeys() dhchap.Pair {
	f.Helper()
	keys, err := dhchap.NewPair()
	f.must(err)
	return keys
}

// serveWith keys that the host must prove.
func (f *fixture) serveWith(keys dhchap.Pair) {
	f.Helper()
	f.must(f.kernel.Serve(nodetest.Subsystem{
		NQN: nqn, Portals: []string{"10.0.0.1:4420"}, Hosts: []string{hostNQN}, Keys: map[string]dhchap.Pair{hostNQN: keys},
		Namespaces: []nodetest.Namespace{{NGUID: nguid, SizeBytes: size}},
	}))
}

func TestConnectWithKeys(t *testing.T) {
	f := setUp(t)
	keys := f.newKeys()
	f.serveWith(keys)
	c := connection(first)
	c.Keys = keys
	f.must(f.host.Connect(t.Context(), c))
	want := ",dhchap_secret=" + keys.Host.Text() + ",dhchap_ctrl_secret=" + keys.Controller.Text()
	if got := f.kernel.Creations(); len(got) != 1 || !strings.HasSuffix(got[0], want) {
		t.Errorf("%d creations, the last without keys", len(got))
	}
	shown, err := filepath.Glob(filepath.Join(f.kernel.Root, "sys/class/nvme/nvme*/dhchap_*secret"))
	f.must(err)
	if len(shown) != 2 {
		t.Fatalf("sysfs has %v", shown)
	}
	for _, path := range shown {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s can be read by others: %v, %v", path, info.Mode(), err)
		}
	}
}

// What is logged and what fails has no key in it.
func TestKeysAreNotTold(t *testing.T) {
	f := setUp(t)
	keys, others := f.newKeys(), f.newKeys()
	f.serveWith(keys)
	var told strings.Builder
	ctx := logr.NewContext(t.Context(), funcr.New(func(prefix, args string) { told.WriteString(prefix + args + "\n") }, funcr.Options{Verbosity: 10}))
	for name, tt := range map[string]struct {
		keys dhchap.Pair
		says string
		kind error
	}{
		"none":                     {says: "requires this host to authenticate", kind: fabrics.ErrRefused},
		"others":                   {keys: others, says: "did not accept this host's key", kind: fabrics.ErrRefused},
		"another controller's key": {keys: dhchap.Pair{Host: keys.Host, Controller: others.Controller}, kind: fabrics.ErrRefused},
		"no controller's key":      {keys: dhchap.Pair{Host: keys.Host}, kind: fabrics.ErrInvalid},
	} {
		c := connection(first)
		c.Keys = tt.keys
		err := f.host.Connect(ctx, c)
		if !errors.Is(err, tt.kind) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v", name, err)
		}
		told.WriteString(err.Error())
	}
	c := connection(first)
	c.Keys = keys
	f.must(f.host.Connect(ctx, c))
	for _, k := range []dhchap.Key{keys.Host, keys.Controller, others.Host, others.Controller} {
		if strings.Contains(told.String(), strings.Split(k.Text(), ":")[2]) {
			t.Error("a key was logged, or is in an error")
		}
	}
	if !strings.Contains(told.String(), "Connected") {
		t.Error("nothing was logged")
	}
}

// A kernel writes an option that it does not know to its log: it is given no key then.
func TestKernelThatCannotAuthenticate(t *testing.T) {
	for name, known := range map[string]string{"older": strings.ReplaceAll(setUp(t).kernel.Known, "dhchap_", "x"), "silent": ""} {
		f := setUp(t)
		f.kernel.Known = known
		f.serveWith(f.newKeys())
		c := connection(first)
		c.Keys = f.newKeys()
		if err := f.host.Connect(t.Context(), c); !errors.Is(err, fabrics.ErrUnsupported) || !strings.Contains(err.Error(), "CONFIG_NVME_HOST_AUTH") {
			t.Errorf("%s: %v", name, err)
		}
		if got := f.kernel.Creations(); len(got) > 0 {
			t.Errorf("%s: %d creations", name, len(got))
		}
		if err := f.host.Authenticates(t.Context()); !errors.Is(err, fabrics.ErrUnsupported) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := setUp(t).host.Authenticates(t.Context()); err != nil {
		t.Error(err)
	}
}
