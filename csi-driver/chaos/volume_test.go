// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/internal/controller"
	"github.com/weft-storage/weft/csi-driver/internal/node"
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
	// words in its clusters; none before it was formatted.
	words map[uint64]uint64
	// host that it is attached to, with what the controller told it.
	host    *host
	context map[string]string
}

func (v *volume) formatted() bool { return v.words[superblock] == ext4Magic }

// snapshot as it should be.
type snapshot struct {
	id, uuid string
	of       string
	size     int64
	words    map[uint64]uint64
}

func (h *host) staging(v *volume) string { return filepath.Join(h.dir, "staging-"+v.id) }
func (h *host) mounted(v *volume) string { return filepath.Join(h.dir, "pod-"+v.id) }

var filesystemUse = &csi.VolumeCapability{
	AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "ext4"}},
	AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
}

func (w *world) creation(v *volume, size int64, source *csi.VolumeContentSource, final ...codes.Code) call {
	return w.onController(fmt.Sprintf("CreateVolume %s of %d MiB from %v", v.id, size/mib, source), func(ctx context.Context, s *controller.Service) error {
		resp, err := s.CreateVolume(ctx, &csi.CreateVolumeRequest{
			Name: v.id, Parameters: map[string]string{"target": w.target}, VolumeContentSource: source,
			CapacityRange: &csi.CapacityRange{RequiredBytes: size}, VolumeCapabilities: []*csi.VolumeCapability{filesystemUse},
		})
		if err == nil && (resp.Volume.VolumeId != v.id || resp.Volume.CapacityBytes != size) {
			return fmt.Errorf("created %v", resp.Volume)
		}
		return err
	}, final...)
}

// create a volume. Of one that is given up, the provisioner deletes what there may be.
func (w *world) create(size int64, source *csi.VolumeContentSource, words map[uint64]uint64) {
	w.made++
	v := &volume{id: fmt.Sprintf("%s-v%d", w.target, w.made), size: size, words: maps.Clone(words)}
	if v.words == nil {
		v.words = map[uint64]uint64{}
	}
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
	s := &snapshot{id: fmt.Sprintf("%s-s%d", w.target, w.made), of: v.id, size: v.size, words: maps.Clone(v.words)}
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
		resp, err := s.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{VolumeId: v.id, NodeId: h.nqn(), VolumeCapability: filesystemUse})
		if err == nil {
			w.mu.Lock()
			defer w.mu.Unlock()
			v.context = resp.PublishContext
		}
		return err
	}, final...)
}

func (h *host) stagingCall(v *volume, final ...codes.Code) call {
	return h.onNode("NodeStageVolume "+v.id+" on "+h.name, func(ctx context.Context, s *node.Service) error {
		_, err := s.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
			VolumeId: v.id, StagingTargetPath: h.staging(v), VolumeCapability: filesystemUse, PublishContext: v.context,
		})
		return err
	}, final...)
}

func (h *host) mounting(v *volume, final ...codes.Code) call {
	return h.onNode("NodePublishVolume "+v.id, func(ctx context.Context, s *node.Service) error {
		_, err := s.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
			VolumeId: v.id, StagingTargetPath: h.staging(v), TargetPath: h.mounted(v), VolumeCapability: filesystemUse, PublishContext: v.context,
		})
		return err
	}, final...)
}

// attach a volume and mount it.
func (w *world) attach(v *volume, h *host) {
	v.host = h
	w.bring(v, func() error { return w.make(w.publication(v, h).orGiveUp()) })
}

// mount a volume that is attached.
func (w *world) mount(v *volume) { w.bring(v) }

// bring a volume to its pod in steps, of which mounting comes last, as far as it comes: of what is given up, the rest is taken down.
func (w *world) bring(v *volume, first ...func() error) {
	h := v.host
	for _, step := range append(first,
		func() error { return w.stage(v, h) },
		func() error { return w.make(h.mounting(v).orGiveUp()) },
	) {
		if err := step(); errors.Is(err, errGivenUp) {
			w.noteFilesystem(v)
			w.detach(v)
			return
		} else if err != nil {
			w.Fatal(err)
		}
	}
	v.words[superblock], v.words[sizeWord] = ext4Magic, uint64(v.size)
	w.read(v)
}

// stage a volume. When mkfs was cut off, an administrator says what the refusal asks for, and it is attached again.
func (w *world) stage(v *volume, h *host) error {
	for {
		err := w.make(h.stagingCall(v, codes.FailedPrecondition).orGiveUp())
		if status.Code(err) != codes.FailedPrecondition || errors.Is(err, errGivenUp) {
			return err
		}
		word, readErr := w.storage.Target().ReadWord(v.uuid, superblock)
		if readErr != nil || word != halfMade || v.formatted() {
			w.Fatalf("staging is refused: %v; the volume begins with %#x, %v", err, word, readErr)
		}
		w.tell("    half a filesystem is given up")
		o := w.object(v.id)
		before := o.DeepCopy()
		o.Annotations[v1alpha1.AllowFormatAnnotation] = o.Spec.UUID
		w.must(api.Patch(w.ctx, o, client.MergeFrom(before)))
		w.must(w.make(w.unpublication(v, h)))
		w.letFormat(v, true)
		w.must(w.make(w.publication(v, h)))
	}
}

// letFormat a volume in which something is found; it ends with the attachment.
func (w *world) letFormat(v *volume, let bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.givenUp[v.uuid] = let
}

// noteFilesystem that was made, or grown, before staging was given up.
func (w *world) noteFilesystem(v *volume) {
	w.await("the plugin to end what it was at", func() bool { return v.host.process().service.Wait(w.ctx) == nil })
	for _, cluster := range []uint64{superblock, sizeWord} {
		w.await("the target to show the volume", func() bool {
			word, err := w.storage.Target().ReadWord(v.uuid, cluster)
			if err == nil && word != 0 {
				v.words[cluster] = word
			}
			return err == nil
		})
	}
}

func (w *world) unpublication(v *volume, h *host, final ...codes.Code) call {
	return w.onController("ControllerUnpublishVolume "+v.id+" from "+h.name, func(ctx context.Context, s *controller.Service) error {
		_, err := s.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: v.id, NodeId: h.nqn()})
		if err == nil {
			w.letFormat(v, false)
		}
		return err
	}, final...)
}

// detach a volume, however far it was attached.
func (w *world) detach(v *volume) {
	h := v.host
	w.unmount(v, h)
	w.must(w.make(w.unpublication(v, h)))
	v.host = nil
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
	w.must(w.make(w.onController(fmt.Sprintf("ControllerExpandVolume %s to %d MiB", v.id, size/mib), func(ctx context.Context, s *controller.Service) error {
		_, err := s.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{VolumeId: v.id, CapacityRange: grown})
		return err
	})))
	v.size = size
	if v.host == nil {
		return
	}
	w.must(w.make(v.host.onNode("NodeExpandVolume "+v.id, func(ctx context.Context, s *node.Service) error {
		_, err := s.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{
			VolumeId: v.id, VolumePath: v.host.mounted(v), StagingTargetPath: v.host.staging(v), CapacityRange: grown,
		})
		return err
	})))
	v.words[sizeWord] = uint64(size)
}

// write somewhere, as a pod does.
func (w *world) write(v *volume) {
	w.words++
	at, word := firstData+w.rng.Uint64N(uint64(v.size/cluster)-firstData), w.words
	device, err := v.host.deviceAt(v.host.mounted(v))
	w.must(err)
	w.tell("  write %d to cluster %d of %s", word, at, v.id)
	w.must(v.host.writeDevice(device, at, word))
	v.words[at] = word
}

// read all of a volume, as a pod does.
func (w *world) read(v *volume) {
	w.Helper()
	device, err := v.host.deviceAt(v.host.mounted(v))
	w.must(err)
	for at := range uint64(v.size / cluster) {
		word, err := v.host.readDevice(device, at)
		w.must(err)
		if word != v.words[at] {
			w.Fatalf("cluster %d of %s reads %#x on %s, and %#x was written", at, v.id, word, v.host.name, v.words[at])
		}
	}
}
