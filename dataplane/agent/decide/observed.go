// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/internal/dhchap"
	"github.com/weft-storage/weft/internal/text"
)

// Observed is all that a decision rests on, gathered at one moment.
type Observed struct {
	// Now is when it was gathered, for the conditions' transition times.
	Now time.Time
	// Settling says that the agent has only just started: what is missing may yet appear, so portals wait for it.
	Settling bool
	// Refresh allows figures that change with every write of a host (allocated and
	// free bytes) to be brought up to date. Without it they stay as they were, so that not every event becomes a write.
	Refresh bool

	// Node is this node's object.
	Node *v1alpha1.NvmfNode
	// Inventory of the node; nil while it is not known.
	Inventory *v1alpha1.Inventory
	// Volumes and Snapshots of this node, by name.
	Volumes   []*v1alpha1.NvmfReplica
	Snapshots []*v1alpha1.NvmfSnapshot

	// Keys of hosts, by what they are sealed as. What is missing is not sealed to this node, or not a pair of keys.
	Keys map[string]dhchap.Pair
	// PublicKey of this node, to which keys are sealed; empty when it has none.
	PublicKey string

	// Records of what was acted on before.
	Records Records
	// Notes about orphans, as far as they were read.
	Notes map[engine.ID]FoundNote
	// Target is what the engine answered.
	Target Target
	// Starvation is what is known of I/O that waited for buffers.
	Starvation Starvation
	// Attempts are the operations of this reconciliation so far, with their outcome.
	Attempts Attempts
}

// GlanceIsEnough says that nothing has to be decided by how much was written lately: replicas and snapshots have the
// size that is asked for and are to stay, or are new and blank.
func (s *Observed) GlanceIsEnough() bool {
	return !slices.ContainsFunc(s.Volumes, func(v *v1alpha1.NvmfReplica) bool {
		switch {
		case v.DeletionTimestamp != nil:
			return true
		case !meta.IsStatusConditionTrue(v.Status.Conditions, v1alpha1.ConditionCreated):
			return v.Spec.Source != nil
		}
		return v.Status.Size == nil || v.Status.Size.Cmp(v.Spec.Size) != 0
	}) && !slices.ContainsFunc(s.Snapshots, func(v *v1alpha1.NvmfSnapshot) bool {
		return v.DeletionTimestamp != nil || !meta.IsStatusConditionTrue(v.Status.Conditions, v1alpha1.ConditionCreated)
	})
}

// Target is what is known of the node's engine.
type Target struct {
	// Info is empty while nothing answers.
	Info engine.Info
	// RestartNeeded lists, in order, the settings that differ from the plan's and that only a restart can change. It
	// serves all the same.
	RestartNeeded []string
	// Settings that it runs with, and BufferWaits since it started; nil when they were not read, or there are none.
	Settings    []v1alpha1.EngineSetting
	BufferWaits []engine.BufferWaits
	State       engine.State
	// Err says why nothing is known of its State, or why it is not asked for anything. Reason goes with it.
	Err    error
	Reason string
}

// Verb names one kind of operation.
type Verb string

// Verbs, named like the engine's methods.
const (
	VerbOpenPool       Verb = "OpenPools"
	VerbForgetPool     Verb = "ForgetPools"
	VerbUnexport       Verb = "Unexport"
	VerbDeleteVolume   Verb = "DeleteVolumes"
	VerbDeleteSnapshot Verb = "DeleteSnapshots"
	VerbCreateSnapshot Verb = "CreateSnapshots"
	VerbCreateVolume   Verb = "CreateVolumes"
	VerbGrowVolume     Verb = "GrowVolumes"
	VerbExport         Verb = "Export"
	VerbSetQoS         Verb = "SetQoS"
	VerbClosePortal    Verb = "ClosePortals"
	VerbOpenPortal     Verb = "OpenPortals"
)

// attempt is one operation on one item: a device's ID, a volume's or snapshot's UUID, an NQN, a portal as PortalKey
// writes it.
type attempt struct {
	verb Verb
	item string
}

// Attempts of one reconciliation: nil for what the engine did. No operation is
// tried twice in one reconciliation, so its rounds end.
type Attempts map[attempt]error

// Record what became of an operation on an item; nil: the engine did it.
func (a Attempts) Record(verb Verb, item string, err error) { a[attempt{verb, item}] = err }

// Tried says whether an operation was attempted.
func (a Attempts) Tried(verb Verb, item string) bool {
	_, ok := a[attempt{verb, item}]
	return ok
}

func (a Attempts) err(verb Verb, item string) error { return a[attempt{verb, item}] }

// Failed counts the attempts that failed.
func (a Attempts) Failed() int {
	n := 0
	for _, err := range a {
		if err != nil {
			n++
		}
	}
	return n
}

// Operations to be done, one list for each of the engine's methods; act.go has their order.
type Operations struct {
	OpenPools       []engine.Device
	ForgetPools     []string
	Unexport        []string
	DeleteVolumes   []engine.ID
	DeleteSnapshots []engine.ID
	CreateSnapshots []engine.SnapshotSpec
	CreateVolumes   []engine.VolumeSpec
	GrowVolumes     []engine.VolumeSize
	Export          []engine.Export
	SetQoS          []engine.VolumeQoS
	ClosePortals    []v1alpha1.Portal
	OpenPortals     []engine.Portal
}

// Empty when there is nothing to do.
func (o *Operations) Empty() bool {
	return len(o.OpenPools)+len(o.ForgetPools)+len(o.Unexport)+len(o.DeleteVolumes)+len(o.DeleteSnapshots)+len(o.CreateSnapshots)+
		len(o.CreateVolumes)+len(o.GrowVolumes)+len(o.Export)+len(o.SetQoS)+len(o.ClosePortals)+len(o.OpenPortals) == 0
}

// Decision is what follows from what was observed.
type Decision struct {
	// Records come first: what is not on record is not acted on. Nil when nothing is known, and nothing done.
	Records    *RecordChanges
	Operations Operations
	// Node is the status that the node is to have.
	Node v1alpha1.NvmfNodeStatus
	// Volumes and Snapshots are the statuses that they are to have, by name. Of one that is not listed, nothing new is
	// known.
	Volumes   map[string]v1alpha1.NvmfReplicaStatus
	Snapshots map[string]v1alpha1.NvmfSnapshotStatus
	// ReleaseVolumes and ReleaseSnapshots are the names of those that the engine no longer lists: their finalizer comes
	// off.
	ReleaseVolumes, ReleaseSnapshots []string
	// Orphans are things in the engine without an object.
	Orphans Orphans
	// Notes that are to be stored with the data, or read.
	Notes Notes
	// Unrecorded: something waits until the node's status lists its orphans.
	Unrecorded bool
	// PortalsHeld are the volumes for which portals are kept closed.
	PortalsHeld []string
}

// Orphans of an engine, each in order.
type Orphans struct {
	Volumes, Snapshots []engine.ID
	// Exports that admit hosts.
	Exports []string
}

// Count of all orphans.
func (o Orphans) Count() int { return len(o.Volumes) + len(o.Snapshots) + len(o.Exports) }

// Equal when both are the same.
func (o Orphans) Equal(other Orphans) bool {
	return slices.Equal(o.Volumes, other.Volumes) && slices.Equal(o.Snapshots, other.Snapshots) && slices.Equal(o.Exports, other.Exports)
}

func (o Orphans) String() string {
	var names []string
	for _, id := range o.Volumes {
		names = append(names, "replica "+string(id))
	}
	for _, id := range o.Snapshots {
		names = append(names, "snapshot "+string(id))
	}
	for _, nqn := range o.Exports {
		names = append(names, "subsystem "+nqn)
	}
	return text.Few(names, named, ", ")
}
