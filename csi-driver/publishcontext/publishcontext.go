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

// Version of the publish context. A node takes contexts of this version and of VersionEncrypted, with whatever keys it
// does not know: a key that is added later must not be needed for a volume to be used safely. What it must not
// misunderstand gets another version.
const Version = 1

// VersionEncrypted is the version of the context of an encrypted volume. It has the same keys: a node plugin that does
// not know encryption must not stage the volume, because it would format it as it is.
const VersionEncrypted = 2

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
}

// Encode writes c as a publish context.
func (c Context) Encode() map[string]string {
	version := Version
	if c.Encrypted {
		version = VersionEncrypted
	}
	return map[string]string{keyVersion: strconv.Itoa(version), keyAttachment: c.Attachment}
}

// Decode reads a publish context. It fails, naming the key, when the attachment is missing or malformed, and with
// ErrVersion when the context is of another version.
func Decode(m map[string]string) (Context, error) {
	version := m[keyVersion]
	if version != strconv.Itoa(Version) && version != strconv.Itoa(VersionEncrypted) {
		return Context{}, fmt.Errorf("%w: version %q, but this node plugin supports %d and %d: install the same version of weft's controller and node plugin, then delete the pod so that the volume is attached again", ErrVersion, version, Version, VersionEncrypted)
	}
	c := Context{Attachment: m[keyAttachment], Encrypted: version == strconv.Itoa(VersionEncrypted)}
	if c.Attachment == "" {
		return Context{}, fmt.Errorf("publish context: %s is missing", keyAttachment)
	}
	if parsed, err := uuid.Parse(c.Attachment); err != nil || parsed.String() != c.Attachment {
		return Context{}, fmt.Errorf("publish context: %s: %q is not a UUID in lower case with hyphens", keyAttachment, c.Attachment)
	}
	return c, nil
}
