// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/internal/server"
	"github.com/weft-storage/weft/csi-driver/mirror"
	"github.com/weft-storage/weft/csi-driver/node/internal/keeper"
	"github.com/weft-storage/weft/csi-driver/node/internal/md"
)

// Reasons of a mirrored volume's problems.
const (
	// reasonReplicaMissing: not all replicas have all data.
	reasonReplicaMissing = "ReplicaMissing"
	// reasonMirrorWaits: the mirror waits for something, which may hold up writes.
	reasonMirrorWaits = "MirrorWaits"
)

// missing says, for each member of a mirror that is not in sync, since when, why, and how much has been copied to it.
func missing(status keeper.Status, copied map[string]md.State) []string {
	var all []string
	for _, m := range status.Record.Members {
		if m.State == v1alpha1.MemberInSync {
			continue
		}
		text := fmt.Sprintf("replica %s is %s", m.Replica, m.State)
		if m.Since != nil {
			text += " since " + m.Since.UTC().Format(time.RFC3339)
		}
		if m.Reason != "" {
			text += " (" + m.Reason + ")"
		}
		if s, ok := copied[m.Replica]; ok && s.TotalBytes > 0 {
			text += fmt.Sprintf(", copied up to %d of %d MiB", s.DoneBytes>>20, s.TotalBytes>>20)
		}
		all = append(all, text)
	}
	return all
}

// mirrorSight is what can be seen of a mirrored volume's mirror.
type mirrorSight struct {
	keeper.Status
	volume string
	copied map[string]md.State
}

// look at a mirror. It waits for nothing.
func (m *mirrored) look() (mirrorSight, error) {
	seen := mirrorSight{m.seen(), m.volume, map[string]md.State{}}
	_, s, err := m.arrayOf(m.uuid)
	if errors.Is(err, md.ErrNotFound) {
		return seen, nil
	}
	for _, is := range s.Members {
		if name, ours := m.replicas.of(is.UUID); ours && is.Recovering() {
			seen.copied[name] = s
		}
	}
	return seen, err
}

// problems of a mirror.
func (m mirrorSight) problems(add func(kind csi.VolumeHealthErrorType, reason, format string, args ...any)) {
	if all := missing(m.Status, m.copied); len(all) > 0 {
		add(server.Degraded, reasonReplicaMissing, "%s; in sync: %s", strings.Join(all, "; "), strings.Join(mirror.InSync(m.Record), ", "))
	}
	switch {
	case m.Phase == keeper.Leaving || m.Phase == keeper.Stopped:
		add(server.Inaccessible, reasonMirrorWaits, "the volume is no longer attached to this node: its users are stopped")
	case errors.Is(m.Err, keeper.ErrPast):
		add(server.Degraded, reasonMirrorWaits, "%v%s", m.Err, recoverHint(m.volume))
	case m.Err != nil && !errors.Is(m.Err, keeper.ErrLastLeg):
		add(server.Degraded, reasonMirrorWaits, "%v", m.Err)
	case m.Err != nil:
		add(server.Inaccessible, reasonMirrorWaits, "%v", m.Err)
	}
}

// MissingReplicas of the mirrored volumes that are kept here, in words, by volume.
func (s *Service) MissingReplicas() map[string]string {
	words := map[string]string{}
	for _, m := range s.mirrors.list() {
		if all := missing(m.seen(), nil); len(all) > 0 {
			words[m.volume] = strings.Join(all, "; ")
		}
	}
	return words
}
