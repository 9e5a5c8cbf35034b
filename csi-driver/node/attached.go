// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
	"github.com/weft-storage/weft/csi-driver/publishcontext"
	"github.com/weft-storage/weft/internal/tracing"
)

// readTimeout bounds one read of an object.
const readTimeout = 5 * time.Second

// attached is an attachment of a volume to this node: what must be known to connect it.
type attached struct {
	// UUID of the volume: its header and its device carry it.
	UUID string `json:"uuid"`
	// Attachment is its UUID: the host connects as v1alpha1.HostNQN(Attachment).
	Attachment string `json:"attachment"`
	// SizeBytes of data that each replica served when it was read; the volume may have grown since.
	SizeBytes int64 `json:"sizeBytes"`
	// Replicas of the volume, at least one.
	Replicas []replica `json:"replicas"`
	// Connection settings of the volume; which transports it uses is in the portals alone.
	Connection v1alpha1.Connection `json:"connection"`
	// Mirrored: the volume has a mirror over its replicas, each of which is connected to as a host of its own.
	Mirrored bool `json:"mirrored,omitempty"`
	// Encryption of the volume's data.
	Encryption v1alpha1.VolumeEncryption `json:"encryption,omitempty"`
	// TrailerBytes behind the data; 0 in records of earlier versions, and for the volumes that these made.
	TrailerBytes int64 `json:"trailerBytes,omitempty"`
	// Staging is the path where the volume is staged. Absent in records of earlier versions.
	Staging string `json:"staging,omitempty"`
	// Mover: the mirror is kept to copy what replicas lack, and the volume is not staged.
	Mover bool `json:"mover,omitempty"`
	// Target that serves the volume. Absent in records of earlier versions.
	Target string `json:"target,omitempty"`
	// Claim that the volume was created for: the name of the PersistentVolumeClaim, and its namespace. Absent if that
	// is not known.
	Claim          string `json:"claim,omitempty"`
	ClaimNamespace string `json:"claimNamespace,omitempty"`

	// nodeUID of the Kubernetes Node that the volume was attached to.
	nodeUID string
	// access of the attachment.
	access v1alpha1.HostAccess
	// written says that something was written to one of the replicas, by its agent's word of this moment.
	written bool
	// blank says that nothing was, to any, nor when this node was admitted, as the only one.
	blank bool
	// source of the volume's first data; nil for none.
	source *v1alpha1.VolumeSource
	// allowFormat says that an administrator gave up what the volume holds.
	allowFormat bool
}

// replica of a volume, as this node reaches it.
type replica struct {
	// Name of the NvmfReplica.
	Name string `json:"name"`
	// NQN of the subsystem and NGUID of the namespace (32 lower-case hexadecimal digits): together they identify the
	// replica.
	NQN   string `json:"nqn"`
	NGUID string `json:"nguid"`
	// Portals to connect to, at least one; with several, the kernel's multipath uses them all.
	Portals []v1alpha1.Portal `json:"portals"`
	// Identity is the UUID of the host NQN by which a mirrored volume's replica is connected to; empty when it was not
	// yet. Those of other volumes have that of the attachment, for which it is empty, until their keys are rotated. A
	// mirror knows the replica by another one: see leg.
	Identity string `json:"identity,omitempty"`
	// Next identity, which is connected to beside Identity, and then takes its place: the keys are rotated. Former is
	// one whose place was taken, until the NvmfReplica does not list it any more. Empty: there is none.
	Next   string `json:"next,omitempty"`
	Former string `json:"former,omitempty"`
	// Beside: Former's connections are of this staging, and I/O may still need them. Of another one, they go before
	// anything is connected.
	Beside bool `json:"beside,omitempty"`
	// Sealed keys by which this node and the replica's target prove themselves to each other; empty without.
	Sealed string `json:"sealed,omitempty"`

	// keys is the fingerprint of those that the target asks for, by its agent's word of this moment; empty for none.
	// nil where the agent's word was not read, as of a staged volume's record.
	keys *string
	// blank says that nothing was written to it, nor when this node was admitted.
	blank bool
}

func (r replica) id() fabrics.ID { return fabrics.ID{NQN: r.NQN, NGUID: r.NGUID} }

// leg is the identity by which a mirror knows the replica while this node may connect to it; empty when it may not. It
// stays the same when keys are rotated.
func (r replica) leg() string {
	if r.Identity == "" {
		return ""
	}
	return v1alpha1.SessionOfSubsystem(r.NQN)
}

// connection to a replica, without the keys; see Service.connection.
func (a attached) connection(r replica) fabrics.Connection {
	c := fabrics.Connection{NQN: r.NQN, HostNQN: a.host(r), Portals: r.Portals, Connection: a.Connection}
	switch {
	case r.Next != "":
		c.Beside = v1alpha1.HostNQN(r.Next)
	case r.Former != "" && r.Beside:
		c.Beside = v1alpha1.HostNQN(r.Former)
	}
	if a.Mirrored {
		c.KeepAlive = fabrics.MirrorKeepAlive
		// Only the keeper gives a leg up, once that is recorded. A kernel that did so by itself would go on with the
		// other one, and of a node that was dismissed from both it would acknowledge what only one of them has.
		c.CtrlLossTimeoutSeconds = v1alpha1.CtrlLossTimeoutForever
	}
	return c
}

// host NQN by which a replica is connected to.
func (a attached) host(r replica) string { return v1alpha1.HostNQN(cmp.Or(r.Identity, a.Attachment)) }

// only replica of a volume that is not mirrored.
func (a attached) only() replica { return a.Replicas[0] }

// nguidOf a replica, by its UUID.
func nguidOf(uuid string) string { return strings.ReplaceAll(uuid, "-", "") }

// get an object from the API server. It fails with errUnread.
func (s *Service) get(ctx context.Context, kind, name string, into client.Object) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	if err := s.Volumes.Get(ctx, client.ObjectKey{Name: name}, into); err != nil {
		return fmt.Errorf("%w: %s %s: %w", errUnread, kind, name, err)
	}
	return nil
}

// readVolume reads an NvmfVolume. It fails with errUnread.
func (s *Service) readVolume(ctx context.Context, name string) (*v1alpha1.NvmfVolume, error) {
	var v v1alpha1.NvmfVolume
	err := s.get(ctx, "NvmfVolume", name, &v)
	return &v, err
}

// readReplica reads an NvmfReplica. It fails with errUnread.
func (s *Service) readReplica(ctx context.Context, name string) (*v1alpha1.NvmfReplica, error) {
	var r v1alpha1.NvmfReplica
	err := s.get(ctx, "NvmfReplica", name, &r)
	return &r, err
}

// gone tells whether the API server said that there is no such object, and not that it does not serve the kind, as when
// somebody has removed its CRD.
func gone(err error) bool {
	return apierrors.IsNotFound(err) && !apierrors.IsUnexpectedServerError(err)
}

// attached reads what an attachment of a volume is now. It fails with errUnread when that cannot be read, with
// errNotAttached when the attachment has ended, and with errNotServed when a replica's node does not say yet how this
// node reaches it. Of a mirrored volume, replicas may be away.
func (s *Service) attached(ctx context.Context, volume, attachment string) (_ attached, err error) {
	call := trace.SpanFromContext(ctx)
	ctx, span := tracing.Start(ctx, "read attachment", tracing.VolumeKey.String(volume))
	defer func() { tracing.End(span, err) }()
	v, err := s.readVolume(ctx, volume)
	if gone(err) {
		return attached{}, fmt.Errorf("%w: NvmfVolume %s is deleted", errNotAttached, volume)
	}
	if err != nil {
		return attached{}, err
	}
	traceObject(ctx, call, v)
	host := v1alpha1.HostNQN(attachment)
	listed := v.Listed(host)
	if listed == nil {
		return attached{}, fmt.Errorf("%w: attachment %s of volume %s has ended; delete the pod so that the volume is attached again", errNotAttached, attachment, volume)
	}
	at := attached{
		UUID: v.Spec.UUID, Attachment: attachment, Connection: v.Spec.Connection, Mirrored: v.Replicated(), Encryption: v.Spec.Encryption, TrailerBytes: v.TrailerBytes(),
		nodeUID: listed.NodeUID, access: listed.Access, source: v.Spec.Source, blank: true, allowFormat: v.Annotations[v1alpha1.AllowFormatAnnotation] == v.FormatPermission(host),
	}
	at.Connection.Transports = nil // those of the portals
	at.named(v)
	for _, member := range v.Spec.Members {
		if err := s.addReplica(ctx, &at, v, member); err != nil {
			return attached{}, err
		}
	}
	if len(at.Replicas) == 0 {
		return attached{}, fmt.Errorf("%w: volume %s has no NvmfReplica", errNotServed, volume)
	}
	return at, nil
}

// served is what a target serves for a volume with so many bytes of data.
func (a attached) served(dataBytes int64) int64 {
	return base{trailerBytes: a.TrailerBytes}.served(dataBytes)
}

// named takes over what people know the volume by.
func (a *attached) named(v *v1alpha1.NvmfVolume) {
	a.Target, a.Claim, a.ClaimNamespace = v.Spec.Target, v.Annotations[v1alpha1.PVCNameKey], v.Annotations[v1alpha1.PVCNamespaceKey]
}

// addReplica reads a member of a volume, and adds to an attachment how it is reached. It fails as attached does, and
// with errMismatch when the NvmfReplica is not that member.
func (s *Service) addReplica(ctx context.Context, at *attached, v *v1alpha1.NvmfVolume, member v1alpha1.VolumeMember) error {
	r, err := s.readReplica(ctx, member.Name)
	if at.Mirrored && gone(err) {
		return nil // the mirror's record says whether it is missed
	}
	if err != nil {
		return err
	}
	if r.Spec.Volume.Name != v.Name || r.Spec.Volume.UUID != v.Spec.UUID || r.Spec.UUID != member.UUID {
		return fmt.Errorf("%w: NvmfReplica %s has UUID %s and is of volume %s (%s), but NvmfVolume %s (%s) lists it as a member with UUID %s",
			errMismatch, r.Name, r.Spec.UUID, r.Spec.Volume.Name, r.Spec.Volume.UUID, v.Name, v.Spec.UUID, member.UUID)
	}
	if at.Mirrored {
		return s.addMember(v.Name, at, r)
	}
	if nqn := v1alpha1.SubsystemNQN(r.Name, v.Spec.Session); r.Spec.SubsystemNQN != nqn {
		return fmt.Errorf("%w: NvmfReplica %s has subsystem %q, but session %s of NvmfVolume %s has %s", errNotServed, r.Name, r.Spec.SubsystemNQN, v.Spec.Session, v.Name, nqn)
	}
	only, host, err := s.reached(v.Name, *at, r)
	if err != nil {
		return err
	}
	// As many bytes as its node serves: the volume's own size is what was asked for, and may not be there yet.
	if size := r.ServedSize(); len(at.Replicas) == 0 || size < at.SizeBytes {
		at.SizeBytes = size
	}
	at.written = at.written || r.Status.Written
	at.blank = at.blank && r.Admitted(host).Blank && !r.Status.Written
	at.Replicas = append(at.Replicas, only)
	return nil
}

// addMember adds a replica of a mirrored volume, as far as its object says how it is reached. One that this node is
// connected to stays so.
func (s *Service) addMember(volume string, at *attached, r *v1alpha1.NvmfReplica) error {
	if size := r.ServedSize(); len(at.Replicas) == 0 || size < at.SizeBytes {
		at.SizeBytes = size
	}
	at.written = at.written || r.Status.Written
	m := memberOf(r, at.Attachment)
	was, err := s.recorded(volume, *at, r)
	if err != nil {
		return err
	}
	// An identity that is not listed any more, as of a replica that was given up, is about to go.
	if was != nil && was.Identity != "" && r.Listed(at.host(*was)) != nil {
		m = m.connectedAs(*was).sealedFor(r, at.host(*was))
	}
	at.Replicas = append(at.Replicas, m)
	return nil
}

// connected replicas: those that this node has connected to since the volume was staged.
func (a attached) connected() []replica {
	return slices.DeleteFunc(slices.Clone(a.Replicas), func(r replica) bool { return r.NQN == "" })
}

// memberOf a mirrored volume, as an attachment reaches it now: without an identity where it is not admitted.
func memberOf(r *v1alpha1.NvmfReplica, attachment string) replica {
	m := replica{Name: r.Name, NGUID: nguidOf(r.Spec.UUID), Portals: r.Paths()}
	host := admittedHost(r, attachment)
	if host == "" {
		return m
	}
	m.NQN = r.Spec.SubsystemNQN
	m.Identity, _ = v1alpha1.AttachmentOfHost(host)
	m.blank = r.Admitted(host).Blank && !r.Status.Written
	m.Former = formerOf(r, attachment, host)
	return m.sealedFor(r, host)
}

// sealedFor is the replica with the keys that are sealed for a host that is admitted.
func (m replica) sealedFor(r *v1alpha1.NvmfReplica, host string) replica {
	if h := r.Listed(host); h != nil {
		m.Sealed, m.keys = h.SealedKeys, &r.Admitted(host).Keys
	}
	return m
}

// served fails with errNotServed when a replica's node does not say that a host may connect, and where.
func served(r *v1alpha1.NvmfReplica, host string) error {
	switch {
	case r.Admitted(host) == nil:
		identity, _ := v1alpha1.AttachmentOfHost(host)
		return fmt.Errorf("%w: node %s does not admit attachment %s to NvmfReplica %s yet", errNotServed, r.Spec.Node, identity, r.Name)
	case len(r.Paths()) == 0:
		return fmt.Errorf("%w: node %s has no portal of %v for NvmfReplica %s", errNotServed, r.Spec.Node, r.Spec.Connection.Transports, r.Name)
	default:
		return nil
	}
}

// decode reads the publish context of a volume, which names its attachment.
func decode(m map[string]string) (attachment string, err error) {
	c, err := publishcontext.Decode(m)
	if err != nil {
		return "", invalid("%v", err)
	}
	return c.Attachment, nil
}

// traceObject names the claim of a volume in the span of a call, and links it to the call that has written the volume
// last: as a rule the one that has attached it to this node.
func traceObject(ctx context.Context, call trace.Span, v *v1alpha1.NvmfVolume) {
	if !call.IsRecording() {
		return
	}
	if claim, ok := tracing.Claim(v1alpha1.ClaimOf(v)); ok {
		call.SetAttributes(claim)
	}
	if cause := tracing.FromParent(ctx, v.Annotations[v1alpha1.TraceParentKey]); cause.IsValid() {
		call.AddLink(trace.Link{SpanContext: cause})
	}
}
