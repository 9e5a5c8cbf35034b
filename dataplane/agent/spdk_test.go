// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/device"
	"github.com/weft-storage/weft/dataplane/engine/spdk"
	"github.com/weft-storage/weft/dataplane/spdkrpc/spdktest"
)

// mortal is a target that can be killed as kill -9 does.
type mortal interface {
	Kill()
	Done() <-chan struct{}
}

// spdkNode is a node with an SPDK target, and the plan that it is started for.
type spdkNode struct {
	tb     testing.TB
	dir    string
	plan   *v1alpha1.Plan
	target mortal
	// launch a target that waits for its settings, as weft-launch does.
	launch func(ctx context.Context, socket string) (mortal, error)
}

// newSPDKNode without a pool yet. Its target has one core.
func newSPDKNode(tb testing.TB) *spdkNode {
	return &spdkNode{
		tb: tb, dir: tb.TempDir(), plan: spdkPlan(),
	}
}

// spdkPlan for one core.
func spdkPlan() *v1alpha1.Plan {
	loopback := tcp
	loopback.Address = "127.0.0.1"
	return &v1alpha1.Plan{
		Engine:  v1alpha1.EngineSPDK,
		Portals: []v1alpha1.PlannedPortal{planned(loopback)},
		SPDK: &v1alpha1.SPDKPlan{
			CoreMask: "0x2", Mode: v1alpha1.CoresStatic, Hugepages: v1alpha1.HugepagesDisabled, MemoryBytes: 640 << 20, PodMemoryBytes: 2 << 30,
			BdevIOPoolSize: 8192, SmallBuffers: 2048, LargeBuffers: 256, MaxSubsystems: 2048,
			Transports: []v1alpha1.PlannedTransport{{
				Type: v1alpha1.TransportTCP, QueueDepth: 128, MaxIOQueues: 8, InCapsuleDataSize: 4096, MaxIOSize: 131072, SmallCache: 128, LargeCache: 16,
			}},
			Placement: v1alpha1.PlacementNone, Driver: v1alpha1.DriverVFIO,
		},
	}
}

// newFakeSPDK is a node whose target drives its one drive itself.
func newFakeSPDK(tb testing.TB, pace time.Duration) *spdkNode {
	tb.Helper()
	n := newSPDKNode(tb)
	drive := spdktest.Drive{Address: "0000:5e:00.0", Path: filepath.Join(n.dir, "drive"), Model: "TESTDRIVE", Serial: "S1"}
	n.plan.Drives = []v1alpha1.PlannedDrive{{ID: drive.WWID(), Serial: drive.Serial, PCIAddress: drive.Address}}
	// What weft-launch leaves beside the socket when it takes a drive from the kernel.
	taken, err := json.Marshal(device.Records{drive.Address: {ID: drive.WWID(), Content: v1alpha1.ContentBlank, CheckedAt: now}})
	err = errors.Join(err, os.WriteFile(drive.Path, nil, 0o600), os.Truncate(drive.Path, 128*gib), os.WriteFile(filepath.Join(n.dir, "drives.json"), taken, 0o600))
	if err != nil {
		tb.Fatal(err)
	}
	n.launch = func(ctx context.Context, socket string) (mortal, error) {
		return spdktest.Listen(ctx, spdktest.Options{
			Socket: socket, WaitForRPC: true, CoreMask: n.plan.SPDK.CoreMask, PollInterval: pace, Drives: []spdktest.Drive{drive},
		})
	}
	n.start()
	return n
}

// newRealSPDK is a node with the nvmf_tgt that WEFT_SPDK_TARGET names, and a file for a pool: the machine's drives are
// not touched.
func newRealSPDK(tb testing.TB, changes ...func(*v1alpha1.Plan)) *spdkNode {
	tb.Helper()
	path := spdktest.RealTarget(tb)
	n := newSPDKNode(tb)
	n.plan.File = &v1alpha1.DeviceFile{Path: filepath.Join(n.dir, "pool.img"), Size: resource.MustParse("128Gi")}
	n.plan.SPDK.Driver = v1alpha1.DriverKernel
	for _, change := range changes {
		change(n.plan)
	}
	n.launch = func(ctx context.Context, socket string) (mortal, error) {
		return spdktest.RunReal(ctx, path, socket, "-m", n.plan.SPDK.CoreMask, "--wait-for-rpc")
	}
	n.start()
	return n
}

// start the target. It answers when its socket does.
func (n *spdkNode) start() {
	n.tb.Helper()
	// Not the test's own context: the target ends after what uses it, and not before.
	target, err := n.launch(context.WithoutCancel(n.tb.Context()), filepath.Join(n.dir, "spdk.sock"))
	if err != nil {
		n.tb.Fatal(err)
	}
	n.target = target
	n.tb.Cleanup(target.Kill)
}

func (n *spdkNode) kill() {
	n.target.Kill()
	<-n.target.Done()
}

// engine that an agent just started would have.
func (n *spdkNode) engine() *spdk.Engine {
	n.tb.Helper()
	e, err := spdk.New(spdk.Config{Socket: filepath.Join(n.dir, "spdk.sock"), StateDir: n.dir})
	if err != nil {
		n.tb.Fatal(err)
	}
	n.tb.Cleanup(e.Close)
	return e
}
