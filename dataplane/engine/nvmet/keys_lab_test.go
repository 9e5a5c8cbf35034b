// SPDX-License-Identifier: Apache-2.0

//go:build lab

package nvmet_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
	"github.com/weft-storage/weft/internal/dhchap"
)

// TestMeasureConnections measures how long the kernel takes to connect a host with four I/O queues over TCP, each of
// which is authenticated, by the group of the exchange. docs/design/authentication.md has the results.
func TestMeasureConnections(t *testing.T) {
	e, h := fresh(t)
	pool := h.File(t, fullPoolBytes)
	done(t, e.OpenPools(t.Context(), []engine.Device{pool}))
	portal := h.Portals(t)[0]
	done(t, e.OpenPortals(t.Context(), []engine.Portal{portal}))
	id := engine.ID(uuid.NewString())
	done(t, e.CreateVolumes(t.Context(), []engine.VolumeSpec{{ID: id, Pool: pool.ID, SizeBytes: 4 * mib}}))
	const times = 5
	for _, group := range []v1alpha1.DHGroup{"", v1alpha1.DHGroupNone, v1alpha1.DHGroupFFDHE2048, v1alpha1.DHGroupFFDHE3072, v1alpha1.DHGroupFFDHE4096} {
		var keys dhchap.Pair
		if group != "" {
			var err error
			keys, err = dhchap.NewPair()
			check(t, err)
		}
		host := v1alpha1.HostNQNPrefix + uuid.NewString()
		x := engine.Export{
			NQN: v1alpha1.NQNPrefix + "pvc-" + uuid.NewString(), Serial: id.NGUID()[:20], Model: "weft", MaxIOQueues: 4,
			Namespaces: []engine.Namespace{{NSID: 1, Volume: id}}, Hosts: []string{host},
		}
		if !keys.IsZero() {
			x.Authentication = map[string]engine.Authentication{host: {Keys: keys, Group: group}}
		}
		done(t, e.Export(t.Context(), []engine.Export{x}))
		var took []time.Duration
		for n := range times + 1 {
			began := time.Now()
			c, err := enginetest.ConnectKernelWith(t, portal.Portal, x.NQN, host, keys)
			check(t, err)
			if n > 0 { // the kernel loads what it needs with the first
				took = append(took, time.Since(began).Round(time.Millisecond))
			}
			c.Disconnect()
		}
		slices.Sort(took)
		t.Logf("group %q: %v", group, took)
		done(t, e.Unexport(t.Context(), []string{x.NQN}))
	}
}
