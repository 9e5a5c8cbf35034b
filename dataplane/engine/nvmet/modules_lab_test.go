// SPDX-License-Identifier: Apache-2.0

//go:build lab

package nvmet_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
	"github.com/weft-storage/weft/dataplane/engine/nvmet"
)

func moduleParameter(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("/sys/module", path))
	check(t, err)
	return strings.TrimSpace(string(text))
}

// TestModules: the real modules take what is planned of them, and a host writes and reads through shared receive
// queues.
func TestModules(t *testing.T) {
	h := harness{}
	h.Reset(t)
	e := nvmet.New(nvmet.Options{StateDir: stateDir})
	plan := v1alpha1.Plan{Engine: v1alpha1.EngineNvmet, Nvmet: &v1alpha1.NvmetPlan{
		TCP: &v1alpha1.NvmetTCP{IdlePollPeriodMicroseconds: 50, SocketPriority: 6}, RDMA: &v1alpha1.NvmetRDMA{SRQDepth: new(int32(512))},
	}}
	usual := v1alpha1.Plan{Engine: v1alpha1.EngineNvmet, Nvmet: &v1alpha1.NvmetPlan{TCP: &v1alpha1.NvmetTCP{}, RDMA: &v1alpha1.NvmetRDMA{}}}
	t.Cleanup(func() {
		h.Reset(t)
		check(t, e.Start(context.WithoutCancel(t.Context()), usual))
		if got := moduleParameter(t, "nvmet_rdma/parameters/use_srq"); got != "N" {
			t.Errorf("use_srq is %s after it was turned off", got)
		}
	})
	check(t, e.Start(t.Context(), plan))
	for path, want := range map[string]string{
		"nvmet_tcp/parameters/idle_poll_period_usecs": "50", "nvmet_tcp/parameters/so_priority": "6",
		"nvmet_rdma/parameters/use_srq": "Y", "nvmet_rdma/parameters/srq_size": "512",
	} {
		if got := moduleParameter(t, path); got != want {
			t.Errorf("%s is %s, want %s", path, got, want)
		}
	}

	id := engine.ID(uuid.NewString())
	pool := h.File(t, enginetest.PoolBytes)
	host := v1alpha1.HostNQNPrefix + uuid.NewString()
	nqn := v1alpha1.NQNPrefix + "pvc-" + string(id)
	done := func(errs []error) {
		t.Helper()
		check(t, errors.Join(errs...))
	}
	done(e.OpenPools(t.Context(), []engine.Device{pool}))
	done(e.CreateVolumes(t.Context(), []engine.VolumeSpec{{ID: id, Pool: pool.ID, SizeBytes: 16 << 20}}))
	done(e.Export(t.Context(), []engine.Export{{NQN: nqn, Serial: id.NGUID()[:20], Model: "weft", MaxIOQueues: 2, Hosts: []string{host},
		Namespaces: []engine.Namespace{{NSID: 1, Volume: id}}}}))
	portals := h.Portals(t)
	done(e.OpenPortals(t.Context(), portals))
	check(t, e.Start(t.Context(), plan))
	var restart *engine.RestartNeededError
	if err := e.Start(t.Context(), usual); !errors.As(err, &restart) {
		t.Errorf("SRQs turned off while a port is open: %v", err)
	} else {
		t.Log(restart)
	}
	for _, portal := range portals {
		c, err := enginetest.ConnectKernel(portal.Portal, nqn, host)
		check(t, err)
		ns, err := c.Namespace(t.Context(), id)
		check(t, err)
		data := bytes.Repeat([]byte(portal.Transport), 8192)
		_, err = ns.WriteAt(data, 0)
		check(t, err)
		back := make([]byte, len(data))
		_, err = ns.ReadAt(back, 0)
		check(t, err)
		if !bytes.Equal(data, back) {
			t.Errorf("%s: read something else than was written", portal.Transport)
		}
		c.Disconnect()
	}
	enginetest.DisconnectKernel()
}
