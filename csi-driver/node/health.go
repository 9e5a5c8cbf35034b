// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/go-logr/logr"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/internal/server"
	"github.com/weft-storage/weft/csi-driver/node/internal/doing"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
	"github.com/weft-storage/weft/csi-driver/node/internal/filesystem"
)

// Reasons of a volume's problems on this node.
const (
	// reasonPathDown: no path is live; I/O waits, or fails when ctrlLossTimeout has passed.
	reasonPathDown = "PathDown"
	// reasonPathLost: some paths are live, and not all that the volume has.
	reasonPathLost = "PathLost"
	// reasonDeviceGone: what is mounted, or given to a pod, is a device that is no more.
	reasonDeviceGone = "DeviceGone"
	// reasonWrongDevice: the subsystem serves something else than the volume that was staged.
	reasonWrongDevice = "WrongDevice"
	// reasonShrunk: the device is smaller than the volume was when it was staged.
	reasonShrunk = "Shrunk"
	// reasonReadOnly: the kernel met an error and takes no more writes.
	reasonReadOnly = "FilesystemReadOnly"
	// reasonFailed: the filesystem answers with an error.
	reasonFailed = "FilesystemFailed"
	// reasonNoAnswer: the filesystem does not answer.
	reasonNoAnswer = "NoAnswer"
	// reasonOverdue: the kernel has been at something for this volume for doing.Limit or longer.
	reasonOverdue = v1alpha1.ReasonOverdue
)

// NodeGetVolumeHealth tells what this node finds wrong with a volume that is staged on it.
func (s *Service) NodeGetVolumeHealth(ctx context.Context, r *csi.NodeGetVolumeHealthRequest) (*csi.NodeGetVolumeHealthResponse, error) {
	p, err := s.volumeHealth(ctx, r)
	if err != nil {
		return nil, status(err)
	}
	return &csi.NodeGetVolumeHealthResponse{VolumeHealth: p.Volume(r.GetVolumeId())}, nil
}

func (s *Service) volumeHealth(ctx context.Context, r *csi.NodeGetVolumeHealthRequest) (server.Problems, error) {
	if err := required(field{"volume_id", r.GetVolumeId()}); err != nil {
		return nil, err
	}
	var places []filesystem.Mount
	for _, path := range []string{r.GetVolumePublishPath(), r.GetStagingTargetPath()} {
		if path == "" {
			continue
		}
		m, mounted, err := s.Filesystems.At(path)
		if err != nil {
			return nil, err
		}
		if mounted {
			places = append(places, m)
		}
	}
	seen, err := s.look(ctx, r.GetVolumeId(), places...)
	if err != nil {
		return nil, err
	}
	if len(places) == 0 && len(seen.controllers) == 0 && seen.staged == nil && seen.overdue == nil {
		return nil, fmt.Errorf("%w: volume %s is not on this node", errUnknown, r.GetVolumeId())
	}
	return seen.problems(), nil
}

// sight is what can be seen of a volume on this node.
type sight struct {
	// staged is what it was staged with; nil when that is not known.
	staged *attached
	// mirror of a mirrored volume that is kept here; nil for none.
	mirror      *mirrorSight
	controllers []fabrics.Controller
	namespaces  []fabrics.Namespace
	// mounts of its namespaces, and those that were asked about.
	mounts []filesystem.Mount
	// overdue is what the kernel has not finished for it; nil for nothing.
	overdue *doing.Step
	// gone are those whose device is no more.
	gone []filesystem.Mount
	// measured filesystems, by path: the first mount of each.
	measured map[string]measured
}

// look gathers what can be seen, and waits for nothing but, within limits, the volume's filesystem. The mounts are
// those asked about; the volume's others are found.
func (s *Service) look(ctx context.Context, volume string, asked ...filesystem.Mount) (sight, error) {
	seen := sight{measured: map[string]measured{}}
	if step, ok := s.Overdue()[volume]; ok {
		seen.overdue = &step
	}
	at, err := s.records().get(volume)
	switch {
	case err == nil:
		seen.staged = &at
	case !errors.Is(err, fs.ErrNotExist):
		logr.FromContextOrDiscard(ctx).Error(err, "Cannot read the record of the staged volume", "volume", volume)
	}
	is, err := s.identify(ctx, volume)
	if err != nil {
		return seen, err
	}
	nqns, err := s.Initiator.Subsystems()
	if err != nil {
		return seen, err
	}
	for _, id := range is.subsystems(nqns) {
		controllers, err := s.Initiator.Controllers(id.NQN)
		if err != nil {
			return seen, err
		}
		namespaces, err := s.Initiator.Namespaces(id.NQN)
		if err != nil {
			return seen, err
		}
		seen.controllers, seen.namespaces = append(seen.controllers, controllers...), append(seen.namespaces, namespaces...)
	}
	for _, m := range asked {
		if _, err := s.deviceOf(is, m); errors.Is(err, fabrics.ErrNotFound) {
			seen.gone = append(seen.gone, m)
		} else if err != nil && !otherwise(err) {
			return seen, err
		} else if err == nil && m.Node == "" {
			seen.measured[m.Path] = s.measures.of(ctx, m.Path, s.Filesystems.Usage)
		}
	}
	for _, ns := range seen.namespaces {
		mounts, err := s.mountsOver(base{ns: ns})
		if err != nil {
			return seen, err
		}
		seen.mounts = append(seen.mounts, mounts...)
	}
	return seen, s.lookAtMirror(volume, is.uuid, &seen)
}

// lookAtMirror adds to what can be seen of a volume its mirror, if that is kept here.
func (s *Service) lookAtMirror(volume, uuid string, seen *sight) error {
	m := s.mirrors.of(volume)
	if m == nil {
		return nil
	}
	is, err := m.look()
	if err != nil {
		return err
	}
	seen.mirror = &is
	b, err := s.mirrorOf(uuid)
	if errors.Is(err, fabrics.ErrNotFound) {
		return nil
	}
	if err == nil {
		seen.mounts, err = s.mountsOver(b)
	}
	return err
}

// mountsOver a base: those of the devices that are made of it.
func (s *Service) mountsOver(b base) ([]filesystem.Mount, error) {
	devices, err := s.Mapper.Over(b.lower().Name)
	if err != nil {
		return nil, err
	}
	var all []filesystem.Mount
	for _, d := range devices {
		mounts, err := s.Filesystems.Shown(d.Number, d.Name)
		if err != nil {
			return nil, err
		}
		all = append(all, mounts...)
	}
	return all, nil
}

// problems decides what is wrong.
func (v sight) problems() server.Problems {
	var p server.Problems
	add := func(kind csi.VolumeHealthErrorType, reason, format string, args ...any) {
		p.Add(kind, reason, fmt.Sprintf(format, args...))
	}
	live := 0
	for _, c := range v.controllers {
		if c.Live() {
			live++
		}
	}
	switch paths := v.paths(); {
	case live == 0:
		add(server.Inaccessible, reasonPathDown, "no path to its target is live: %s", paths)
	case live < len(v.controllers) || len(v.unreached()) > 0:
		add(server.Degraded, reasonPathLost, "not all paths to its target are live: %s", paths)
	}
	if v.overdue != nil {
		add(server.Degraded, reasonOverdue, "%s", v.overdue)
	}
	if v.mirror != nil {
		v.mirror.problems(add)
	}
	v.identity(add, live > 0)
	for _, m := range v.gone {
		add(server.Inaccessible, reasonDeviceGone, "the device at %s was lost; delete the pod so that the volume is staged again", m.Path)
	}
	for _, m := range v.mounts {
		if m.TurnedReadOnly {
			add(server.Inaccessible, reasonReadOnly,
				"its filesystem has errors and is read-only: see the kernel log of this node, then delete the pod so that the filesystem is checked at the next mount")
		}
	}
	for _, path := range slices.Sorted(maps.Keys(v.measured)) {
		m := v.measured[path]
		switch {
		case m.err == nil:
		case errors.Is(m.err, errNoAnswer):
			add(server.Inaccessible, reasonNoAnswer, "%v", m.err)
		default:
			add(server.Inaccessible, reasonFailed, "its filesystem at %s fails: %v", path, m.err)
		}
	}
	return p
}

// identity checks what the subsystem serves against what was staged.
func (v sight) identity(add func(csi.VolumeHealthErrorType, string, string, ...any), live bool) {
	if v.staged == nil || !live {
		return
	}
	for _, r := range v.staged.Replicas {
		i := slices.IndexFunc(v.namespaces, func(ns fabrics.Namespace) bool { return ns.NGUID == r.NGUID })
		if i < 0 && v.mirror != nil {
			continue // it left the mirror, or will
		}
		if i < 0 {
			var others []string
			for _, ns := range v.namespaces {
				others = append(others, ns.NGUID)
			}
			add(server.Inaccessible, reasonWrongDevice, "its subsystem does not serve namespace %s; it serves [%s]", r.NGUID, strings.Join(others, ", "))
			continue
		}
		if ns := v.namespaces[i]; ns.SizeBytes < v1alpha1.HeaderBytes+v.staged.SizeBytes {
			add(server.DataLoss, reasonShrunk, "%s has %d bytes of data, but had %d when it was staged", ns.Name, max(0, ns.SizeBytes-v1alpha1.HeaderBytes), v.staged.SizeBytes)
		}
	}
}

func (v sight) unreached() []v1alpha1.Portal {
	if v.staged == nil {
		return nil
	}
	var all []v1alpha1.Portal
	for _, r := range v.staged.connected() {
		of := slices.DeleteFunc(slices.Clone(v.controllers), func(c fabrics.Controller) bool {
			name, _ := v1alpha1.ReplicaOfSubsystem(c.NQN)
			return name != r.Name
		})
		all = append(all, fabrics.Unreached(r.Portals, of)...)
	}
	return all
}

// paths in words.
func (v sight) paths() string {
	var all []string
	for _, c := range v.controllers {
		all = append(all, c.String())
	}
	for _, p := range v.unreached() {
		all = append(all, fmt.Sprintf("none to %s %s port %d", p.Transport, p.Address, p.Port))
	}
	if len(all) == 0 {
		return "it is not connected"
	}
	return strings.Join(all, ", ")
}
