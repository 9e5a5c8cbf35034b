// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/internal/text"
)

// A VolumeReport is everything about one volume; it is what -o json prints. What is absent does not exist, or no object
// records it.
type VolumeReport struct {
	// Note on what was asked for.
	Note             string            `json:"note,omitempty"`
	Claim            *ClaimReport      `json:"claim,omitempty"`
	PersistentVolume *PersistentReport `json:"persistentVolume,omitempty"`
	NvmfVolume       *NvmfVolumeReport `json:"nvmfVolume,omitempty"`
	Replicas         []ReplicaReport   `json:"replicas,omitempty"`
	// Move of a replica in words.
	Move        string         `json:"move,omitempty"`
	Attachments []AttachReport `json:"attachments,omitempty"`
	Pods        []PodReport    `json:"pods,omitempty"`
	Events      []EventReport  `json:"events,omitempty"`
	Problems    []Problem      `json:"problems"`
	// Unknown: what could not be read.
	Unknown []string `json:"unknown,omitempty"`
}

// ClaimReport is a PersistentVolumeClaim.
type ClaimReport struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Phase: Pending, Bound or Lost; absent if the claim does not exist any more.
	Phase        string   `json:"phase,omitempty"`
	StorageClass string   `json:"storageClass,omitempty"`
	Requested    string   `json:"requested,omitempty"`
	AccessModes  []string `json:"accessModes,omitempty"`
	VolumeMode   string   `json:"volumeMode,omitempty"`
}

// PersistentReport is a PersistentVolume.
type PersistentReport struct {
	Name          string `json:"name"`
	Phase         string `json:"phase,omitempty"`
	ReclaimPolicy string `json:"reclaimPolicy,omitempty"`
	FSType        string `json:"fsType,omitempty"`
}

// NvmfVolumeReport is an NvmfVolume, with the engine of its target.
type NvmfVolumeReport struct {
	Name   string `json:"name"`
	UUID   string `json:"uuid"`
	Target string `json:"target"`
	Engine string `json:"engine,omitempty"`
	Size   string `json:"size"`
	// Replicas that are requested.
	Replicas   int32       `json:"replicas"`
	Mirrored   bool        `json:"mirrored"`
	Transports []string    `json:"transports,omitempty"`
	Created    metav1.Time `json:"created"`
}

// ReplicaReport is where a replica is stored, and how it is served.
type ReplicaReport struct {
	Name string `json:"name"`
	Node string `json:"node"`
	// Device is the drive's ID or the pool file's path, Path what the storage node calls it.
	Device string `json:"device,omitempty"`
	Path   string `json:"path,omitempty"`
	// Allocated bytes in the pool.
	Allocated *resource.Quantity `json:"allocated,omitempty"`
	// Data that the replica has: Only (there is no other), InSync, Returning, Filling, Out, or Unknown.
	Data string `json:"data"`
	// Detail of Data: since when, why, and how much is copied.
	Detail string `json:"detail,omitempty"`
	// Ready is the condition's status, and its reason unless it is True.
	Ready   string       `json:"ready"`
	NQN     string       `json:"nqn,omitempty"`
	NSID    int32        `json:"nsid,omitempty"`
	NGUID   string       `json:"nguid,omitempty"`
	Portals []string     `json:"portals,omitempty"`
	Hosts   []HostReport `json:"hosts,omitempty"`
	// Conditions of the NvmfReplica.
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// HostReport is a host of a replica.
type HostReport struct {
	NQN  string `json:"nqn"`
	Node string `json:"node,omitempty"`
	// Admitted by the target, as its agent reported last.
	Admitted bool `json:"admitted"`
}

// AttachReport is one attachment of the volume to a node.
type AttachReport struct {
	Node string `json:"node"`
	// For a pod, or for a copy to a replica while no pod uses the volume.
	For    string `json:"for"`
	Access string `json:"access"`
	// NQN of the host; the replicas of a volume with several have a host NQN each, in their hosts.
	NQN string `json:"nqn"`
	// VolumeAttachment that asked for it; absent if there is none, or it is gone.
	VolumeAttachment string `json:"volumeAttachment,omitempty"`
	// Device of the volume on the node, such as /dev/dm-3, which can have another name after the next attachment. It is
	// absent if there is none, or if DeviceUnknown says why it is not known.
	Device        string `json:"device,omitempty"`
	DeviceUnknown string `json:"deviceUnknown,omitempty"`
}

// PodReport is a pod that names the claim.
type PodReport struct {
	Name  string `json:"name"`
	Node  string `json:"node,omitempty"`
	Phase string `json:"phase"`
	Ready bool   `json:"ready"`
	// Waiting says what the pod or one of its containers waits for.
	Waiting string `json:"waiting,omitempty"`
}

// EventReport is an Event about an object of the chain.
type EventReport struct {
	Last    metav1.Time `json:"last"`
	Type    string      `json:"type"`
	Reason  string      `json:"reason"`
	Object  string      `json:"object"`
	Count   int32       `json:"count,omitempty"`
	Message string      `json:"message"`
	// age of the Event.
	age string
}

// What a replica has, besides the states of an NvmfMirror's members.
const (
	dataOnly    = "Only"
	dataUnknown = "Unknown"
)

// maxEventMessage in a table; -o wide, json and yaml have all of it.
const maxEventMessage = 160

// report what was gathered.
func (c *chain) report() *VolumeReport {
	r := &VolumeReport{Note: c.note, Unknown: c.unread, Problems: []Problem{}}
	r.Claim = c.reportClaim()
	if pv := c.pv; pv != nil {
		r.PersistentVolume = &PersistentReport{Name: pv.Name, Phase: string(pv.Status.Phase), ReclaimPolicy: string(pv.Spec.PersistentVolumeReclaimPolicy), FSType: pv.Spec.CSI.FSType}
	}
	if v := c.v; v != nil {
		r.NvmfVolume = c.reportVolume(v)
		for _, m := range c.members {
			r.Replicas = append(r.Replicas, c.reportReplica(m))
		}
		for i := range v.Spec.Attachments {
			r.Attachments = append(r.Attachments, c.reportAttachment(&v.Spec.Attachments[i]))
		}
		if p, moves := c.moving(v); moves {
			r.Move = p.words()
		}
	}
	for i := range c.pods {
		r.Pods = append(r.Pods, reportPod(&c.pods[i]))
	}
	for i := range c.events {
		r.Events = append(r.Events, c.reportEvent(&c.events[i]))
	}
	r.Problems = append(r.Problems, c.wrong()...)
	return r
}

func (c *chain) reportClaim() *ClaimReport {
	if c.claimKey.Name == "" {
		return nil
	}
	r := &ClaimReport{Namespace: c.claimKey.Namespace, Name: c.claimKey.Name}
	if c.claim == nil {
		return r
	}
	r.Phase = cmp.Or(string(c.claim.Status.Phase), string(corev1.ClaimPending))
	if class := c.claim.Spec.StorageClassName; class != nil {
		r.StorageClass = *class
	}
	if q, ok := c.claim.Spec.Resources.Requests[corev1.ResourceStorage]; ok {
		r.Requested = q.String()
	}
	for _, m := range c.claim.Spec.AccessModes {
		r.AccessModes = append(r.AccessModes, string(m))
	}
	if mode := c.claim.Spec.VolumeMode; mode != nil {
		r.VolumeMode = string(*mode)
	}
	return r
}

func (c *chain) reportVolume(v *v1alpha1.NvmfVolume) *NvmfVolumeReport {
	r := &NvmfVolumeReport{
		Name: v.Name, UUID: v.Spec.UUID, Target: v.Spec.Target, Size: v.Spec.Size.String(), Replicas: max(v.Spec.Replicas, 1), Mirrored: v.Replicated(), Created: v.CreationTimestamp,
	}
	for _, t := range v.Spec.Connection.Transports {
		r.Transports = append(r.Transports, string(t))
	}
	if t := find(c.targets, func(t *v1alpha1.NvmfTarget) bool { return t.Name == v.Spec.Target }); t != nil {
		r.Engine = string(t.Spec.Engine)
	}
	return r
}

func (c *chain) reportReplica(m v1alpha1.VolumeMember) ReplicaReport {
	r := ReplicaReport{Name: m.Name, Node: m.Node, Ready: string(metav1.ConditionUnknown)}
	r.Data, r.Detail = c.dataOf(m.Name)
	replica := c.replica(m.Name)
	if replica == nil {
		return r
	}
	r.Conditions = replica.Status.Conditions
	r.Ready = brief(r.Conditions, v1alpha1.ConditionReady)
	r.Device, r.Allocated, r.NSID, r.NGUID = replica.Status.Device, replica.Status.Allocated, replica.Status.NSID, replica.Status.NGUID
	if p := c.poolOf(replica); p != nil {
		r.Path = p.Path
	}
	r.NQN = replica.CurrentSubsystem()
	for _, p := range replica.Paths() {
		r.Portals = append(r.Portals, portalOf(p))
	}
	for _, h := range replica.Spec.Hosts {
		r.Hosts = append(r.Hosts, HostReport{NQN: h.NQN, Node: h.Node, Admitted: replica.Admitted(h.NQN) != nil})
	}
	for _, h := range replica.Status.Hosts {
		if replica.Listed(h.NQN) == nil { // dismissed, but still admitted
			r.Hosts = append(r.Hosts, HostReport{NQN: h.NQN, Node: h.Node, Admitted: true})
		}
	}
	return r
}

// poolOf a replica, as its node reports it; nil: not known.
func (c *chain) poolOf(r *v1alpha1.NvmfReplica) *v1alpha1.PoolStatus {
	n := c.node(r.Spec.Node)
	if n == nil || r.Status.Device == "" {
		return nil
	}
	return find(n.Status.Pools, func(p *v1alpha1.PoolStatus) bool { return p.Device == r.Status.Device })
}

// dataOf a replica: what its mirror's record says, in one word and in more.
func (c *chain) dataOf(replica string) (state, detail string) {
	m := c.mirrorMember(c.v.Name, replica)
	switch {
	case m == nil && !c.v.Replicated():
		return dataOnly, ""
	case m == nil:
		return dataUnknown, "the NvmfMirror does not list it"
	}
	var words []string
	if m.State != v1alpha1.MemberInSync && m.Since != nil {
		words = append(words, "for "+duration.HumanDuration(c.now.Sub(m.Since.Time)))
	}
	if m.Reason != "" {
		words = append(words, m.Reason)
	}
	if copied := copyTo(*m, c.v.Spec.Size.Value(), c.now); copied.percent >= 0 {
		words = append(words, copied.columns()[0]+" copied"+copied.speed())
	}
	if m.Suspect {
		words = append(words, "suspect")
	}
	if m.Foreign {
		words = append(words, "refused")
	}
	if m.Retired {
		words = append(words, "to be removed")
	}
	return string(m.State), strings.Join(words, ", ")
}

func (c *chain) reportAttachment(h *v1alpha1.VolumeHost) AttachReport {
	r := AttachReport{Node: h.Node, For: "pod", Access: string(cmp.Or(h.Access, v1alpha1.AccessExclusive)), NQN: h.NQN}
	if h.Mover {
		r.For = "copy to a replica"
	}
	for _, a := range c.attached {
		if string(a.UID) == h.VolumeAttachment {
			r.VolumeAttachment = a.Name
		}
	}
	is := c.devices[h.Node]
	r.Device, r.DeviceUnknown = is.path, is.unknown
	return r
}

func reportPod(pod *corev1.Pod) PodReport {
	r := PodReport{Name: pod.Namespace + "/" + pod.Name, Node: pod.Spec.NodeName, Phase: string(pod.Status.Phase), Waiting: unscheduled(pod)}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			r.Ready = condition.Status == corev1.ConditionTrue
		}
	}
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if w := s.State.Waiting; w != nil && r.Waiting == "" {
			r.Waiting = w.Reason
		}
	}
	return r
}

func (c *chain) reportEvent(e *corev1.Event) EventReport {
	r := EventReport{Last: metav1.NewTime(lastSeen(e)), Type: e.Type, Reason: e.Reason, Object: e.InvolvedObject.Kind + "/" + e.InvolvedObject.Name, Count: e.Count, Message: e.Message}
	if e.Series != nil {
		r.Count = e.Series.Count
	}
	r.age = duration.HumanDuration(c.now.Sub(r.Last.Time))
	return r
}

// message of an Event on one line; of a Warning, all of it.
func (e EventReport) message(wide bool) string {
	message := oneLine(e.Message)
	if wide || e.Type == corev1.EventTypeWarning {
		return message
	}
	return text.Clip(message, maxEventMessage)
}
