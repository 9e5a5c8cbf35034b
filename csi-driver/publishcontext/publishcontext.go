// SPDX-License-Identifier: Apache-2.0

// Package publishcontext is what the CSI controller tells a node about a volume that it may connect to, CSI's publish
// context, and what else both must say alike. The controller encodes the context, the node decodes it; it holds no
// secret.
package publishcontext

import (
	"errors"
	"fmt"

	"github.com/google/uuid"
)

// versions of the publish context, by what their volumes have. A node takes contexts of these, with whatever keys it
// does not know: a key that is added later must not be needed for a volume to be used safely. What it must not
// misunderstand gets another version. All have the same keys.
var versions = map[string]Context{
	"1": {},
	// A node plugin that does not know encryption must not stage the volume: it would format it as it is.
	"2": {Encrypted: true},
	// One that does not know trailers must not, either: it would let a filesystem grow into the trailer.
	"3": {Trailer: true},
	"4": {Encrypted: true, Trailer: true},
}

// Keys of the publish context.
const (
	keyVersion    = "version"
	keyAttachment = "attachment"
)

// ErrVersion says that a publish context is of a version that this program does not know.
var ErrVersion = errors.New("publish context has an unsupported version")

// Context names an attachment of a volume to a node. All else (portals, size, settings) the node reads from the
// volume's object: it may change while the volume is attached, and a publish context cannot.
type Context struct {
	// Attachment is the UUID of the attachment: the node connects as v1alpha1.HostNQN(Attachment).
	Attachment string
	// Encrypted: the volume's data are encrypted by the node.
	Encrypted bool
	// Trailer: the volume's data end before a trailer.
	Trailer bool
}

// Encode writes c as a publish context.
func (c Context) Encode() map[string]string {
	m := map[string]string{keyAttachment: c.Attachment}
	for version, of := range versions {
		of.Attachment = c.Attachment
		if of == c {
			m[keyVersion] = version
		}
	}
	return m
}

// Decode reads a publish context. It fails, naming the key, when the attachment is missing or malformed, and with
// ErrVersion when the context is of another version.
func Decode(m map[string]string) (Context, error) {
	c, known := versions[m[keyVersion]]
	if !known {
		return Context{}, fmt.Errorf("%w: version %q, but this node plugin supports 1 to %d: install the same version of weft's controller and node plugin, then delete the pod so that the volume is attached again", ErrVersion, m[keyVersion], len(versions))
	}
	c.Attachment = m[keyAttachment]
	if c.Attachment == "" {
		return Context{}, fmt.Errorf("publish context: %s is missing", keyAttachment)
	}
	if parsed, err := uuid.Parse(c.Attachment); err != nil || parsed.String() != c.Attachment {
		return Context{}, fmt.Errorf("publish context: %s: %q is not a UUID in lower case with hyphens", keyAttachment, c.Attachment)
	}
	return c, nil
}
