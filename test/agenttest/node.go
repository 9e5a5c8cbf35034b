// SPDX-License-Identifier: Apache-2.0

// Package agenttest has storage nodes for tests of what works with agents. Each runs the real agent's reconciler.
//
// A Node has the real engine for SPDK, on spdktest's target. Everything that its agent says to the API server and to
// the target crosses a Boundary of the test's, where it can be killed. What survives that is what survives on a node:
// the target, and its drive.
//
// A Memory has enginetest's engine, where a test orders faults, and does not report on the node itself: the test does.
package agenttest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/device"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/spdk"
	"github.com/weft-storage/weft/dataplane/spdkrpc/spdktest"
)

// driveUUID is the NGUID of the node's one drive.
var driveUUID = uuid.MustParse("00253885-0000-0000-0000-8b710116a100")

// Portals where the node's target listens.
var (
	TCP  = v1alpha1.Portal{Transport: v1alpha1.TransportTCP, Address: "127.0.0.1", Port: 4420}
	RDMA = v1alpha1.Portal{Transport: v1alpha1.TransportRDMA, Address: "127.0.0.1", Port: 4421}
)

// Node with an SPDK target and one drive, or a file that is the pool.
type Node struct {
	// Name of the NvmfNode.
	Name string

	dir string
	// file that is the pool; nil when drive is.
	file    *v1alpha1.DeviceFile
	drive   spdktest.Drive
	watcher *spdk.Engine
	// watching is the watcher's way to the target, until unwatch.
	watching *relay
	unwatch  context.CancelFunc

	mu     sync.Mutex
	target *spdktest.Target
	lives  int
}

// New node, whose target waits for its settings. The folder's path is short: a socket's has at most 107 bytes. With
// file the pool is a file of the node, and not a drive.
func New(ctx context.Context, name, dir string, poolBytes int64, file bool) (*Node, error) {
	if file {
		n := &Node{Name: name, dir: dir, file: &v1alpha1.DeviceFile{Path: "/var/lib/weft/pool.img", Size: *resource.NewQuantity(poolBytes, resource.BinarySI)}}
		return n, errors.Join(n.watch(ctx), n.launch(ctx))
	}
	n := &Node{Name: name, dir: dir, drive: spdktest.Drive{Address: "0000:5e:00.0", Path: filepath.Join(dir, "drive"), Model: "TESTDRIVE", Serial: "S1", NGUID: driveUUID}}
	// What weft-launch leaves beside the socket when it takes a drive from the kernel.
	taken, err := json.Marshal(device.Records{n.drive.Address: {ID: n.drive.WWID(), Content: v1alpha1.ContentBlank, CheckedAt: time.Now()}})
	err = errors.Join(err, os.WriteFile(n.drive.Path, nil, 0o600), os.Truncate(n.drive.Path, poolBytes), os.WriteFile(filepath.Join(dir, "drives.json"), taken, 0o600))
	if err != nil {
		return nil, err
	}
	return n, errors.Join(n.watch(ctx), n.launch(ctx))
}

// watch the target through an engine that changes nothing.
func (n *Node) watch(ctx context.Context) (err error) {
	socket := filepath.Join(n.dir, "watch.sock")
	ctx, n.unwatch = context.WithCancel(ctx)
	if n.watching, err = newRelay(ctx, socket, n.socket(), onlyWatch); err != nil {
		return err
	}
	// Its root is not the node's: it does not find a pool's file, to make that synchronous.
	n.watcher, err = spdk.New(spdk.Config{Socket: socket, StateDir: n.dir})
	return err
}

func (n *Node) socket() string { return filepath.Join(n.dir, "spdk.sock") }

func (n *Node) engine(socket string) (*spdk.Engine, error) {
	return spdk.New(spdk.Config{Root: n.dir, Socket: "/" + filepath.Base(socket), StateDir: "/"})
}

func (n *Node) launch(ctx context.Context) error {
	options := spdktest.Options{Socket: n.socket(), WaitForRPC: true, CoreMask: "0x2", Root: n.dir, RDMADevices: []string{"rxe0"}}
	if n.file == nil {
		options.Drives = []spdktest.Drive{n.drive}
	}
	target, err := spdktest.Listen(ctx, options)
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.target = target
	return nil
}

// Target as it is now.
func (n *Node) Target() *spdktest.Target {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.target
}

// RestartTarget kills the target and starts one that is empty.
func (n *Node) RestartTarget(ctx context.Context) error {
	n.Target().Kill()
	return n.launch(ctx)
}

// LosePower of the node, which comes back at once: what its pool had acknowledged and did not keep is gone. off is
// called before that, to end what else ran there.
func (n *Node) LosePower(ctx context.Context, off func()) error {
	err := n.Target().LosePower()
	off()
	return errors.Join(err, n.launch(ctx))
}

// ResetDrive of the node: its write cache is on again. It does nothing while the target does not drive it.
func (n *Node) ResetDrive() { _ = n.Target().ResetDrive(n.drive.Address) }

// CacheOn says that the drive acknowledges what it would lose with its power.
func (n *Node) CacheOn() bool { return n.Target().CacheOn(n.drive.Address) }

// Close ends the target.
func (n *Node) Close() {
	n.watcher.Close()
	n.unwatch()
	n.watching.wait.Wait()
	n.Target().Kill()
}

// Gather what the target serves, as an engine of its own, which changes nothing.
func (n *Node) Gather(ctx context.Context) (engine.State, error) { return n.watcher.Gather(ctx) }

// Plan for the node.
func (n *Node) Plan() *v1alpha1.Plan {
	plan := n.planOfDrive()
	if n.file != nil {
		plan.Drives, plan.File = nil, n.file
	}
	return plan
}

func (n *Node) planOfDrive() *v1alpha1.Plan {
	return &v1alpha1.Plan{
		Engine: v1alpha1.EngineSPDK,
		Portals: []v1alpha1.PlannedPortal{
			{Portal: TCP, MaxIOQueues: 8, QueueDepth: 128, InCapsuleDataSize: 4096},
			{Portal: RDMA, MaxIOQueues: 8, QueueDepth: 128, InCapsuleDataSize: 4096},
		},
		Drives: []v1alpha1.PlannedDrive{{ID: n.drive.WWID(), Serial: n.drive.Serial, PCIAddress: n.drive.Address}},
		SPDK: &v1alpha1.SPDKPlan{
			CoreMask: "0x2", Mode: v1alpha1.CoresStatic, Hugepages: v1alpha1.HugepagesDisabled, MemoryBytes: 640 << 20, PodMemoryBytes: 2 << 30,
			BdevIOPoolSize: 8192, SmallBuffers: 2048, LargeBuffers: 256, MaxSubsystems: 2048,
			Transports: []v1alpha1.PlannedTransport{transport(v1alpha1.TransportTCP), transport(v1alpha1.TransportRDMA)},
			Placement:  v1alpha1.PlacementNone, Driver: v1alpha1.DriverVFIO,
		},
	}
}

func transport(t v1alpha1.TransportType) v1alpha1.PlannedTransport {
	return v1alpha1.PlannedTransport{
		Type: t, QueueDepth: 128, MaxIOQueues: 8, InCapsuleDataSize: 4096, MaxIOSize: 131072, SmallCache: 128, LargeCache: 16,
	}
}

// nextSocket for an agent of its own.
func (n *Node) nextSocket() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lives++
	return filepath.Join(n.dir, fmt.Sprintf("a%d.sock", n.lives))
}
