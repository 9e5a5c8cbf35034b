// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// MaxMirrorMembers of a volume: two replicas, and one more for each that is being moved, with room for a third replica.
const MaxMirrorMembers = 6

// NvmfMirrorSpec records which replicas of a volume have every acknowledged write. The CSI controller sets and clears
// the holder; the node plugin of the holder's node writes everything else. Both write by compare and swap: an update
// with the resourceVersion of a live read. Package csi-driver/mirror has the transitions that are allowed.
// +kubebuilder:validation:XValidation:rule="self.epoch >= oldSelf.epoch",message="epoch can grow but not fall: a lower epoch would give an earlier holder its rights back"
// +kubebuilder:validation:XValidation:rule="self.epoch > oldSelf.epoch || (has(self.holder) ? has(oldSelf.holder) && self.holder == oldSelf.holder : !has(oldSelf.holder))",message="a change of holder must raise epoch"
// +kubebuilder:validation:XValidation:rule="self.epoch > oldSelf.epoch || self.members.size() == oldSelf.members.size() && self.members.all(m, oldSelf.members.exists(o, o.replica == m.replica && o.state == m.state))",message="a change of members or of a member's state must raise epoch"
// +kubebuilder:validation:XValidation:rule="!has(self.holder) || !has(oldSelf.holder) || self.holder == oldSelf.holder",message="holder must be removed before another one is set: replicas have to confirm in between that the former holder is off"
// +kubebuilder:validation:XValidation:rule="self.members.exists(m, m.state == 'InSync')",message="at least one member must be InSync"
// +kubebuilder:validation:XValidation:rule="oldSelf.?recovering.orValue(false) || self.members.exists(m, m.state == 'InSync' && oldSelf.members.exists(o, o.replica == m.replica && o.state == 'InSync'))",message="at least one member must stay InSync: only such a member has all data"
// +kubebuilder:validation:XValidation:rule="oldSelf.?recovering.orValue(false) || self.members.all(m, m.state != 'InSync' || oldSelf.members.exists(o, o.replica == m.replica && o.state != 'Out'))",message="a member becomes InSync only from Returning or Filling: what it lacks has to be copied first"
// +kubebuilder:validation:XValidation:rule="oldSelf.?recovering.orValue(false) || self.members.all(m, !oldSelf.members.exists(o, o.replica == m.replica && o.replicaUID != m.replicaUID))",message="replicaUID of a member is immutable: another replica with the same name has other data; remove the member first"
// +kubebuilder:validation:XValidation:rule="!has(self.holderNode) || has(self.holder)",message="holderNode requires holder"
// +kubebuilder:validation:XValidation:rule="!has(self.mover) || has(self.holder)",message="mover requires holder"
// +kubebuilder:validation:XValidation:rule="!self.?recovering.orValue(false) || !has(self.holder) || has(self.mover) && self.mover in ['Read', 'Stopped']",message="while the record is being recovered, only a mover that reads headers may be the holder"
// +kubebuilder:validation:XValidation:rule="self.epoch > oldSelf.epoch || self.?recovering.orValue(false) == oldSelf.?recovering.orValue(false)",message="a change of recovering must raise epoch"
// +kubebuilder:validation:XValidation:rule="!has(self.confirmRequested) || !has(oldSelf.confirmRequested) || self.confirmRequested >= oldSelf.confirmRequested",message="confirmRequested can grow but not fall"
// +kubebuilder:validation:XValidation:rule="!has(self.confirmed) || !has(oldSelf.confirmed) || self.confirmed >= oldSelf.confirmed",message="confirmed can grow but not fall"
// +kubebuilder:validation:XValidation:rule="!has(self.confirmed) || has(self.confirmRequested) && self.confirmed <= self.confirmRequested",message="confirmed must not be greater than confirmRequested: only what was requested can be confirmed"
type NvmfMirrorSpec struct {
	// Epoch of the record. Each change of holder and each change of a member's state raises it. It never falls.
	// +kubebuilder:validation:Minimum=1
	// +required
	Epoch int64 `json:"epoch"`
	// Holder is the attachment, by its UUID, whose node may write to the members and change their states. Absent: no
	// node may.
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`
	// +kubebuilder:validation:MaxLength=36
	// +optional
	Holder string `json:"holder,omitempty"`
	// HolderNode is the Kubernetes Node of the holder, whose node plugin keeps the mirror. Only that node plugin may
	// write the object while there is a holder. Absent: there is no holder.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	HolderNode string `json:"holderNode,omitempty"`
	// Mover is set while the holder is a mover: an attachment that no pod asked for, by which a node plugin copies what
	// members lack. The CSI controller sets Copy, and then Stop to end it; the node plugin answers Stop with Stopped.
	// While the record is being recovered, it sets Read, and the node plugin answers with the members' headers and
	// Stopped.
	// Absent: there is no holder, or it is a pod's.
	// +optional
	Mover MoverState `json:"mover,omitempty"`
	// MoverWaiting says why the node of the mover has not begun to copy. Absent: it copies, has not said yet, or there
	// is no mover.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	MoverWaiting string `json:"moverWaiting,omitempty"`
	// Dirty is true from the moment a holder starts the mirror until it has stopped it cleanly. Members of a dirty
	// mirror can differ in writes that were not acknowledged: the next start makes them equal before the device is
	// used. A mover writes nothing new, and leaves Dirty as it was. Dirty also becomes true when an agent suspects that
	// the API was restored. Default false.
	// +optional
	Dirty bool `json:"dirty,omitempty"`
	// Recovering is true from the moment when the CSI controller begins to recover the record until it has. What the
	// record says of its members may be wrong meanwhile: nobody becomes the holder but a mover that reads the members'
	// headers. Default false.
	// +optional
	Recovering bool `json:"recovering,omitempty"`
	// Recovery is the id of the request for which the record is being recovered, or was the last time: spec.recovery.id
	// of the NvmfVolume. Absent: the record was never recovered.
	// +kubebuilder:validation:MaxLength=36
	// +optional
	Recovery string `json:"recovery,omitempty"`
	// ConfirmRequested counts the requests of the CSI controller to the holder to confirm that its kernel has all
	// members that are InSync in sync. It requests that after a member was copied while the volume is attached. Absent:
	// none was requested, or a node plugin that does not know this field wrote the object.
	// +kubebuilder:validation:Minimum=1
	// +optional
	ConfirmRequested int64 `json:"confirmRequested,omitempty"`
	// Confirmed is the value of confirmRequested after which the holder found that its kernel had all members that are
	// InSync in sync. Within one epoch, such a member had every acknowledged write all the time. Absent: nothing was
	// confirmed.
	// +kubebuilder:validation:Minimum=1
	// +optional
	Confirmed int64 `json:"confirmed,omitempty"`
	// Members are the replicas of the volume. At least one is InSync.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=6
	// +listType=map
	// +listMapKey=replica
	// +required
	Members []MirrorMember `json:"members"`
}

// MoverState is what a mover is to do, or has done.
// +kubebuilder:validation:Enum=Copy;Stop;Stopped;Read
type MoverState string

// States of a mover.
const (
	// MoverCopy: it copies what members lack.
	MoverCopy MoverState = "Copy"
	// MoverStop: it is to stop the mirror, and to disconnect.
	MoverStop MoverState = "Stop"
	// MoverRead: it is to read the members' headers, and nothing else.
	MoverRead MoverState = "Read"
	// MoverStopped: its node has nothing of the mirror any more.
	MoverStopped MoverState = "Stopped"
)

// MirrorMemberState tells what of the volume's data a member has.
// +kubebuilder:validation:Enum=InSync;Returning;Filling;Out
type MirrorMemberState string

// States of a member.
const (
	// MemberInSync: the member has every acknowledged write.
	MemberInSync MirrorMemberState = "InSync"
	// MemberReturning: the member was in sync before, and gets what was written since, by the mirror's bitmap.
	MemberReturning MirrorMemberState = "Returning"
	// MemberFilling: the member gets all data.
	MemberFilling MirrorMemberState = "Filling"
	// MemberOut: the member lacks data, and gets none.
	MemberOut MirrorMemberState = "Out"
)

// MirrorHeader is what a member's header says of the mirror: a copy of the record of the moment when it was written.
type MirrorHeader struct {
	// Epoch of that record. Absent: no holder of a mirror has written the header.
	// +kubebuilder:validation:Minimum=1
	// +optional
	Epoch int64 `json:"epoch,omitempty"`
	// Mark of the header, new with each change of that record. Absent: no holder of a mirror has written the header.
	// +kubebuilder:validation:MaxLength=36
	// +optional
	Mark string `json:"mark,omitempty"`
	// Members of that record, with their states.
	// +kubebuilder:validation:MaxItems=6
	// +listType=map
	// +listMapKey=replica
	// +optional
	Members []MirrorHeaderMember `json:"members,omitempty"`
	// Blank is true if nothing was ever written to the replica, nor to its source, by the word of its agent. Default
	// false.
	// +optional
	Blank bool `json:"blank,omitempty"`
	// Error says why the header could not be read. Absent: it was read.
	// +kubebuilder:validation:MaxLength=256
	// +optional
	Error string `json:"error,omitempty"`
}

// MirrorHeaderMember is a member of the record that a header is a copy of.
type MirrorHeaderMember struct {
	// Replica is the name of the NvmfReplica.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Replica string `json:"replica"`
	// State of the member: InSync, Returning, Filling or Out.
	// +required
	State MirrorMemberState `json:"state"`
}

// MirrorMember is one replica of the volume.
// +kubebuilder:validation:XValidation:rule="self.state != 'Returning' || has(self.lastInSyncEpoch)",message="state Returning requires lastInSyncEpoch: a member that was never in sync must be filled"
type MirrorMember struct {
	// Replica is the name of the NvmfReplica.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Replica string `json:"replica"`
	// ReplicaUID is the metadata.uid of the NvmfReplica, so that another one with the same name is not taken for it.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +required
	ReplicaUID string `json:"replicaUID"`
	// State of the member: InSync, Returning, Filling or Out.
	// +required
	State MirrorMemberState `json:"state"`
	// Reason for the state, such as Lost or Unconfirmed. Absent for InSync.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Reason string `json:"reason,omitempty"`
	// Since is the time when the state began.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
	// LastInSyncEpoch is the last epoch in which the member was in sync. It is kept as long as the mirror's bitmap
	// covers everything that the member lacks. Absent: the member can only be filled.
	// +kubebuilder:validation:Minimum=1
	// +optional
	LastInSyncEpoch int64 `json:"lastInSyncEpoch,omitempty"`
	// Marks that the member's header may have. Holders write a new one to all headers with each change of the record. A
	// header with another mark was written by a holder that this record does not know of: the API was restored to an
	// earlier state. The only mark "any:EPOCH" stands for all that have a lower epoch: the record was recovered without
	// the member's header, and the member is filled, whatever it had before that epoch. Empty: no mark was written.
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:MaxLength=36
	// +listType=atomic
	// +optional
	Marks []string `json:"marks,omitempty"`
	// Identity is the UUID in the NQN of the subsystem that the holder connected to last, to use the member. A member
	// that left does not return through that subsystem: commands that were sent to it can still be in flight. It stays
	// the same while the keys of its hosts are rotated. Absent: the holder has not connected.
	// +kubebuilder:validation:MaxLength=36
	// +optional
	Identity string `json:"identity,omitempty"`
	// Released is true for a member that is Out once the holder's kernel has nothing of it any more. Only then may it
	// get a fresh identity, or be removed. Default false.
	// +optional
	Released bool `json:"released,omitempty"`
	// CopiedBytes of a member that is Returning or Filling, as a measure of progress only.
	// +kubebuilder:validation:Minimum=0
	// +optional
	CopiedBytes int64 `json:"copiedBytes,omitempty"`
	// DeclaredCurrent is the epoch in which a person declared that the member has all data. It is valid in that epoch
	// only. Absent: nobody did.
	// +kubebuilder:validation:Minimum=1
	// +optional
	DeclaredCurrent int64 `json:"declaredCurrent,omitempty"`
	// Suspect is true for a member of which it is not known whether a former holder's kernel went on without it, or
	// with it alone, because the former attachment did not end cleanly, or because the holder found that the record is
	// older than the headers. No suspect is used as the only source, nor removed, until the next start has compared all
	// of them. Default false.
	// +optional
	Suspect bool `json:"suspect,omitempty"`
	// Foreign is true for a member that the holder does not take back, because its header or its metadata has a history
	// that the record does not know: it may have data that no other member has. The CSI controller does not replace it,
	// nor remove it without a request. It becomes false when the member returns, or the record is recovered. Default
	// false.
	// +optional
	Foreign bool `json:"foreign,omitempty"`
	// Header of the member, as it was read when the record was recovered. It is removed when the mirror is started.
	// Absent: it was not read.
	// +optional
	Header *MirrorHeader `json:"header,omitempty"`
	// Retired is true for a member that is to leave the mirror. The holder takes it out, and does not take it back. The
	// CSI controller takes out a member without data.
	// Default false.
	// +optional
	Retired bool `json:"retired,omitempty"`
}

// ServesAlone reports whether the volume goes on with this member when it loses the others: the member has every
// acknowledged write, stays in the mirror, and the replica, which is the one of its name or nil, is the same and stays.
// Whether the replica's node is up is another question.
func (m *MirrorMember) ServesAlone(replica *NvmfReplica) bool {
	return m.State == MemberInSync && !m.Suspect && !m.Retired &&
		replica != nil && string(replica.UID) == m.ReplicaUID && replica.DeletionTimestamp.IsZero()
}

// MayBeAhead reports whether the former holder's kernel may have had the member in sync, whatever the record says: it
// may have copied it, or not have released it, and then have dropped all those that the record has in sync.
func (m *MirrorMember) MayBeAhead() bool {
	return m.State == MemberInSync || m.Suspect || m.Identity != "" && !m.Released
}

// NvmfMirror records which replicas of a volume have every acknowledged write, and which attachment may write to them.
// It has the volume's name. A volume that was never replicated has none.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=nm,categories=weft
// +kubebuilder:selectablefield:JSONPath=`.spec.holderNode`
// +kubebuilder:printcolumn:name="Epoch",type=integer,JSONPath=`.spec.epoch`
// +kubebuilder:printcolumn:name="Holder",type=string,JSONPath=`.spec.holder`
// +kubebuilder:printcolumn:name="On",type=string,JSONPath=`.spec.holderNode`
// +kubebuilder:printcolumn:name="Not in sync",type=string,JSONPath=`.spec.members[?(@.state!="InSync")].replica`
// +kubebuilder:printcolumn:name="Copied",type=string,JSONPath=`.spec.members[?(@.state!="InSync")].copiedBytes`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NvmfMirror struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec NvmfMirrorSpec `json:"spec"`
}

// NvmfMirrorList is a list of NvmfMirrors.
// +kubebuilder:object:root=true
type NvmfMirrorList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NvmfMirror `json:"items"`
}
