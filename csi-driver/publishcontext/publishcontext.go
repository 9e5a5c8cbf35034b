// SPDX-License-Identifier: Apache-2.0

// Package publishcontext is what the CSI controller tells a node about a volume that it may connect to, CSI's publish
// context, and what else both must say alike. The controller encodes the context, the node decodes it; it holds no
// secret.
package publishcontext

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// Keys of the publish context. Portals are written as TCP://10.0.0.1:4420, separated by commas.
const (
	keyNQN             = "nqn"
	keyNGUID           = "nguid"
	keyAttachment      = "attachment"
	keySize            = "size"
	keyBlank           = "blank"
	keyAllowFormat     = "allowFormat"
	keyPortals         = "portals"
	keyIOQueues        = "ioQueues"
	keyQueueDepth      = "queueDepth"
	keyCtrlLossTimeout = "ctrlLossTimeout"
)

// Context is what a node must know to connect a volume.
type Context struct {
	// NQN of the subsystem and NGUID of the namespace (32 lower-case hexadecimal digits): together
	// they identify the volume.
	NQN, NGUID string
	// Attachment tells the volume's attachments apart: its generation when this node was admitted. A publish that is
	// repeated may give another.
	Attachment int64
	// SizeBytes of the namespace at the time it was published; it may have grown since.
	SizeBytes int64
	// Blank says that the volume had never been written when this node was admitted.
	Blank bool
	// AllowFormat says that an administrator gave up what the volume holds.
	AllowFormat bool
	// Portals to connect to, at least one; with several, the kernel's multipath uses them all.
	Portals []v1alpha1.Portal
	// Connection settings of the volume; which transports it uses is in Portals alone.
	v1alpha1.Connection
}

// MayFormat tells whether the node may format the volume, once in this attachment.
func (c Context) MayFormat() bool { return c.Blank || c.AllowFormat }

// Encode writes c as a publish context.
func (c Context) Encode() map[string]string {
	portals := make([]string, len(c.Portals))
	for i, p := range c.Portals {
		portals[i] = string(p.Transport) + "://" + net.JoinHostPort(p.Address, strconv.Itoa(int(p.Port)))
	}
	return map[string]string{
		keyNQN:             c.NQN,
		keyNGUID:           c.NGUID,
		keyAttachment:      strconv.FormatInt(c.Attachment, 10),
		keySize:            strconv.FormatInt(c.SizeBytes, 10),
		keyBlank:           strconv.FormatBool(c.Blank),
		keyAllowFormat:     strconv.FormatBool(c.AllowFormat),
		keyPortals:         strings.Join(portals, ","),
		keyIOQueues:        strconv.Itoa(int(c.IOQueues)),
		keyQueueDepth:      strconv.Itoa(int(c.QueueDepth)),
		keyCtrlLossTimeout: strconv.Itoa(int(c.CtrlLossTimeoutSeconds)),
	}
}

// Decode reads a publish context. It fails, naming the key, when one is missing or malformed:
// a node must never guess what it connects to, nor whether it may format.
func Decode(m map[string]string) (Context, error) {
	d := decoder{m: m}
	c := Context{
		NQN:         d.text(keyNQN),
		NGUID:       d.text(keyNGUID),
		Attachment:  d.integer(keyAttachment, 64),
		SizeBytes:   d.integer(keySize, 64),
		Blank:       d.boolean(keyBlank),
		AllowFormat: d.boolean(keyAllowFormat),
		Portals:     d.portals(keyPortals),
		Connection: v1alpha1.Connection{
			IOQueues:               int32(d.integer(keyIOQueues, 32)),
			QueueDepth:             int32(d.integer(keyQueueDepth, 32)),
			CtrlLossTimeoutSeconds: int32(d.integer(keyCtrlLossTimeout, 32)),
		},
	}
	if err := errors.Join(d.errs...); err != nil {
		return Context{}, err
	}
	return c, nil
}

type decoder struct {
	m    map[string]string
	errs []error
}

func (d *decoder) text(key string) string {
	v := d.m[key]
	if v == "" {
		d.errs = append(d.errs, fmt.Errorf("publish context: %s is missing", key))
	}
	return v
}

func (d *decoder) integer(key string, bits int) int64 {
	v := d.text(key)
	if v == "" {
		return 0
	}
	n, err := strconv.ParseInt(v, 10, bits)
	if err != nil {
		d.errs = append(d.errs, fmt.Errorf("publish context: %s: %w", key, err))
	}
	return n
}

func (d *decoder) boolean(key string) bool {
	v := d.text(key)
	if v == "" {
		return false
	}
	b, err := strconv.ParseBool(v)
	if err != nil {
		d.errs = append(d.errs, fmt.Errorf("publish context: %s: %w", key, err))
	}
	return b
}

func (d *decoder) portals(key string) []v1alpha1.Portal {
	v := d.text(key)
	if v == "" {
		return nil
	}
	var portals []v1alpha1.Portal
	for _, s := range strings.Split(v, ",") {
		p, err := parsePortal(s)
		if err != nil {
			d.errs = append(d.errs, fmt.Errorf("publish context: %s: %w", key, err))
			continue
		}
		portals = append(portals, p)
	}
	return portals
}

func parsePortal(s string) (v1alpha1.Portal, error) {
	transport, hostPort, ok := strings.Cut(s, "://")
	if !ok {
		return v1alpha1.Portal{}, fmt.Errorf("%q is not a portal such as TCP://10.0.0.1:4420", s)
	}
	host, port, err := net.SplitHostPort(hostPort)
	if err != nil {
		return v1alpha1.Portal{}, fmt.Errorf("portal %q: %w", s, err)
	}
	if net.ParseIP(host) == nil {
		return v1alpha1.Portal{}, fmt.Errorf("portal %q: %q is not an IP address", s, host)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return v1alpha1.Portal{}, fmt.Errorf("portal %q: %w", s, err)
	}
	t := v1alpha1.TransportType(transport)
	if t != v1alpha1.TransportTCP && t != v1alpha1.TransportRDMA {
		return v1alpha1.Portal{}, fmt.Errorf("portal %q: transport must be TCP or RDMA", s)
	}
	return v1alpha1.Portal{Transport: t, Address: host, Port: int32(n)}, nil
}
