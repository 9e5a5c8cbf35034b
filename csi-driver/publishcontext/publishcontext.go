// SPDX-License-Identifier: Apache-2.0

// Package publishcontext is what the CSI controller tells a node about a volume that it may connect to, CSI's publish
// context, and what else both must say alike. The controller encodes the context, the node decodes it; it holds no
// secret.
package publishcontext

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/google/uuid"
)

// Versions of the publish context. A node takes contexts of these, with whatever keys it does not know: a key that is
// added later must not be needed for a volume to be used safely. What it must not misunderstand gets another version.
// All have the same keys.
const (
	// Version of the context of a volume that every node plugin can use.
	Version = 1
	// VersionEncrypted is of an encrypted volume: a node plugin that does not know encryption must not stage it,
	// because it would format it as it is.
	VersionEncrypted = 2
	// VersionTrailer is of a volume with a trailer, and VersionEncryptedTrailer of one that is encrypted, too: a node
	// plugin that does not know trailers must not stage it, because it would let a filesystem grow into that.
	VersionTrailer          = 3
	VersionEncryptedTrailer = 4
)

// versions by what their volumes have.
var versions = map[int]Context{
	Version: {}, VersionEncrypted: {Encrypted: true}, VersionTrailer: {Trailer: true}, VersionEncryptedTrailer: {Encrypted: true, Trailer: true},
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
		if of.Encrypted == c.Encrypted && of.Trailer == c.Trailer {
			m[keyVersion] = strconv.Itoa(version)
		}
	}
	return m
}

// Decode reads a publish context. It fails, naming the key, when the attachment is missing or malformed, and with
// ErrVersion when the context is of another version.
func Decode(m map[string]string) (Context, error) {
	number, err := strconv.Atoi(m[keyVersion])
	c, known := versions[number]
	if err != nil || !known {
		return Context{}, fmt.Errorf("%w: version %q, but this node plugin supports %d to %d: install the same version of weft's controller and node plugin, then delete the pod so that the volume is attached again", ErrVersion, m[keyVersion], Version, VersionEncryptedTrailer)
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
