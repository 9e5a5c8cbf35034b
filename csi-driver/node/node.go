// SPDX-License-Identifier: Apache-2.0

// Package node is CSI's node service: it connects volumes to this machine, makes
// filesystems where that is allowed, and mounts.
//
// Nothing is remembered between calls: what is connected and mounted is read from the kernel each time, and whether a
// volume was formatted from the volume itself. Only what a volume was staged with is written down (see records). Every
// call is idempotent, and calls for one volume run one at a time: a second one is answered Aborted.
//
// From the bottom up, a volume is its replica's controllers, which are its paths; the namespace that they lead to,
// which begins with a header; a device of device mapper over the data behind that; and what is mounted, or given to a
// pod.
package node

import (
	"context"
	"fmt"
	"io"
	"maps"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/internal/server"
	"github.com/weft-storage/weft/csi-driver/node/internal/doing"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
	"github.com/weft-storage/weft/csi-driver/node/internal/filesystem"
	"github.com/weft-storage/weft/csi-driver/node/internal/keeper"
	"github.com/weft-storage/weft/csi-driver/node/internal/mapper"
	"github.com/weft-storage/weft/csi-driver/node/internal/md"
	"github.com/weft-storage/weft/internal/dhchap"
)

// DefaultMaxVolumes is how many volumes a node takes by default. Each is a connection with its own
// queues, and costs the target about 0.8 MB for each queue: 256 volumes
// with two I/O queues and an admin queue, about 600 MB over all targets.
const DefaultMaxVolumes = 256

// Bounds of Options.MirrorGrace and Options.MirrorCopyBytesPerSecond.
const (
	// DefaultMirrorGrace is the shortest, too: keeper.DefaultGrace has the reason.
	DefaultMirrorGrace = keeper.DefaultGrace
	// MaxMirrorGrace: writes wait that long whenever a replica is lost, and so does the start of a volume without it,
	// for which a mover has two minutes.
	MaxMirrorGrace = time.Minute
	// DefaultMirrorCopyBytesPerSecond is the kernel's own.
	DefaultMirrorCopyBytesPerSecond = keeper.DefaultCopyBytesPerSecond
	// MinMirrorCopyBytesPerSecond fills 1 TiB in twelve days.
	MinMirrorCopyBytesPerSecond = 1 << 20
	// MaxMirrorCopyBytesPerSecond is more than drives and networks have. The kernel counts KiB in 32 bits.
	MaxMirrorCopyBytesPerSecond = 100_000_000 << 10
)

// Initiator connects this host to subsystems. *fabrics.Host is one; its methods say what they guarantee.
type Initiator interface {
	Connect(ctx context.Context, c fabrics.Connection) error
	Controllers(nqn string) ([]fabrics.Controller, error)
	Lost(c fabrics.Connection) ([]v1alpha1.Portal, error)
	Former(c fabrics.Connection, id fabrics.ID) ([]fabrics.Controller, error)
	Carries(c fabrics.Connection, id fabrics.ID) (bool, error)
	Left(nqn, host string) (bool, error)
	Answers(ctx context.Context, p v1alpha1.Portal) error
	WaitNamespace(ctx context.Context, id fabrics.ID, minBytes int64) (fabrics.Namespace, error)
	FindNamespace(id fabrics.ID) (fabrics.Namespace, error)
	Namespaces(nqn string) ([]fabrics.Namespace, error)
	NamespaceByDevice(device string) (fabrics.Namespace, error)
	Open(ns fabrics.Namespace) (io.Closer, error)
	Confirm(ns fabrics.Namespace) error
	ReadStart(ctx context.Context, ns fabrics.Namespace, length int) ([]byte, error)
	WriteStart(ctx context.Context, ns fabrics.Namespace, offset int64, block []byte) error
	Users(ctx context.Context, device, name string) ([]string, error)
	Disconnect(ctx context.Context, id fabrics.ID) error
	GiveUp(ctx context.Context, nqn string, those func(fabrics.Controller) bool) error
	Settled(ctx context.Context, nqn string) error
	Deletions() map[string]doing.Step
	HeldUp() *fabrics.HeldUpError
	Subsystems() (map[string][]string, error)
	States() (map[string]fabrics.ControllerState, error)
	Paths(id fabrics.ID) ([]fabrics.Path, error)
	Statistics(device string) (fabrics.Statistics, error)
	Reconnects(controller string) (int64, bool)
}

// Mapper makes the devices that pods see. *mapper.Host is one; its methods say what they guarantee.
type Mapper interface {
	Of(volume string) ([]mapper.Device, error)
	Volumes() ([]mapper.Device, error)
	Over(lower string) ([]mapper.Device, error)
	Find(device string) (mapper.Device, error)
	Open(d mapper.Device) (io.Closer, error)
	Confirm(d mapper.Device) error
	Build(ctx context.Context, spec mapper.Spec) (mapper.Device, error)
	Grow(ctx context.Context, d mapper.Device, offsetBytes, sizeBytes int64) (mapper.Device, error)
	Exchange(ctx context.Context, d mapper.Device, spec mapper.Spec) (mapper.Device, error)
	Remove(ctx context.Context, d mapper.Device) error
	Discard(ctx context.Context, d mapper.Device) error
	Slices(replica string) ([]mapper.Device, error)
	Suspend(ctx context.Context, d mapper.Device) error
}

// Processes of this machine. *filesystem.Processes is one; its methods say what they guarantee.
type Processes interface {
	Kill(devices ...string) (left int, err error)
}

// MirrorRecords reads and writes NvmfMirrors.
type MirrorRecords interface {
	Get(ctx context.Context, key client.ObjectKey, into client.Object, options ...client.GetOption) error
	Update(ctx context.Context, object client.Object, options ...client.UpdateOption) error
}

// Filesystems mounts. *filesystem.Host is one; its methods say what they guarantee.
type Filesystems interface {
	SetReadOnly(ctx context.Context, device string, readOnly bool) error
	Prepare(ctx context.Context, r filesystem.Request) error
	PrepareLUKS(ctx context.Context, r filesystem.Request, newKey func(ctx context.Context) (key []byte, token string, err error)) (filesystem.LUKSHeader, error)
	ReadLUKS(ctx context.Context, device string) (filesystem.LUKSHeader, error)
	LUKSKey(ctx context.Context, is filesystem.LUKSHeader, key []byte) ([]byte, error)
	AddLUKSKey(ctx context.Context, device string, key, next []byte) error
	RemoveLUKSKey(ctx context.Context, device string, key []byte) error
	Mount(ctx context.Context, device, target, fsType string, options []string) error
	BindDirectory(ctx context.Context, source, target string, readOnly bool) error
	BindDevice(ctx context.Context, device, target string, readOnly bool) error
	Unmount(ctx context.Context, path string) error
	Remove(ctx context.Context, path string) error
	Grow(ctx context.Context, device, mountPoint string) error
	At(path string) (filesystem.Mount, bool, error)
	MountsOf(device, name string) ([]string, error)
	Shown(device, name string) ([]filesystem.Mount, error)
	Usage(path string) (filesystem.Usage, error)
}

// Service is the node service.
type Service struct {
	csi.UnimplementedNodeServer

	// NodeName of this machine's Kubernetes Node: the CSI node id.
	NodeName string
	// NodeUID reads that Node's UID: volumes are attached to the Node that is there now, and a machine does not use the
	// attachments of another that had its name.
	NodeUID func(ctx context.Context) (string, error)
	// MaxVolumes that may be attached to this node at a time; 0 for no limit.
	MaxVolumes int64
	// Initiator, Mapper, Mirrors, Processes and Filesystems of this machine.
	Initiator   Initiator
	Mapper      Mapper
	Mirrors     md.Mirrors
	Processes   Processes
	Filesystems Filesystems
	// Identity of this node, to which keys of its hosts are sealed; nil when it has none.
	Identity *dhchap.Identity
	// Records is the folder where what volumes were staged with is written down. It is made when it is needed.
	Records string
	// Volumes and their replicas are read to find out how a volume is reached, and whether it is still attached to this
	// node: live, not from a cache.
	Volumes client.Reader
	// MirrorRecords are the NvmfMirrors: read live, and written by compare and swap.
	MirrorRecords MirrorRecords
	// MirrorGrace is how long a replica of a mirrored volume may not answer, and MirrorCopyBytesPerSecond how fast one
	// is copied to at most; 0 is the default.
	MirrorGrace              time.Duration
	MirrorCopyBytesPerSecond int64
	// Clock to tell what is overdue; nil for the machine's.
	Clock clock.PassiveClock

	calls    calls
	measures measures
	followed followed
	mirrors  mirrors
	// recording is held while a record is changed.
	recording sync.Mutex
}

func (s *Service) records() records { return records{s.Records} }

// Clean removes what a process left in Records that was killed. Call it once, before the first call is served.
func (s *Service) Clean() error { return s.records().clean() }

// NodeGetInfo gives the Node's name as the node's id. The topology is the same
// on every node: it says that volumes are used from here, and is what capacity is published for.
func (s *Service) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{
		NodeId: s.NodeName, MaxVolumesPerNode: s.MaxVolumes,
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
		server.NodeVolumeCondition,
	} {
		list = append(list, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: c}},
		})
	}
	return &csi.NodeGetCapabilitiesResponse{Capabilities: list}, nil
}

// Wait returns when no call changes anything on this machine any more, or when the context ends.
func (s *Service) Wait(ctx context.Context) error { return s.calls.wait(ctx) }

// Overdue is what this machine's kernel has been at for doing.Limit or longer, by the volume that it concerns. Of
// connections that are being taken away, it is left out when no volume has a record of them.
func (s *Service) Overdue() map[string]doing.Step {
	overdue := s.calls.steps()
	if deletions := s.Initiator.Deletions(); len(deletions) > 0 {
		owners, _ := s.records().owners() // without the folder, there are none
		for nqn, step := range deletions {
			replica, _ := v1alpha1.ReplicaOfSubsystem(nqn)
			if volume, ok := owners[replica]; ok {
				overdue[volume] = step
			}
		}
	}
	now := s.now()
	maps.DeleteFunc(overdue, func(_ string, step doing.Step) bool { return !step.Overdue(now) })
	return overdue
}

func (s *Service) now() time.Time {
	if s.Clock != nil {
		return s.Clock.Now()
	}
	return time.Now()
}

// usage is how a volume is to be used.
type usage struct {
	block      bool
	fsType     string
	mountFlags []string
	readOnly   bool
	// single: no second place on this node may use the volume.
	single bool
	// shared: other nodes may write to the volume as well.
	shared bool
}

func parseUsage(c *csi.VolumeCapability) (usage, error) {
	if c == nil {
		return usage{}, invalid("volume_capability is required")
	}
	var u usage
	switch mode := c.GetAccessMode().GetMode(); mode {
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER:
		u.single = true
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY, csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY:
		u.readOnly = true
	case csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER:
		u.shared = true
		if c.GetBlock() == nil {
			return usage{}, invalid("access mode %s is supported only for block volumes: a filesystem is corrupted if two nodes write to it", mode)
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

// allowedBy fails where an attachment with this access does not allow this use. The CSI controller has checked that,
// but the access modes of a PersistentVolume can be changed while its attachment stays.
func (u usage) allowedBy(access v1alpha1.HostAccess) error {
	shared := access == v1alpha1.AccessSharedRead || access == v1alpha1.AccessSharedWrite
	if u.block || !shared || access == v1alpha1.AccessSharedRead && u.readOnly {
		return nil
	}
	return fmt.Errorf("%w: it is attached to this node for %s, and other nodes may use it, too: mounted for writing, its filesystem would be corrupted; "+
		"if the access modes of its PersistentVolume were changed, delete the pods that use it on all nodes, so that it is attached again", errIncompatible, access)
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
