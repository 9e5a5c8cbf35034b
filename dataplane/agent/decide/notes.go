// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"regexp"
	"slices"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
)

// Note is what is stored with the data of a replica or snapshot, so that its objects can be made again when they are
// lost. Nothing that is served follows from it, and it has neither hosts nor keys.
type Note struct {
	Kind v1alpha1.OrphanKind `json:"kind"`
	// Name of its object; Replica is that of a snapshot's replica.
	Name        string                     `json:"name"`
	Replica     string                     `json:"replica,omitempty"`
	Description v1alpha1.OrphanDescription `json:"description"`
}

// noteFormat of what Encode writes. What a later version writes and this one would not understand has a higher one.
const noteFormat = 1

// Why a note says nothing.
var (
	errNoteDamaged = errors.New("the description that was stored with the data is damaged")
	errNoteLater   = errors.New("the description that was stored with the data is of a later version of weft")
)

type noteFile struct {
	Format int `json:"format"`
	// CRC32C of Note, as it is written.
	CRC32C string          `json:"crc32c"`
	Note   json.RawMessage `json:"note"`
}

func noteSum(text []byte) string {
	return fmt.Sprintf("%08x", crc32.Checksum(text, crc32.MakeTable(crc32.Castagnoli)))
}

// Encode a note as it is stored.
func (n Note) Encode() ([]byte, error) {
	text, err := json.Marshal(n)
	if err == nil {
		text, err = json.Marshal(noteFile{Format: noteFormat, CRC32C: noteSum(text), Note: text})
	}
	if err != nil {
		return nil, fmt.Errorf("encode the note about %s %s: %w", n.Kind, n.Name, err)
	}
	return text, nil
}

// DecodeNote that was stored. A drive can come from anywhere: what a status could not have is damaged, too.
func DecodeNote(stored []byte) (Note, error) {
	var file noteFile
	var n Note
	// Three bytes would stand for each one that is not UTF-8.
	if !utf8.Valid(stored) || json.Unmarshal(stored, &file) != nil {
		return n, errNoteDamaged
	}
	if file.Format > noteFormat {
		return n, errNoteLater
	}
	var is storedNote
	if file.CRC32C != noteSum(file.Note) || json.Unmarshal(file.Note, &is) != nil {
		return n, errNoteDamaged
	}
	n = is.Note
	n.Description = is.Description.OrphanDescription
	if is.Description.Size != nil {
		n.Description.Size = &is.Description.Size.Quantity
	}
	if !n.fits() {
		return Note{}, errNoteDamaged
	}
	return n, nil
}

// storedNote is a Note whose size is looked at before it is decoded.
type storedNote struct {
	Note
	Description struct {
		v1alpha1.OrphanDescription
		Size *storedSize `json:"size,omitempty"`
	} `json:"description"`
}

// storedSize has no long exponent: a quantity with one takes hours and gigabytes to decode or to compare.
type storedSize struct{ resource.Quantity }

var plainSize = regexp.MustCompile(`^"[0-9]{1,19}([kMGTPE]|[KMGTPE]i|[eE][0-9]{1,2})?"$`)

// UnmarshalJSON implements json.Unmarshaler.
func (s *storedSize) UnmarshalJSON(text []byte) error {
	if !plainSize.Match(text) {
		return errNoteDamaged
	}
	return s.Quantity.UnmarshalJSON(text)
}

// fits tells whether a status can have what the note says: config/crd has these bounds.
func (n *Note) fits() bool {
	d := &n.Description
	fits := (n.Kind == v1alpha1.OrphanReplica || n.Kind == v1alpha1.OrphanSnapshot) && namesFit(validation.DNS1123SubdomainMaxLength, n.Name, n.Replica, d.Volume, d.SourceVolume, d.SourceSnapshot) &&
		namesFit(validation.DNS1123LabelMaxLength, d.Target, d.DeviceClass) && namesFit(v1alpha1.MaxUUID, d.VolumeUUID) && namesFit(v1alpha1.MaxDescribedUID, d.VolumeUID) && namesFit(v1alpha1.MaxZoneLabel, d.ZoneLabel) &&
		(d.Size == nil || d.Size.Sign() > 0) && d.VolumeGeneration >= 0 && d.Replicas >= 0 && d.Replicas <= v1alpha1.MaxReplicas && (d.Encryption == "" || d.Encryption == v1alpha1.EncryptionLUKS2) &&
		len(d.Members) <= v1alpha1.MaxVolumeMembers && len(d.Zones) <= v1alpha1.MaxZones && namesFit(validation.DNS1123LabelMaxLength, d.Zones...) && connectionFits(d.Connection) && qosFits(d.QoS)
	for _, m := range d.Members {
		fits = fits && m.Name != "" && m.Node != "" && namesFit(v1alpha1.MaxMemberName, m.Name) && namesFit(validation.DNS1123SubdomainMaxLength, m.Node) && engine.ID(m.UUID).Validate() == nil
	}
	pv := d.PersistentVolume
	if pv == nil {
		return fits
	}
	for _, s := range []*v1alpha1.DescribedSecret{pv.StageSecret, pv.PublishSecret} {
		fits = fits && (s == nil || namesFit(validation.DNS1123LabelMaxLength, s.Namespace) && namesFit(validation.DNS1123SubdomainMaxLength, s.Name))
	}
	return fits && pv.Name != "" && namesFit(validation.DNS1123SubdomainMaxLength, pv.Name, pv.ClaimName, pv.StorageClass) && namesFit(validation.DNS1123LabelMaxLength, pv.ClaimNamespace) &&
		namesFit(v1alpha1.MaxDescribedWord, pv.ReclaimPolicy, pv.VolumeMode) && namesFit(v1alpha1.MaxDescribedFSType, pv.FSType) && len(pv.AccessModes) <= v1alpha1.MaxDescribedModes && namesFit(v1alpha1.MaxDescribedMode, pv.AccessModes...) &&
		len(pv.MountOptions) <= v1alpha1.MaxDescribedOptions && namesFit(v1alpha1.MaxDescribedOption, pv.MountOptions...)
}

func namesFit(most int, names ...string) bool {
	return !slices.ContainsFunc(names, func(name string) bool { return len(name) > most })
}

func connectionFits(c *v1alpha1.Connection) bool {
	if c == nil {
		return true
	}
	known := []v1alpha1.TransportType{v1alpha1.TransportTCP, v1alpha1.TransportRDMA}
	unknown := slices.ContainsFunc(c.Transports, func(t v1alpha1.TransportType) bool { return !slices.Contains(known, t) })
	twice := len(c.Transports) == 2 && c.Transports[0] == c.Transports[1]
	return len(c.Transports) > 0 && len(c.Transports) <= len(known) && !unknown && !twice && c.IOQueues >= v1alpha1.MinIOQueues && c.IOQueues <= v1alpha1.MaxIOQueues &&
		c.QueueDepth >= v1alpha1.MinQueueDepth && c.QueueDepth <= v1alpha1.MaxQueueDepth &&
		c.CtrlLossTimeoutSeconds >= v1alpha1.CtrlLossTimeoutForever && c.CtrlLossTimeoutSeconds <= v1alpha1.MaxCtrlLossTimeoutSeconds && c.CtrlLossTimeoutSeconds != 0
}

func qosFits(q *v1alpha1.VolumeQoS) bool {
	if q == nil {
		return true
	}
	within := func(limit *int64, least, most int64) bool { return limit == nil || *limit >= least && *limit <= most }
	fits := within(q.IOPS, v1alpha1.QoSIOPSStep, v1alpha1.QoSMaxIOPS) && (q.IOPS == nil || *q.IOPS%v1alpha1.QoSIOPSStep == 0)
	for _, limit := range []*int64{q.BandwidthMiBps, q.ReadBandwidthMiBps, q.WriteBandwidthMiBps} {
		fits = fits && within(limit, 1, v1alpha1.QoSMaxBandwidthMiBps)
	}
	return fits
}

// Says tells whether a note says all that another does. That it follows a later generation of the same volume, which
// said nothing new, makes no difference.
func (n Note) Says(other Note) bool {
	if n.Description.VolumeUID == other.Description.VolumeUID {
		n.Description.VolumeGeneration = other.Description.VolumeGeneration
	}
	return Same(n, other)
}

// NoteRef is a replica or snapshot that a note is about. Its object is nil if it has none, or loses it.
type NoteRef struct {
	ID       engine.ID
	Pool     string
	Replica  *v1alpha1.NvmfReplica
	Snapshot *v1alpha1.NvmfSnapshot
}

// Version of the object.
func (r NoteRef) Version() (types.UID, int64) {
	if r.Snapshot != nil {
		return r.Snapshot.UID, r.Snapshot.Generation
	}
	return r.Replica.UID, r.Replica.Generation
}

// Note that the object gives.
func (r NoteRef) Note() Note {
	if s := r.Snapshot; s != nil {
		return Note{Kind: v1alpha1.OrphanSnapshot, Name: s.Name, Replica: s.Spec.Replica, Description: v1alpha1.OrphanDescription{
			Volume: s.Spec.Volume, Used: s.Spec.Taken, VolumeDescription: v1alpha1.VolumeDescription{Encryption: s.Spec.Encryption, Trailer: s.Spec.Trailer},
		}}
	}
	spec := &r.Replica.Spec
	d := v1alpha1.OrphanDescription{
		Volume: spec.Volume.Name, VolumeUUID: spec.Volume.UUID, VolumeUID: spec.VolumeUID, VolumeGeneration: spec.VolumeGeneration,
		Target: spec.Target, Size: &spec.Size, DeviceClass: spec.DeviceClass, Connection: &spec.Connection, QoS: spec.QoS, Used: spec.Used,
	}
	if spec.Description != nil {
		d.VolumeDescription = *spec.Description
	}
	return Note{Kind: v1alpha1.OrphanReplica, Name: r.Replica.Name, Description: d}
}

// Notes to be kept, and those that the node's status shows.
type Notes struct {
	// Keep a note about each of these: what the engine has, and has an object that is of now.
	Keep []NoteRef
	// Show the notes about these: what is listed as an orphan.
	Show []NoteRef
}

// FoundNote is a note that was read, or why it was not.
type FoundNote struct {
	Note Note
	// Err says why there is none; empty when there is one.
	Err string
}

// decideNotes of all that is there and has an object. One that may be from the past says nothing new.
func (d *decider) decideNotes() {
	notes := &d.decision.Notes
	for _, v := range d.volumes {
		if v.presence == present && v.suspect == "" && v.rival == "" && !v.deleting {
			notes.Keep = append(notes.Keep, NoteRef{ID: v.id, Pool: v.found.Pool, Replica: v.obj})
		}
	}
	for _, s := range d.snapshots {
		if s.presence == present && s.suspect == "" && s.rival == "" && !s.deleting {
			notes.Keep = append(notes.Keep, NoteRef{ID: s.id, Pool: s.found.Pool, Snapshot: s.obj})
		}
	}
}

const (
	// undescribedBytes is what undescribed takes that says that there is no room.
	undescribedBytes = 95
	// orphanFieldsBytes is the most that the API server adds for one orphan to metadata.managedFields, which is 225,
	// and undescribedBytes.
	orphanFieldsBytes = 225 + undescribedBytes
)

// bytesOfOrphan as it is stored: more than a note has that says the same, because Go escapes some characters by six.
func bytesOfOrphan(o *v1alpha1.Orphan) int {
	text, err := json.Marshal(o)
	if err != nil {
		return v1alpha1.MaxOrphanDescriptions + 1
	}
	return len(text)
}

// describe orphans by the notes about them, as far as a status has room for that. What is described keeps its place, so
// the same ones are, until some are recovered.
func (d *decider) describe(orphans []v1alpha1.Orphan) {
	room := v1alpha1.MaxOrphanDescriptions
	for i := range orphans {
		o := &orphans[i]
		if d.known(o.Device) { // else it stays as it was last seen
			o.Description, o.Undescribed = nil, ""
		}
		room -= bytesOfOrphan(o) + orphanFieldsBytes
	}
	for i := range orphans {
		o := &orphans[i]
		if !d.known(o.Device) {
			continue
		}
		id := engine.ID(o.UUID)
		d.decision.Notes.Show = append(d.decision.Notes.Show, NoteRef{ID: id, Pool: o.Device})
		found, read := d.Notes[id]
		switch {
		case !read:
			found.Err = v1alpha1.UndescribedNotRead
		case found.Err == "" && found.Note.Kind != o.Kind:
			found.Err = errNoteDamaged.Error()
		}
		before := bytesOfOrphan(o)
		if found.Err != "" {
			o.Undescribed = found.Err
			room -= max(0, bytesOfOrphan(o)-before-undescribedBytes)
			continue
		}
		described := *o
		described.Name, described.Replica = cmp.Or(o.Name, found.Note.Name), cmp.Or(o.Replica, found.Note.Replica)
		described.Description = found.Note.Description.DeepCopy()
		more := bytesOfOrphan(&described) - before
		if more > room {
			o.Undescribed = v1alpha1.UndescribedNoRoom
			continue
		}
		room -= more
		*o = described
	}
}
