// SPDX-License-Identifier: Apache-2.0

package agenttest

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node/nodetest"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
	"github.com/weft-storage/weft/internal/dhchap"
)

// Memory is a storage node whose engine is in memory. Its plan is for engine Nvmet, with the pool's path as its file.
// Its agent leaves the NvmfNode's status alone: what the node reports of itself is the test's to say.
type Memory struct {
	name   string
	dir    string
	config *rest.Config
	engine *enginetest.Engine

	mu    sync.Mutex
	stop  context.CancelFunc // nil while no agent runs
	ended chan error
	serve func(nodetest.Subsystem)
	// drives beside the file of the pool.
	drives inventory
}

// NewMemory returns a node with an empty pool, whose agent does not run yet. config leads to the API server; dir is the
// folder for what outlives an agent.
func NewMemory(config *rest.Config, name, dir, pool string, poolBytes int64) *Memory {
	config = rest.CopyConfig(config)
	config.QPS = -1
	return &Memory{name: name, dir: dir, config: config, engine: enginetest.New(enginetest.Device{Path: pool, SizeBytes: poolBytes})}
}

// Start a new life of the agent, which ends with ctx and goes on with what the engine has. It must not be running.
func (m *Memory) Start(ctx context.Context) {
	m.mu.Lock()
	defer m.mu.Unlock()
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	m.stop, m.ended = stop, ended
	drives := slices.Clone(m.drives)
	go func() {
		ended <- reconcileNode(ctx, m.config, m.name, m.dir, drives, &observed{m.engine, m.tell}, func(c client.Client) client.Client { return volumesOnly{c} })
	}()
}

// AddDrive puts a blank drive into the node, for the agent's next life; its ID is its name, too.
func (m *Memory) AddDrive(id string, bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.engine.AddDevice(enginetest.Device{Path: "/dev/" + id, SizeBytes: bytes})
	m.drives = append(m.drives, v1alpha1.Drive{ID: id, Name: id, NVMe: true, SizeBytes: bytes, Content: v1alpha1.ContentBlank})
}

// Stop the agent; the engine goes on serving. When it returns, the agent does nothing any more. It fails when the agent
// could not start, and does nothing when it does not run.
func (m *Memory) Stop() error {
	m.mu.Lock()
	stop, ended := m.stop, m.ended
	m.stop = nil
	m.mu.Unlock()
	if stop == nil {
		return nil
	}
	stop()
	return <-ended
}

// OnServe has serve called with each subsystem that the agent sees its engine serve, before it reports it.
func (m *Memory) OnServe(serve func(nodetest.Subsystem)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.serve = serve
}

func (m *Memory) tell(state engine.State) {
	m.mu.Lock()
	serve := m.serve
	m.mu.Unlock()
	if serve == nil {
		return
	}
	for _, s := range Subsystems(state) {
		serve(s)
	}
}

// NoRoom has the engine refuse new volumes and growth for lack of room, until it is false again.
func (m *Memory) NoRoom(is bool) {
	var err error
	if is {
		err = engine.ErrNoSpace
	}
	m.engine.FailCall(enginetest.CreateVolumes, err)
	m.engine.FailCall(enginetest.GrowVolumes, err)
}

// NoSources has the engine not find what new volumes are made from.
func (m *Memory) NoSources() { m.engine.FailCall(enginetest.CreateVolumes, engine.ErrNotFound) }

// Lose a volume or snapshot, by UUID, behind the engine's back.
func (m *Memory) Lose(uuid string) { m.engine.Lose(engine.ID(uuid)) }

// SPDK makes the target one that takes plans for SPDK.
func (m *Memory) SPDK() {
	m.engine.SetInfo(engine.Info{Type: v1alpha1.EngineSPDK, Version: "enginetest", QoS: true, Authentication: true, Transports: []v1alpha1.TransportType{v1alpha1.TransportTCP}})
}

// PublicKey of the node's agent, as it would report it: the agents of this kind do not write the NvmfNode.
func (m *Memory) PublicKey() (string, error) {
	identity, err := dhchap.LoadIdentity(filepath.Join(m.dir, identityFile))
	if err != nil {
		return "", err
	}
	return identity.PublicKey(), nil
}

// NoLimits makes the target one that cannot limit volumes.
func (m *Memory) NoLimits() {
	m.engine.SetInfo(engine.Info{
		Type: v1alpha1.EngineNvmet, Version: "enginetest", Transports: []v1alpha1.TransportType{v1alpha1.TransportTCP, v1alpha1.TransportRDMA},
	})
}

// MarkWritten makes a volume's first bytes written.
func (m *Memory) MarkWritten(uuid string, bytes int64) error {
	return m.engine.MarkWritten(engine.ID(uuid), bytes)
}

// Made counts, by UUID, how often the engine was asked to make a volume: more than once would be data made twice.
func (m *Memory) Made() map[string]int {
	made := map[string]int{}
	for _, call := range m.engine.Changes() {
		if call.Method == enginetest.CreateVolumes {
			for _, id := range call.Items {
				made[id]++
			}
		}
	}
	return made
}

// Holds says what volumes and snapshots the engine has, by UUID.
func (m *Memory) Holds(ctx context.Context) (volumes, snapshots []string, err error) {
	state, err := m.engine.Gather(ctx)
	for _, v := range state.Volumes {
		volumes = append(volumes, string(v.ID))
	}
	for _, s := range state.Snapshots {
		snapshots = append(snapshots, string(s.ID))
	}
	for _, p := range state.Pools {
		err = errors.Join(err, p.Err)
	}
	return volumes, snapshots, err
}

// observed engine: what the agent learns of it, is told first.
type observed struct {
	engine.Engine
	tell func(engine.State)
}

// Gather implements engine.Engine.
func (o *observed) Gather(ctx context.Context) (engine.State, error) {
	state, err := o.Engine.Gather(ctx)
	if err == nil {
		o.tell(state)
	}
	return state, err
}

// volumesOnly is a client that writes no NvmfNode's status.
type volumesOnly struct{ client.Client }

// Status implements client.Client.
func (c volumesOnly) Status() client.SubResourceWriter { return volumeStatuses{c.Client.Status()} }

type volumeStatuses struct{ client.SubResourceWriter }

// Apply implements client.SubResourceWriter.
func (s volumeStatuses) Apply(ctx context.Context, obj runtime.ApplyConfiguration, opts ...client.SubResourceApplyOption) error {
	if u, ok := obj.(interface{ GetKind() string }); ok && u.GetKind() == "NvmfNode" {
		return nil
	}
	return s.SubResourceWriter.Apply(ctx, obj, opts...)
}
