// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"path/filepath"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine/spdk"
	"github.com/weft-storage/weft/dataplane/spdkrpc/spdktest"
)

// fakeSPDK is a target with a file for a pool, that can be killed and started again.
type fakeSPDK struct {
	tb      testing.TB
	options spdktest.Options
	target  *spdktest.Target
	plan    *v1alpha1.Plan
	dir     string
}

func newFakeSPDK(tb testing.TB, pace time.Duration) *fakeSPDK {
	tb.Helper()
	dir := tb.TempDir()
	f := &fakeSPDK{
		tb: tb, dir: dir,
		options: spdktest.Options{Socket: filepath.Join(dir, "spdk.sock"), WaitForRPC: true, CoreMask: "0x2", PollInterval: pace},
		plan: &v1alpha1.Plan{
			Engine:  v1alpha1.EngineSPDK,
			Portals: []v1alpha1.PlannedPortal{planned(tcp)},
			File:    &v1alpha1.DeviceFile{Path: filepath.Join(dir, "pool.img"), Size: resource.MustParse("128Gi")},
			SPDK: &v1alpha1.SPDKPlan{
				CoreMask: "0x2", Mode: v1alpha1.CoresStatic, Hugepages: v1alpha1.HugepagesDisabled, MemoryBytes: 1 << 30, PodMemoryBytes: 2 << 30,
				BdevIOPoolSize: 8192, SmallBuffers: 8192, LargeBuffers: 1024, MaxSubsystems: 2048,
				Transports: []v1alpha1.PlannedTransport{{
					Type: v1alpha1.TransportTCP, QueueDepth: 128, MaxIOQueues: 8, InCapsuleDataSize: 4096, MaxIOSize: 131072, SmallCache: 128, LargeCache: 16,
				}},
				Placement: v1alpha1.PlacementNone, Driver: v1alpha1.DriverKernel,
			},
		},
	}
	f.start()
	tb.Cleanup(f.kill)
	return f
}

// start the target, which waits for its settings, as weft-launch does.
func (f *fakeSPDK) start() {
	f.tb.Helper()
	target, err := spdktest.Listen(f.tb.Context(), f.options)
	if err != nil {
		f.tb.Fatal(err)
	}
	f.target = target
}

// kill it as kill -9 does.
func (f *fakeSPDK) kill() {
	f.target.Kill()
	<-f.target.Done()
}

func (f *fakeSPDK) restart() {
	f.kill()
	f.start()
}

// engine that an agent just started would have.
func (f *fakeSPDK) engine(tb testing.TB) *spdk.Engine {
	tb.Helper()
	e, err := spdk.New(spdk.Config{Socket: f.options.Socket, StateDir: f.dir})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(e.Close)
	return e
}
