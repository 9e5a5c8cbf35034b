// SPDX-License-Identifier: Apache-2.0

package histories

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/controller"
	"github.com/weft-storage/weft/csi-driver/node"
	"github.com/weft-storage/weft/dataplane/engine"
)

const (
	smallest = 32 * mib
	growth   = 8 * mib
	cluster  = 4 * mib
)

// volume as it should be.
type volume struct {
	id   string
	uuid string
	size int64
	use
	// both: it has a path over each transport.
	both   bool
	limits engine.QoS
	// words in its clusters; a filesystem has none before it was made.
	words map[uint64]uint64
	// hosts that it is attached to, with what the controller told them.
	hosts    []*host
	contexts map[*host]map[string]string
	// deleted: one of its objects was, by mistake: its NvmfVolume, or its NvmfReplica. meant: the NvmfVolume was marked
	// since.
	deleted string
	meant   bool
	// backup of its objects, from before the first was deleted: the NvmfVolume and the NvmfReplica.
	backup []data
}

// replica is the name of the volume's only one. It has the volume's UUID.
func (v *volume) replica() string { return replicaOf(v.id) }

func replicaOf(volume string) string { return volume + "-0" }

func (w *world) newVolume(size int64, u use, words map[uint64]uint64) *volume {
	w.made++
	v := &volume{id: fmt.Sprintf("%s-v%d", w.target, w.made), size: size, use: u, words: map[uint64]uint64{}, contexts: map[*host]map[string]string{}}
	maps.Copy(v.words, words)
	return v
}

func (v *volume) formatted() bool { return v.words[superblock] == ext4Magic }

// copyable: a copy of a filesystem that is not made yet could not be mounted.
func (v *volume) copyable() bool { return v.whole() && (v.block || v.formatted()) }

// whole says that nobody has deleted one of its objects.
func (v *volume) whole() bool { return v.deleted == "" }

func (v *volume) attached() bool { return len(v.hosts) > 0 }
func (v *volume) idle() bool     { return len(v.hosts) == 0 }

// takes says that one more host may have it.
func (v *volume) takes(h *host) bool {
	return v.whole() && (v.idle() || v.shared && !slices.Contains(v.hosts, h))
}

// state of its object of a kind, where it is as it was meant to be.
func (v *volume) state(kind, otherwise string) string {
	if v.deleted == kind {
		return "being deleted"
	}
	return otherwise
}

func (v *volume) leave(h *host) {
	v.hosts = slices.DeleteFunc(v.hosts, func(other *host) bool { return other == h })
}

// nodes that it is attached to, sorted.
func (v *volume) nodes() []string {
	nodes := []string{}
	for _, h := range v.hosts {
		nodes = append(nodes, h.name)
	}
	slices.Sort(nodes)
	return nodes
}

// use of a volume: a filesystem, or a raw block device, which several hosts may share.
type use struct {
	block, shared bool
	// takenBack: its object was made again, so it is never formatted unasked, and nor is a copy of it.
	takenBack bool
}

func (w *world) anyUse() use {
	n := w.rng.IntN(10)
	return use{block: n >= 6, shared: n >= 8}
}

func (u use) capability() *csi.VolumeCapability {
	c := &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "ext4"}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
	}
	if u.block {
		c.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	}
	if u.shared {
		c.AccessMode.Mode = csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	}
	return c
}

// data begins at this cluster.
func (u use) data() uint64 {
	if u.block {
		return 0
	}
	return firstData
}

// snapshot as it should be.
type snapshot struct {
	id, uuid string
	of       string
	size     int64
	use      use
	words    map[uint64]uint64
}

func (h *host) staging(v *volume) string { return filepath.Join(h.dir, "staging-"+v.id) }
func (h *host) mounted(v *volume) string { return filepath.Join(h.dir, "pod-"+v.id) }

// staged is where the mount is that staging makes.
func (h *host) staged(v *volume) string {
	if v.block {
		return filepath.Join(h.staging(v), "device")
	}
	return h.staging(v)
}

func (w *world) creation(v *volume, size int64, source *csi.VolumeContentSource, final ...codes.Code) call {
	return w.onController(fmt.Sprintf("CreateVolume %s of %d MiB from %v", v.id, size/mib, source), func(ctx context.Context, s *controller.Service) error {
		resp, err := s.CreateVolume(ctx, &csi.CreateVolumeRequest{
			Name: v.id, Parameters: map[string]string{"target": w.target, "transport": v.transports()}, VolumeContentSource: source,
			CapacityRange: &csi.CapacityRange{RequiredBytes: size}, VolumeCapabilities: []*csi.VolumeCapability{v.capability()}, MutableParameters: attributes(v.limits),
		})
		if err == nil && (resp.Volume.VolumeId != v.id || resp.Volume.CapacityBytes != size) {
			return fmt.Errorf("created %v", resp.Volume)
		}
		return err
	}, final...)
}

// create a volume. Of one that is given up, the provisioner deletes what there may be.
func (w *world) create(size int64, u use, source *csi.VolumeContentSource, words map[uint64]uint64) {
	v := w.newVolume(size, u, words)
	v.limits, v.both = w.anyLimits(), w.rng.IntN(2) == 0
	c := w.creation(v, size, source).orGiveUp()
	// While the target is away no node takes volumes; the claim is tried again.
	c.again = func(code codes.Code) bool { return repeats(code) || code == codes.FailedPrecondition }
	if err := w.make(c); errors.Is(err, errGivenUp) {
		w.delete(v)
		return
	}
	v.uuid = w.object(v.id).Spec.UUID
	w.volumes = append(w.volumes, v)
}

func (w *world) object(id string) *v1alpha1.NvmfVolume {
	w.Helper()
	var o v1alpha1.NvmfVolume
	w.must(api.Get(w.ctx, client.ObjectKey{Name: id}, &o))
	return &o
}

// copyOf a volume's data: the object of its replica.
func (w *world) copyOf(id string) *v1alpha1.NvmfReplica {
	w.Helper()
	var o v1alpha1.NvmfReplica
	w.must(api.Get(w.ctx, client.ObjectKey{Name: replicaOf(id)}, &o))
	return &o
}

func (w *world) deletion(v *volume, final ...codes.Code) call {
	return w.onController("DeleteVolume "+v.id, func(ctx context.Context, s *controller.Service) error {
		_, err := s.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: v.id})
		return err
	}, final...)
}

func (w *world) delete(v *volume) { w.must(w.make(w.deletion(v))) }

// snap takes a snapshot. One that is given up is deleted.
func (w *world) snap(v *volume) {
	w.made++
	s := &snapshot{id: fmt.Sprintf("%s-s%d", w.target, w.made), of: v.id, size: v.size, use: v.use, words: maps.Clone(v.words)}
	err := w.make(w.onController("CreateSnapshot "+s.id+" of "+v.id, func(ctx context.Context, c *controller.Service) error {
		resp, err := c.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: s.id, SourceVolumeId: v.id})
		if err == nil && (resp.Snapshot.SnapshotId != s.id || resp.Snapshot.SizeBytes != s.size || !resp.Snapshot.ReadyToUse) {
			return fmt.Errorf("took %v", resp.Snapshot)
		}
		return err
	}).orGiveUp())
	if errors.Is(err, errGivenUp) {
		w.deleteSnapshot(s)
		return
	}
	var o v1alpha1.NvmfSnapshot
	w.must(api.Get(w.ctx, client.ObjectKey{Name: s.id}, &o))
	s.uuid = o.Spec.UUID
	w.snapshots = append(w.snapshots, s)
}

func (w *world) deleteSnapshot(s *snapshot) {
	w.must(w.make(w.onController("DeleteSnapshot "+s.id, func(ctx context.Context, c *controller.Service) error {
		_, err := c.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: s.id})
		return err
	})))
}

func (w *world) publication(v *volume, h *host, final ...codes.Code) call {
	return w.onController("ControllerPublishVolume "+v.id+" to "+h.name, func(ctx context.Context, s *controller.Service) error {
		resp, err := s.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{VolumeId: v.id, NodeId: h.name, VolumeCapability: v.capability()})
		if err == nil {
			w.mu.Lock()
			defer w.mu.Unlock()
			v.contexts[h] = resp.PublishContext
		}
		return err
	}, final...)
}

func (h *host) stagingCall(v *volume, final ...codes.Code) call {
	return h.onNode("NodeStageVolume "+v.id+" on "+h.name, func(ctx context.Context, s *node.Service) error {
		_, err := s.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
			VolumeId: v.id, StagingTargetPath: h.staging(v), VolumeCapability: v.capability(), PublishContext: v.contexts[h],
		})
		return err
	}, final...)
}

func (h *host) mounting(v *volume, final ...codes.Code) call {
	return h.onNode("NodePublishVolume "+v.id, func(ctx context.Context, s *node.Service) error {
		_, err := s.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
			VolumeId: v.id, StagingTargetPath: h.staging(v), TargetPath: h.mounted(v), VolumeCapability: v.capability(), PublishContext: v.contexts[h],
		})
		return err
	}, final...)
}

// attach a volume and mount it.
func (w *world) attach(v *volume, h *host) { w.bring(v, h, w.publish, w.stage, w.show) }

// attachStaged attaches a volume that was not unstaged: the kubelet asks for no stage.
func (w *world) attachStaged(v *volume, h *host) { w.bring(v, h, w.publish, w.show) }

// mount a volume that is attached.
func (w *world) mount(v *volume, h *host) { w.bring(v, h, w.stage, w.show) }

// bring a volume to its pod in steps, as far as it comes: of what is given up, the rest is taken down.
func (w *world) bring(v *volume, h *host, steps ...func(*volume, *host) error) {
	for _, step := range steps {
		if err := step(v, h); errors.Is(err, errGivenUp) {
			w.noteFilesystem(v, h)
			w.detach(v, h)
			return
		} else if err != nil {
			w.Fatal(err)
		}
	}
	if !v.block {
		v.words[superblock], v.words[sizeWord] = ext4Magic, uint64(v.size)
	}
	w.checkHeader(v)
	w.read(v)
}

func (w *world) publish(v *volume, h *host) error {
	v.hosts = append(v.hosts, h)
	return w.make(w.publication(v, h).orGiveUp())
}

func (w *world) show(v *volume, h *host) error { return w.make(h.mounting(v).orGiveUp()) }

// stage a volume. A mkfs that was cut off is begun again. When the volume was taken back before it had a filesystem, an
// administrator says what the refusal asks for, and it is attached again.
func (w *world) stage(v *volume, h *host) error {
	for {
		err := w.make(h.stagingCall(v, codes.FailedPrecondition).orGiveUp())
		if status.Code(err) != codes.FailedPrecondition || errors.Is(err, errGivenUp) {
			return err
		}
		var word uint64
		w.await("the target to show the volume", func() bool {
			var err error
			word, err = w.readWord(v.uuid, superblock)
			return err == nil
		})
		if word != 0 || !v.takenBack || v.formatted() {
			w.Fatalf("staging is refused: %v; the volume begins with %#x", err, word)
		}
		w.tell("    an administrator has it formatted")
		o := w.object(v.id)
		before := o.DeepCopy()
		metav1.SetMetaDataAnnotation(&o.ObjectMeta, v1alpha1.AllowFormatAnnotation, o.Spec.UUID)
		w.must(api.Patch(w.ctx, o, client.MergeFrom(before)))
		w.must(w.make(w.unpublication(v, h)))
		w.must(w.make(w.publication(v, h)))
	}
}

// noteFilesystem that was made, or grown, before staging was given up.
func (w *world) noteFilesystem(v *volume, h *host) {
	if v.block {
		return
	}
	w.await("the plugin to end what it was at", func() bool { return h.process().service.Wait(w.ctx) == nil })
	for _, cluster := range []uint64{superblock, sizeWord} {
		w.await("the target to show the volume", func() bool {
			word, err := w.readWord(v.uuid, cluster)
			if err == nil && word != 0 {
				v.words[cluster] = word
			}
			return err == nil
		})
	}
}

func (w *world) unpublication(v *volume, h *host, final ...codes.Code) call {
	return w.onController("ControllerUnpublishVolume "+v.id+" from "+h.name, func(ctx context.Context, s *controller.Service) error {
		_, err := s.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: v.id, NodeId: h.name})
		return err
	}, final...)
}

// detach a volume from a host, however far it was attached.
func (w *world) detach(v *volume, h *host) {
	w.unmount(v, h)
	w.must(w.make(w.unpublication(v, h)))
	v.leave(h)
}

// unmount a volume from a host and disconnect it.
func (w *world) unmount(v *volume, h *host) {
	w.must(w.make(h.onNode("NodeUnpublishVolume "+v.id, func(ctx context.Context, s *node.Service) error {
		_, err := s.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: v.id, TargetPath: h.mounted(v)})
		return err
	})))
	w.must(w.make(h.onNode("NodeUnstageVolume "+v.id, func(ctx context.Context, s *node.Service) error {
		_, err := s.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: v.id, StagingTargetPath: h.staging(v)})
		return err
	})))
}

// expand a volume, and its filesystem where it is mounted.
func (w *world) expand(v *volume) {
	size := v.size + growth
	grown := &csi.CapacityRange{RequiredBytes: size}
	c := w.onController(fmt.Sprintf("ControllerExpandVolume %s to %d MiB", v.id, size/mib), func(ctx context.Context, s *controller.Service) error {
		_, err := s.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{VolumeId: v.id, CapacityRange: grown})
		return err
	})
	// While free space is held back until it is cleared, the pool is full; the resizer tries again.
	c.again = func(code codes.Code) bool { return repeats(code) || code == codes.OutOfRange }
	w.must(w.make(c))
	v.size = size
	for _, h := range v.hosts {
		w.must(w.make(h.onNode("NodeExpandVolume "+v.id+" on "+h.name, func(ctx context.Context, s *node.Service) error {
			_, err := s.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{
				VolumeId: v.id, VolumePath: h.mounted(v), StagingTargetPath: h.staging(v), CapacityRange: grown,
			})
			return err
		})))
	}
	if v.attached() && !v.block {
		v.words[sizeWord] = uint64(size)
	}
}

// write somewhere, as a pod does; those of hosts that share a volume at once, each to clusters of its own.
func (w *world) write(v *volume) {
	hosts := uint64(len(v.hosts))
	errs := make([]error, hosts)
	var wait sync.WaitGroup
	for i, h := range v.hosts {
		w.words++
		word := w.words
		at := v.data() + uint64(i) + hosts*w.rng.Uint64N((uint64(v.size/cluster)-v.data())/hosts)
		device, err := h.mounter.DeviceAt(h.mounted(v))
		w.must(err)
		w.tell("  write %d to cluster %d of %s on %s", word, at, v.id, h.name)
		wait.Go(func() { errs[i] = h.writeDevice(device, at, word) })
		v.words[at] = word
	}
	wait.Wait()
	w.must(errors.Join(errs...))
}

// read all of a volume on every host that has it, as pods do.
func (w *world) read(v *volume) {
	w.Helper()
	w.checkLimits(v)
	for _, h := range v.hosts {
		device, err := h.mounter.DeviceAt(h.mounted(v))
		w.must(err)
		for at := range uint64(v.size / cluster) {
			word, err := h.readDevice(device, at)
			w.must(err)
			if word != v.words[at] {
				w.Fatalf("cluster %d of %s reads %#x on %s, and %#x was written", at, v.id, word, h.name, v.words[at])
			}
		}
	}
}
