// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine/spdk"
	"github.com/weft-storage/weft/dataplane/internal/launch"
	"github.com/weft-storage/weft/dataplane/spdkrpc/spdktest"
)

// fakeSPDK is a target that drives its one drive itself, and that can be killed and started again.
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
	drive := spdktest.Drive{Address: "0000:5e:00.0", Path: filepath.Join(dir, "drive"), Model: "TESTDRIVE", Serial: "S1"}
	// What weft-launch leaves beside the socket when it takes a drive from the kernel.
	taken, err := json.Marshal(launch.Records{drive.Address: {Content: v1alpha1.ContentBlank, CheckedAt: now}})
	err = errors.Join(err, os.WriteFile(drive.Path, nil, 0o600), os.Truncate(drive.Path, 128*gib), os.WriteFile(filepath.Join(dir, "drives.json"), taken, 0o600))
	if err != nil {
		tb.Fatal(err)
	}
	f := &fakeSPDK{
		tb: tb, dir: dir,
		options: spdktest.Options{
			Socket: filepath.Join(dir, "spdk.sock"), WaitForRPC: true, CoreMask: "0x2", PollInterval: pace, Drives: []spdktest.Drive{drive},
		},
		plan: &v1alpha1.Plan{
			Engine:  v1alpha1.EngineSPDK,
			Portals: []v1alpha1.PlannedPortal{planned(tcp)},
			Drives:  []v1alpha1.PlannedDrive{{ID: "eui.0025388b710116a1", Serial: drive.Serial, PCIAddress: drive.Address}},
			SPDK: &v1alpha1.SPDKPlan{
				CoreMask: "0x2", Mode: v1alpha1.CoresStatic, Hugepages: v1alpha1.HugepagesDisabled, MemoryBytes: 1 << 30, PodMemoryBytes: 2 << 30,
				BdevIOPoolSize: 8192, SmallBuffers: 8192, LargeBuffers: 1024, MaxSubsystems: 2048,
				Transports: []v1alpha1.PlannedTransport{{
					Type: v1alpha1.TransportTCP, QueueDepth: 128, MaxIOQueues: 8, InCapsuleDataSize: 4096, MaxIOSize: 131072, SmallCache: 128, LargeCache: 16,
				}},
				Placement: v1alpha1.PlacementNone, Driver: v1alpha1.DriverVFIO,
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
