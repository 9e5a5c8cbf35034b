// SPDX-License-Identifier: Apache-2.0

// Package node is CSI's node service: it connects volumes to this machine, makes
// filesystems where that is allowed, and mounts.
//
// Nothing is remembered between calls: what is connected and mounted is read from the kernel each time. Only
// what a volume was staged with is written down (see records), and that it may not be formatted any more (see
// usedPermission). Every call is idempotent, and calls for one volume run one at a time: a second one is answered
// Aborted.
package node

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/internal/health"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
	"github.com/weft-storage/weft/csi-driver/node/internal/filesystem"
	"github.com/weft-storage/weft/csi-driver/publishcontext"
)

// DefaultMaxVolumes is how many volumes a node takes by default. Each is a connection with its own
// queues, and costs the target about 0.8 MB for each queue: 256 volumes
// with two I/O queues and an admin queue, about 600 MB over all targets.
const DefaultMaxVolumes = 256

// Initiator connects this host to subsystems. *fabrics.Host is one; its methods say what they guarantee.
type Initiator interface {
	Connect(ctx context.Context, c fabrics.Connection) error
	Controllers(nqn string) ([]fabrics.Controller, error)
	Lost(c fabrics.Connection) ([]v1alpha1.Portal, error)
	Answers(ctx context.Context, p v1alpha1.Portal) error
	WaitNamespace(ctx context.Context, id fabrics.ID, minBytes int64) (fabrics.Namespace, error)
	FindNamespace(id fabrics.ID) (fabrics.Namespace, error)
	Namespaces(nqn string) ([]fabrics.Namespace, error)
	NamespaceByDevice(device string) (fabrics.Namespace, error)
	Open(ns fabrics.Namespace) (io.Closer, error)
	Confirm(ns fabrics.Namespace) error
	Connected(nqn string) (bool, error)
	Disconnect(ctx context.Context, id fabrics.ID) error
}

// Obstacle tells what is in the way of further volumes. *stuck.Watch is one.
type Obstacle interface {
	// Check fails while this machine's kernel does not finish what it was asked for before.
	Check() error
}

// Filesystems mounts. *filesystem.Host is one; its methods say what they guarantee.
type Filesystems interface {
	SetReadOnly(ctx context.Context, device string, readOnly bool) error
	Prepare(ctx context.Context, r filesystem.Request) error
	Mount(device, target, fsType string, options []string) error
	BindDirectory(source, target string, readOnly bool) error
	BindDevice(device, target string, readOnly bool) error
	Unmount(path string) error
	Remove(path string) error
	Grow(ctx context.Context, device, mountPoint string) error
	At(path string) (filesystem.Mount, bool, error)
	MountsOf(device, name string) ([]string, error)
	Shown(device, name string) ([]filesystem.Mount, error)
	Usage(path string) (filesystem.Usage, error)
}

// Service is the node service.
type Service struct {
	csi.UnimplementedNodeServer

	// HostNQN of this machine: the CSI node id.
	HostNQN string
	// MaxVolumes that may be attached to this node at a time; 0 for no limit.
	MaxVolumes int64
	// Initiator and Filesystems of this machine.
	Initiator   Initiator
	Filesystems Filesystems
	// Records is the folder where what volumes were staged with is written down. It is made when it is needed.
	Records string
	// Obstacle to staging volumes that are not connected yet.
	Obstacle Obstacle

	calls    calls
	measures measures
}

func (s *Service) records() records { return records{s.Records} }

// Clean removes what a process left in Records that was killed. Call it once, before the first call is served.
func (s *Service) Clean() error { return s.records().clean() }

// NodeGetInfo gives the host NQN as the node's id, so that the controller need not look it up. The topology is the same
// on every node: it says that volumes are used from here, and is what capacity is published for.
func (s *Service) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{
		NodeId: s.HostNQN, MaxVolumesPerNode: s.MaxVolumes,
		AccessibleTopology: &csi.Topology{Segments: map[string]string{v1alpha1.ReachesLabel: v1alpha1.ReachesVolumes}},
	}, nil
}

// NodeGetCapabilities says which calls are served.
func (s *Service) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	var list []*csi.NodeServiceCapability
	for _, c := range []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
		csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
		csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH,
		health.NodeVolumeCondition,
	} {
		list = append(list, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: c}},
		})
	}
	return &csi.NodeGetCapabilitiesResponse{Capabilities: list}, nil
}

// Wait returns when no call changes anything on this machine any more, or when the context ends.
func (s *Service) Wait(ctx context.Context) error { return s.calls.wait(ctx) }

// usage is how a volume is to be used.
type usage struct {
	block      bool
	fsType     string
	mountFlags []string
	readOnly   bool
	// single: no second place on this node may use the volume.
	single bool
}

func parseUsage(c *csi.VolumeCapability) (usage, error) {
	if c == nil {
		return usage{}, invalid("volume_capability is missing")
	}
	var u usage
	switch mode := c.GetAccessMode().GetMode(); mode {
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER:
		u.single = true
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY, csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY:
		u.readOnly = true
	case csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER:
		if c.GetBlock() == nil {
			return usage{}, invalid("access mode %s is supported for block volumes only: a filesystem is destroyed when two nodes write to it", mode)
		}
	default:
		return usage{}, invalid("access mode %s is not supported; use ReadWriteOnce or ReadWriteOncePod", mode)
	}
	switch {
	case c.GetBlock() != nil:
		u.block = true
	case c.GetMount() != nil:
		u.fsType = c.GetMount().GetFsType()
		if u.fsType == "" {
			u.fsType = filesystem.DefaultFilesystem
		}
		u.mountFlags = c.GetMount().GetMountFlags()
	default:
		return usage{}, invalid("volume_capability has neither block nor mount")
	}
	return u, nil
}

// field of a request.
type field struct{ name, value string }

// required fails when one of the fields is empty.
func required(fields ...field) error {
	for _, f := range fields {
		if f.value == "" {
			return invalid("%s is missing", f.name)
		}
	}
	return nil
}

// holds tells whether a mount shows a namespace: its filesystem, or its device node.
func holds(m filesystem.Mount, ns fabrics.Namespace) bool {
	if m.Node != "" {
		return m.Node == ns.Name && !m.NodeGone
	}
	return m.Device == ns.Device
}

// open keeps a namespace's device, and with it its name, until it is closed, and says whether the kernel takes writes
// to it.
func (s *Service) open(ctx context.Context, ns fabrics.Namespace, readOnly bool) (io.Closer, error) {
	device, err := s.Initiator.Open(ns)
	if err != nil {
		return nil, err
	}
	if err := s.Filesystems.SetReadOnly(ctx, ns.Path, readOnly); err != nil {
		return nil, errors.Join(err, device.Close())
	}
	return device, nil
}

// verify looks once more at what was just mounted or bound by the device's name: that the path shows the namespace, and
// that the name and number are still the namespace's, and its size. From here on the mount keeps them. What shows
// another is taken away again.
func (s *Service) verify(path string, ns fabrics.Namespace) error {
	m, mounted, err := s.Filesystems.At(path)
	if err == nil && (!mounted || !holds(m, ns)) {
		err = fmt.Errorf("%s does not show %s (%s): %w", path, ns.Name, ns.Device, fabrics.ErrNotFound)
	}
	if err == nil {
		err = s.Initiator.Confirm(ns)
	}
	if err != nil {
		return s.takeBack(path, err)
	}
	return nil
}

// takeBack what a call mounted before it failed.
func (s *Service) takeBack(path string, cause error) error {
	if err := s.Filesystems.Unmount(path); err != nil {
		return fmt.Errorf("%w; mount %w: %w", cause, errUncertain, err)
	}
	return cause
}

// device finds the namespace that a mount shows. It fails with fabrics.ErrNotFound when the device is gone.
func (s *Service) device(m filesystem.Mount) (fabrics.Namespace, error) {
	name := m.Device
	if m.Node != "" {
		name = m.Node
	}
	if m.NodeGone {
		return fabrics.Namespace{}, fmt.Errorf("device %s, bound at %s: %w", m.Node, m.Path, fabrics.ErrNotFound)
	}
	ns, err := s.Initiator.NamespaceByDevice(name)
	if err != nil {
		return fabrics.Namespace{}, fmt.Errorf("what is mounted at %s: %w", m.Path, err)
	}
	return ns, nil
}

// deviceOf is device, and fails with errOtherVolume when what is shown is not of the volume.
func (s *Service) deviceOf(volumeID string, m filesystem.Mount) (fabrics.Namespace, error) {
	ns, err := s.device(m)
	if err == nil && ns.NQN != v1alpha1.SubsystemNQN(volumeID) {
		shown, _ := v1alpha1.VolumeOfSubsystem(ns.NQN) // the whole NQN, when it is not weft's
		err = fmt.Errorf("%w: %s shows volume %s", errOtherVolume, m.Path, shown)
	}
	return ns, err
}

// decode reads the publish context of a volume.
func decode(volumeID string, m map[string]string) (publishcontext.Context, error) {
	at, err := publishcontext.Decode(m)
	if err != nil {
		return at, invalid("%v", err)
	}
	if want := v1alpha1.SubsystemNQN(volumeID); at.NQN != want {
		return at, invalid("publish context: nqn is %s, and this volume's is %s", at.NQN, want)
	}
	return at, nil
}
