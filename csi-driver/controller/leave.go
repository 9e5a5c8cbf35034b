// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"slices"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
)

// Which member leaves is decided by how many have everything, not by what a move was meant to do: a person may cancel
// it, request another one and change its node, at any moment.

// toLeave is the member that is to be retired next, empty if none is: that which is to move, once it is replaced. If
// there are more members than wanted, another one. None leaves while a restore of the API is suspected: the record may
// be old, and a member that never had everything by it may be the only one that has.
func toLeave(v *replicatedVolume, record mirror.Record) string {
	if suspectsRestore(v) {
		return ""
	}
	for i, m := range v.Spec.Members {
		if is, ok := mirror.Get(record, m.Name); ok && !is.Retired && isLeaving(v, &record, i) {
			return m.Name
		}
	}
	for _, m := range record.Members {
		if !m.Retired && indexOf(v.NvmfVolume, m.Replica) < 0 {
			return m.Replica // added while it was being removed from the members
		}
	}
	more, move := surplus(v, &record), v.Spec.Move
	switch {
	case more < 0:
		return ""
	case move == nil || isLeaving(v, &record, indexOf(v.NvmfVolume, move.Replica)):
		if more == 0 {
			return ""
		}
		return superfluous(v, record)
	case move.Reason == v1alpha1.MoveReplicaLost && foreign(record, move.Replica):
		return "" // nobody has judged that it is of no use
	case replaced(v, record):
		return move.Replica
	case more == 0 && replacement(v) != "":
		return "" // until that is filled
	}
	// What an earlier move began, which was cancelled, or whose node was changed since.
	return superfluous(v, record, move.Replica, replacement(v))
}

// replacement is the member that replaces the one that is to move; empty if there is none yet, or if it is on another
// node than is wanted now.
func replacement(v *replicatedVolume) string {
	move := v.Spec.Move
	i := indexOf(v.NvmfVolume, move.Replacement)
	if i < 0 || move.Node != "" && move.Node != v.Spec.Members[i].Node {
		return ""
	}
	return move.Replacement
}

// replaced tells whether the member that is to move is not needed any more: its replacement has everything, or as many
// others have as the volume is to have.
func replaced(v *replicatedVolume, record mirror.Record) bool {
	if name := replacement(v); name != "" && mirror.StateOf(record, name) == v1alpha1.MemberInSync {
		return true
	}
	others := 0
	for i, m := range v.Spec.Members {
		if m.Name != v.Spec.Move.Replica && !isLeaving(v, &record, i) && mirror.StateOf(record, m.Name) == v1alpha1.MemberInSync {
			others++
		}
	}
	return others >= replicasOf(v.NvmfVolume)
}

// superfluous is the member, but for these, that leaves first if there are more than wanted: one that the record does
// not have, then one that is not in sync, then the last. One that was refused, and may have data that no other has,
// only leaves if it is moved, and counts for nothing: one that is in sync only leaves if as many others are as the
// volume is to have. It is empty if none can.
func superfluous(v *replicatedVolume, record mirror.Record, but ...string) string {
	rank := func(name string) int {
		m, ok := mirror.Get(record, name)
		switch {
		case !ok:
			return 0
		case m.State != v1alpha1.MemberInSync:
			return 1
		}
		return 2
	}
	var name string
	inSync := 0
	for i, m := range v.Spec.Members {
		if rank(m.Name) == 2 && !isLeaving(v, &record, i) {
			inSync++
		}
		is, _ := mirror.Get(record, m.Name)
		if !is.Foreign && !isLeaving(v, &record, i) && !slices.Contains(but, m.Name) && (name == "" || rank(m.Name) <= rank(name)) {
			name = m.Name
		}
	}
	if name != "" && rank(name) == 2 && inSync <= replicasOf(v.NvmfVolume) {
		return ""
	}
	return name
}

// keptForeign is a member that would leave, but that its holder has refused; empty if there is none.
func keptForeign(a *arrangement) string {
	move := a.Spec.Move
	if move != nil && move.Reason == v1alpha1.MoveReplicaLost && foreign(*a.record, move.Replica) {
		return move.Replica
	}
	for _, m := range a.Spec.Members {
		if is, _ := mirror.Get(*a.record, m.Name); is.Foreign && !is.Retired && move == nil && a.surplus() > 0 {
			return m.Name
		}
	}
	return ""
}

// mayRetire tells whether a member can leave: another one has everything, stays, and exists.
func mayRetire(v *replicatedVolume, record mirror.Record, replica string) bool {
	return slices.ContainsFunc(record.Members, func(m mirror.Member) bool {
		i := indexOf(v.NvmfVolume, m.Replica)
		return m.Replica != replica && i >= 0 && m.ServesAlone(v.replicas[i]) && !retired(v.replicas[i])
	})
}

// hasLeft tells whether a member that is to leave can be removed from the record.
func hasLeft(record mirror.Record, m mirror.Member) bool {
	return m.Retired && mirror.Removable(record, m)
}

// adopt a member that an earlier move has added, and that lacks data, as the replacement of the one that is to move
// now: it is one more than the volume is to have, and where it is wanted.
func (s *Service) adopt(ctx context.Context, a *arrangement) (outcome, error) {
	move := a.Spec.Move
	if move == nil || move.Replacement != "" || a.record == nil || a.surplus() != 0 {
		return outcome{}, nil
	}
	leaving := func(name string) bool { return isLeaving(&a.replicatedVolume, a.record, indexOf(a.NvmfVolume, name)) }
	for _, m := range slices.Backward(a.Spec.Members) {
		wanted := m.Name != move.Replica && (move.Node == "" || move.Node == m.Node)
		if wanted && !leaving(m.Name) && !leaving(move.Replica) && mirror.StateOf(*a.record, m.Name) != v1alpha1.MemberInSync {
			return changed, s.write(ctx, a.NvmfVolume, func(vol *v1alpha1.NvmfVolume) { vol.Spec.Move.Replacement = m.Name })
		}
	}
	return outcome{}, nil
}
