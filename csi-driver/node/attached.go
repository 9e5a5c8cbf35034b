// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
	"github.com/weft-storage/weft/csi-driver/publishcontext"
)

// readTimeout bounds one read of a volume's object.
const readTimeout = 5 * time.Second

// attached is an attachment of a volume to this node: what must be known to connect it.
type attached struct {
	// NQN of the subsystem and NGUID of the namespace (32 lower-case hexadecimal digits): together
	// they identify the volume.
	NQN   string `json:"nqn"`
	NGUID string `json:"nguid"`
	// Attachment is its UUID: the host connects as v1alpha1.HostNQN(Attachment).
	Attachment string `json:"attachment"`
	// SizeBytes of data that were served when it was read; the volume may have grown since.
	SizeBytes int64 `json:"sizeBytes"`
	// Portals to connect to, at least one; with several, the kernel's multipath uses them all.
	Portals []v1alpha1.Portal `json:"portals"`
	// Connection settings of the volume; which transports it uses is in Portals alone.
	Connection v1alpha1.Connection `json:"connection"`

	// Staging is the path where the volume is staged. Absent in records of earlier versions.
	Staging string `json:"staging,omitempty"`

	// nodeUID of the Kubernetes Node that the volume was attached to.
	nodeUID string
	// written says that something was written to the volume, by its agent's word of this moment.
	written bool
	// blank says that nothing was, nor when this node was admitted, as the only one.
	blank bool
	// source of the volume's first data; nil for none.
	source *v1alpha1.VolumeSource
	// allowFormat says that an administrator gave up what the volume holds.
	allowFormat bool
}

func (a attached) id() fabrics.ID { return fabrics.ID{NQN: a.NQN, NGUID: a.NGUID} }

func (a attached) connection() fabrics.Connection {
	return fabrics.Connection{NQN: a.NQN, HostNQN: v1alpha1.HostNQN(a.Attachment), Portals: a.Portals, Connection: a.Connection}
}

// nguidOf a volume, by its UUID.
func nguidOf(uuid string) string { return strings.ReplaceAll(uuid, "-", "") }

// read a volume's object from the API server. It fails with errUnread.
func (s *Service) read(ctx context.Context, volume string) (*v1alpha1.NvmfVolume, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	var v v1alpha1.NvmfVolume
	if err := s.Volumes.Get(ctx, client.ObjectKey{Name: volume}, &v); err != nil {
		return nil, fmt.Errorf("%w: NvmfVolume %s: %w", errUnread, volume, err)
	}
	return &v, nil
}

// attached reads what an attachment of a volume is now. It fails with errUnread when that cannot be read, with
// errNotAttached when the attachment has ended, and with errNotServed when the volume's node does not say yet how this
// node reaches it.
func (s *Service) attached(ctx context.Context, volume, attachment string) (attached, error) {
	v, err := s.read(ctx, volume)
	if err != nil {
		return attached{}, err
	}
	host := v1alpha1.HostNQN(attachment)
	listed, admitted := v.Listed(host), v.Admitted(host)
	switch {
	case listed == nil:
		return attached{}, fmt.Errorf("%w: attachment %s of volume %s has ended; delete the pod so that the volume is attached again", errNotAttached, attachment, volume)
	case admitted == nil:
		return attached{}, fmt.Errorf("%w: node %s does not admit attachment %s yet", errNotServed, v.Spec.Node, attachment)
	case len(v.Paths()) == 0:
		return attached{}, fmt.Errorf("%w: node %s has no portal of %v", errNotServed, v.Spec.Node, v.Spec.Connection.Transports)
	}
	if of, ours := v1alpha1.VolumeOfSubsystem(v.CurrentSubsystem()); !ours || of != volume {
		return attached{}, invalid("subsystem %s is not of volume %s", v.CurrentSubsystem(), volume)
	}
	connection := v.Spec.Connection
	connection.Transports = nil // those of the portals
	return attached{
		NQN: v.CurrentSubsystem(), NGUID: nguidOf(v.Spec.UUID), Attachment: attachment, SizeBytes: v.ServedSize(),
		Portals: v.Paths(), Connection: connection,
		nodeUID: listed.NodeUID, source: v.Spec.Source, written: v.Status.Written, blank: admitted.Blank && !v.Status.Written, allowFormat: v.Annotations[v1alpha1.AllowFormatAnnotation] == v.FormatPermission(host),
	}, nil
}

// decode reads the publish context of a volume, which names its attachment.
func decode(m map[string]string) (attachment string, err error) {
	c, err := publishcontext.Decode(m)
	if err != nil {
		return "", invalid("%v", err)
	}
	return c.Attachment, nil
}
