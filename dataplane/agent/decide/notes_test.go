// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
)

func fullNote() Note {
	return Note{Kind: v1alpha1.OrphanReplica, Name: "v-0", Description: v1alpha1.OrphanDescription{
		Volume: "v", VolumeUUID: "u", VolumeUID: "1", VolumeGeneration: 7, Target: "fast", Size: new(resource.MustParse("1Gi")), Used: true,
		Connection: &v1alpha1.Connection{Transports: []v1alpha1.TransportType{v1alpha1.TransportTCP}, IOQueues: 2, QueueDepth: 128, CtrlLossTimeoutSeconds: -1},
		QoS:        &v1alpha1.VolumeQoS{IOPS: new(int64(2000))},
		VolumeDescription: v1alpha1.VolumeDescription{
			Replicas: 1, Members: []v1alpha1.VolumeMember{{Name: "v-0", UUID: "00000000-0000-4000-8000-000000000001", Node: "a"}}, Zones: []string{"z"}, Encryption: v1alpha1.EncryptionLUKS2, Trailer: true,
			PersistentVolume: &v1alpha1.PersistentVolumeDescription{Name: "pv", MountOptions: []string{"noatime"}, StageSecret: &v1alpha1.DescribedSecret{Namespace: "n", Name: "s"}},
		},
	}}
}

func encoded(t *testing.T, n Note) []byte {
	t.Helper()
	text, err := n.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestNotesAreStored(t *testing.T) {
	note := fullNote()
	is, err := DecodeNote(encoded(t, note))
	if err != nil || !equality.Semantic.DeepEqual(is, note) {
		t.Fatalf("got %+v, %v", is, err)
	}
	// Any byte that changes is noticed, or changes nothing.
	stored := encoded(t, note)
	for i := range stored {
		damaged := slices.Clone(stored)
		damaged[i] ^= 1
		if is, err := DecodeNote(damaged); err == nil && !equality.Semantic.DeepEqual(is, note) {
			t.Errorf("with byte %d changed (%q) it says %+v", i, stored[i], is)
		}
	}
	for length := range stored {
		if _, err := DecodeNote(stored[:length]); err == nil {
			t.Errorf("%d bytes of it are taken", length)
		}
	}
}

// A drive can come from anybody: what its notes say never keeps a node's status from being written.
func TestNotesThatAStatusCannotHave(t *testing.T) {
	long := strings.Repeat("x", 254)
	for name, change := range map[string]func(*Note){
		"kind":          func(n *Note) { n.Kind = "Pod" },
		"name":          func(n *Note) { n.Name = long },
		"replica":       func(n *Note) { n.Replica = long },
		"volume":        func(n *Note) { n.Description.Volume = long },
		"UUID":          func(n *Note) { n.Description.VolumeUUID = long },
		"UID":           func(n *Note) { n.Description.VolumeUID = long },
		"generation":    func(n *Note) { n.Description.VolumeGeneration = -1 },
		"target":        func(n *Note) { n.Description.Target = long },
		"class":         func(n *Note) { n.Description.DeviceClass = long },
		"source":        func(n *Note) { n.Description.SourceSnapshot = long },
		"replicas":      func(n *Note) { n.Description.Replicas = 3 },
		"encryption":    func(n *Note) { n.Description.Encryption = "ROT13" },
		"zones":         func(n *Note) { n.Description.Zones = slices.Repeat([]string{"z"}, 65) },
		"zone":          func(n *Note) { n.Description.Zones = []string{long} },
		"member's UUID": func(n *Note) { n.Description.Members[0].UUID = "u" },
		"member's name": func(n *Note) { n.Description.Members[0].Name = "" },
		"members":       func(n *Note) { n.Description.Members = slices.Repeat(n.Description.Members, 5) },
		"transport":     func(n *Note) { n.Description.Connection.Transports = []v1alpha1.TransportType{"FC"} },
		"transports": func(n *Note) {
			n.Description.Connection.Transports = slices.Repeat(n.Description.Connection.Transports, 2)
		},
		"queues":          func(n *Note) { n.Description.Connection.IOQueues = 0 },
		"depth":           func(n *Note) { n.Description.Connection.QueueDepth = 1 },
		"timeout":         func(n *Note) { n.Description.Connection.CtrlLossTimeoutSeconds = 0 },
		"IOPS":            func(n *Note) { n.Description.QoS.IOPS = new(int64(1500)) },
		"bandwidth":       func(n *Note) { n.Description.QoS.BandwidthMiBps = new(int64(0)) },
		"PV's name":       func(n *Note) { n.Description.PersistentVolume.Name = "" },
		"claim":           func(n *Note) { n.Description.PersistentVolume.ClaimName = long },
		"claim's home":    func(n *Note) { n.Description.PersistentVolume.ClaimNamespace = long },
		"secret":          func(n *Note) { n.Description.PersistentVolume.StageSecret.Name = long },
		"mode":            func(n *Note) { n.Description.PersistentVolume.AccessModes = []string{long} },
		"mount option":    func(n *Note) { n.Description.PersistentVolume.MountOptions = []string{long} },
		"mount options":   func(n *Note) { n.Description.PersistentVolume.MountOptions = slices.Repeat([]string{"x"}, 17) },
		"filesystem type": func(n *Note) { n.Description.PersistentVolume.FSType = long },
	} {
		note := fullNote()
		change(&note)
		if _, err := DecodeNote(encoded(t, note)); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
	later, err := json.Marshal(noteFile{Format: noteFormat + 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := DecodeNote(later); err == nil || err.Error() != errNoteLater.Error() {
		t.Errorf("got %v", err)
	}
}

func TestNotesThatSayTheSame(t *testing.T) {
	note, later, other, changed := fullNote(), fullNote(), fullNote(), fullNote()
	later.Description.VolumeGeneration = 9
	other.Description.VolumeUID = "2"
	changed.Description.PersistentVolume.ClaimName = "another"
	if !note.Says(later) || note.Says(other) || note.Says(changed) {
		t.Error("a change is not noticed, or something is taken for one")
	}
}

// A status has so many bytes: descriptions that do not fit follow when others are recovered. What counts is how it is
// stored there, not on the drive.
func TestDescriptionsFitIntoAStatus(t *testing.T) {
	d := &decider{Observed: Observed{Notes: map[engine.ID]FoundNote{}}}
	note := fullNote()
	note.Description.PersistentVolume.MountOptions = slices.Repeat([]string{strings.Repeat("<", v1alpha1.MaxDescribedOption)}, v1alpha1.MaxDescribedOptions)
	var orphans []v1alpha1.Orphan
	for n := range v1alpha1.MaxOrphans {
		d.Notes[id(n)] = FoundNote{Note: note}
		orphans = append(orphans, v1alpha1.Orphan{UUID: uuid(n), Kind: v1alpha1.OrphanReplica, Device: "a"})
	}
	d.pools = []*pool{{device: engine.Device{ID: "a"}, held: &engine.Pool{Device: "a"}}}
	d.describe(orphans)
	described := slices.DeleteFunc(slices.Clone(orphans), func(o v1alpha1.Orphan) bool { return o.Description == nil })
	stored, err := json.Marshal(orphans)
	if err != nil {
		t.Fatal(err)
	}
	if last := orphans[len(orphans)-1]; len(described) == 0 || last.Undescribed == "" || len(d.decision.Notes.Show) != len(orphans) {
		t.Errorf("%d are described, the last one says %q", len(described), last.Undescribed)
	}
	if most := v1alpha1.MaxOrphanDescriptions - len(orphans)*225; len(stored) > most || len(stored) < most-64<<10 {
		t.Errorf("%d bytes, of %d", len(stored), most)
	}
}

func TestNotesAreUTF8(t *testing.T) {
	note := fullNote()
	note.Description.PersistentVolume.MountOptions = []string{"X"}
	text, err := json.Marshal(note)
	if err != nil {
		t.Fatal(err)
	}
	text = bytes.Replace(text, []byte(`"X"`), []byte("\"\xff\""), 1)
	stored := fmt.Appendf(nil, `{"format":1,"crc32c":%q,"note":%s}`, noteSum(text), text)
	if _, err := DecodeNote(stored); err == nil {
		t.Error("it is taken")
	}
}

// A quantity with a long exponent takes hours and gigabytes to decode or to compare.
func TestSizesOfNotes(t *testing.T) {
	text, err := json.Marshal(fullNote())
	if err != nil {
		t.Fatal(err)
	}
	for size, fits := range map[string]bool{
		`"1Gi"`: true, `"1073741824"`: true, `"1e9"`: true, `null`: true,
		`"1234567890123456789e1000000000"`: false, `"1e1000000000"`: false, `"1e-1000000000"`: false, `1e1000000000`: false, `"0"`: false, `"-1Gi"`: false,
		`"1Gi","SIZE":"1e1000000000"`: false,
	} {
		text := bytes.Replace(text, []byte(`"size":"1Gi"`), []byte(`"size":`+size), 1)
		if _, err := DecodeNote(fmt.Appendf(nil, `{"format":1,"crc32c":%q,"note":%s}`, noteSum(text), text)); (err == nil) != fits {
			t.Errorf("size %s: %v", size, err)
		}
	}
}
