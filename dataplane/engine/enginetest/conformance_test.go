// SPDX-License-Identifier: Apache-2.0

package enginetest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/uuid"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
	"github.com/weft-storage/weft/internal/dhchap"
)

func TestConformance(t *testing.T) { enginetest.Run(t, &harness{}) }

type harness struct {
	e *enginetest.Engine
	// lost devices, by path.
	lost []string
}

func (h *harness) Reset(*testing.T)                { h.e, h.lost = enginetest.New(), nil }
func (h *harness) Engine(*testing.T) engine.Engine { return h.e }
func (h *harness) Traits() enginetest.Traits {
	return enginetest.Traits{NoWire: "this target is in memory, and listens on no socket"}
}
func (h *harness) Plan(*testing.T) v1alpha1.Plan { return v1alpha1.Plan{Engine: v1alpha1.EngineNvmet} }

// Kept implements enginetest.Harness. This target keeps nothing in files.
func (h *harness) Kept(*testing.T) []string { return nil }

func (h *harness) Lose(_ *testing.T, d engine.Device) {
	h.lost = append(h.lost, d.Path)
	h.e.BreakDevice(d.Path, fmt.Errorf("%w: input/output error", engine.ErrUnavailable))
}

func (h *harness) Restart(*testing.T) {
	for _, path := range h.lost {
		h.e.BreakDevice(path, nil)
	}
	h.lost = nil
	h.e.Restart()
}

func (h *harness) BlankDevice(*testing.T) engine.Device {
	return h.device(enginetest.Device{SizeBytes: enginetest.PoolBytes})
}

func (h *harness) ForeignDevice(*testing.T) (engine.Device, string) {
	return h.device(enginetest.Device{SizeBytes: enginetest.PoolBytes, Content: v1alpha1.ContentForeign, Signature: "ntfs filesystem"}), "ntfs"
}

func (h *harness) device(d enginetest.Device) engine.Device {
	d.Path = "/dev/" + uuid.NewString()
	h.e.AddDevice(d)
	return engine.Device{ID: "wwid of " + d.Path, Path: d.Path}
}

func (h *harness) File(_ *testing.T, bytes int64) engine.Device {
	path := "/var/lib/weft/" + uuid.NewString() + ".img"
	return engine.Device{ID: path, Path: path, FileBytes: bytes}
}

func (h *harness) Portals(*testing.T) []engine.Portal {
	portal := func(transport v1alpha1.TransportType, port int32) engine.Portal {
		return engine.Portal{
			Portal:     v1alpha1.Portal{Transport: transport, Address: "192.0.2.1", Port: port},
			QueueDepth: 128, InCapsuleDataBytes: 4096,
		}
	}
	return []engine.Portal{portal(v1alpha1.TransportTCP, 4420), portal(v1alpha1.TransportRDMA, 4421)}
}

func (h *harness) Connect(ctx context.Context, _ *testing.T, portal v1alpha1.Portal, nqn, hostNQN string, keys dhchap.Pair) (enginetest.Connection, error) {
	host, err := h.e.ConnectWith(ctx, portal, nqn, hostNQN, keys)
	if err != nil {
		return nil, err
	}
	x, err := host.Export()
	if err != nil {
		return nil, err
	}
	return &connection{Host: host, queues: x.MaxIOQueues}, nil
}

type connection struct {
	*enginetest.Host
	queues int
}

func (c *connection) IOQueues() (int, error) { return c.queues, nil }

func (c *connection) LosePatience() error {
	c.Host.LosePatience()
	return nil
}

func (c *connection) Namespace(_ context.Context, id engine.ID) (enginetest.Namespace, error) {
	if _, err := c.SizeBytes(id); err != nil {
		return nil, err
	}
	return &namespace{host: c.Host, id: id}, nil
}

type namespace struct {
	host *enginetest.Host
	id   engine.ID
}

func (n *namespace) ReadAt(p []byte, off int64) (int, error)  { return n.host.ReadAt(n.id, p, off) }
func (n *namespace) WriteAt(p []byte, off int64) (int, error) { return n.host.WriteAt(n.id, p, off) }
func (n *namespace) SizeBytes() (int64, error)                { return n.host.SizeBytes(n.id) }
func (n *namespace) ANAState() string                         { return "optimized" }

func (n *namespace) Identity() (enginetest.Identity, error) {
	x, err := n.host.Export()
	if err != nil {
		return enginetest.Identity{}, err
	}
	for _, ns := range x.Namespaces {
		if ns.Volume == n.id {
			return enginetest.Identity{
				NQN: x.NQN, Serial: x.Serial, Model: x.Model, NSID: ns.NSID, UUID: string(n.id), NGUID: n.id.NGUID(),
			}, nil
		}
	}
	return enginetest.Identity{}, fmt.Errorf("volume %s in %s: %w", n.id, x.NQN, engine.ErrNotFound)
}

func TestOrders(t *testing.T) {
	ctx := t.Context()
	e := enginetest.New(enginetest.Device{Path: "/dev/a", SizeBytes: 1 << 30})
	device := engine.Device{ID: "a", Path: "/dev/a"}
	id := engine.ID(uuid.NewString())
	volume := engine.VolumeSpec{ID: id, Pool: "a", SizeBytes: 4 << 20}
	boom := errors.New("boom")

	e.FailCall(enginetest.OpenPools, boom)
	if err := e.OpenPools(ctx, []engine.Device{device})[0]; !errors.Is(err, boom) {
		t.Fatalf("OpenPools: %v", err)
	}
	e.FailCall(enginetest.OpenPools, nil)
	if err := e.OpenPools(ctx, []engine.Device{device})[0]; err != nil {
		t.Fatalf("OpenPools: %v", err)
	}
	e.FailItem(enginetest.CreateVolumes, string(id), boom)
	if err := e.CreateVolumes(ctx, []engine.VolumeSpec{volume})[0]; !errors.Is(err, boom) {
		t.Fatalf("CreateVolumes: %v", err)
	}
	e.Before(enginetest.CreateVolumes, func(context.Context) { e.FailItem(enginetest.CreateVolumes, string(id), nil) })
	if err := e.CreateVolumes(ctx, []engine.VolumeSpec{volume})[0]; err != nil {
		t.Fatalf("CreateVolumes: %v", err)
	}
	if err := e.MarkWritten(id, 5000); err != nil {
		t.Fatal(err)
	}
	state, err := e.Gather(ctx)
	if err != nil || len(state.Volumes) != 1 || state.Volumes[0].AllocatedBytes != 8192 {
		t.Fatalf("Gather: %+v, %v", state, err)
	}
	want := []enginetest.Call{
		{Method: enginetest.OpenPools, Items: []string{"a"}},
		{Method: enginetest.OpenPools, Items: []string{"a"}},
		{Method: enginetest.CreateVolumes, Items: []string{string(id)}},
		{Method: enginetest.CreateVolumes, Items: []string{string(id)}},
	}
	if got := e.Changes(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("Changes: %v, want %v", got, want)
	}
	e.BreakDevice("/dev/a", boom)
	if state, err = e.Gather(ctx); err != nil || !errors.Is(state.Pools[0].Err, boom) || len(state.Volumes) != 0 {
		t.Errorf("Gather of a broken device: %+v, %v", state, err)
	}
}
