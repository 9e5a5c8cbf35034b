// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// records keep, in a file for each, what volumes were staged with. The kernel knows which paths a volume has; a record
// says which it should have, also while the API server is away, and for which attachment it was staged. A volume that
// is in use does not depend on its record: without one, a path that is missing is neither noticed nor connected again
// until the volume is staged or published again.
type records struct{ dir string }

// recordVersion is that of a record's format. Keys that are not known are ignored, and the settings of the connection
// may be absent, which stands for their defaults. What must not be misunderstood gets another version.
const recordVersion = 2

// record is the file's content.
type record struct {
	Version int `json:"version"`
	attached
}

// firstRecord has the keys of version 1 that version 2 does not: a volume was one replica of the same name and UUID.
type firstRecord struct {
	NQN     string            `json:"nqn"`
	NGUID   string            `json:"nguid"`
	Portals []v1alpha1.Portal `json:"portals"`
}

const (
	recordSuffix = ".json"
	// newRecord begins the name of a record that is being written.
	newRecord = ".new-"
)

func (r records) path(volume string) string {
	return filepath.Join(r.dir, url.PathEscape(volume)+recordSuffix)
}

// put writes a record, or replaces it whole.
func (r records) put(volume string, at attached) error {
	data, err := json.Marshal(record{recordVersion, at})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(r.dir, 0o750); err != nil {
		return err
	}
	f, err := os.CreateTemp(r.dir, newRecord+"*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), r.path(volume))
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// get a record. It fails with fs.ErrNotExist when there is none, and with errRecord when it says nothing that can be
// relied on.
func (r records) get(volume string) (attached, error) {
	data, err := os.ReadFile(r.path(volume))
	if err != nil {
		return attached{}, err
	}
	is := record{attached: attached{Connection: v1alpha1.Connection{
		IOQueues: v1alpha1.DefaultAttachmentIOQueues, QueueDepth: v1alpha1.DefaultQueueDepth, CtrlLossTimeoutSeconds: v1alpha1.CtrlLossTimeoutForever,
	}}}
	if err := json.Unmarshal(data, &is); err != nil {
		return attached{}, fmt.Errorf("%w of volume %s: %w: %s", errRecord, volume, err, stageAgain)
	}
	switch is.Version {
	case 1:
		var first firstRecord
		if err := json.Unmarshal(data, &first); err != nil {
			return attached{}, fmt.Errorf("%w of volume %s: %w: %s", errRecord, volume, err, stageAgain)
		}
		if id, err := uuid.Parse(first.NGUID); err == nil {
			is.UUID = id.String()
		}
		is.Replicas = []replica{{Name: volume, NQN: first.NQN, NGUID: first.NGUID, Portals: first.Portals}}
	case recordVersion:
	default:
		return attached{}, fmt.Errorf("%w of volume %s: version %d, but this node plugin supports %d: %s", errRecord, volume, is.Version, recordVersion, stageAgain)
	}
	if is.UUID == "" || is.Attachment == "" || len(is.Replicas) == 0 || slices.ContainsFunc(is.Replicas, is.unusable) {
		return attached{}, fmt.Errorf("%w of volume %s: it is incomplete or belongs to another volume: %s", errRecord, volume, stageAgain)
	}
	return is.attached, nil
}

// unusable tells whether a replica's record is incomplete, or its subsystem serves another replica.
func (a attached) unusable(r replica) bool {
	if a.Mirrored && r.Identity == "" {
		return r.Name == "" || r.NGUID == "" // it was not connected to yet
	}
	of, ours := v1alpha1.ReplicaOfSubsystem(r.NQN)
	return !ours || of != r.Name || r.NGUID == "" || len(r.Portals) == 0
}

// errRecord: a record cannot be used.
var errRecord = errors.New("unusable record")

// unrecorded tells whether getting a record failed because there is none, or none that can be used.
func unrecorded(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, errRecord) }

const stageAgain = "delete the pod so that the volume is staged again"

// editRecord changes the record of a volume that is staged for an attachment, if edit says so. It fails with
// fs.ErrNotExist when it is not any more.
func (s *Service) editRecord(volume, attachment string, edit func(*attached) bool) error {
	s.recording.Lock()
	defer s.recording.Unlock()
	at, err := s.records().get(volume)
	if err != nil {
		return err
	}
	if at.Attachment != attachment {
		return fmt.Errorf("volume %s is staged for another attachment: %w", volume, fs.ErrNotExist)
	}
	if !edit(&at) {
		return nil
	}
	return s.records().put(volume, at)
}

// remove a record.
func (r records) remove(volume string) error { return removeFile(r.path(volume)) }

func removeFile(path string) error { return ignoreMissing(os.Remove(path)) }

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// clean what a process left that was killed while it wrote a record. Call it before the first put.
func (r records) clean() error {
	left, err := filepath.Glob(filepath.Join(r.dir, newRecord+"*"))
	for _, path := range left {
		err = errors.Join(err, removeFile(path))
	}
	return err
}

// volumes that have a record.
func (r records) volumes() ([]string, error) {
	entries, err := os.ReadDir(r.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var all []string
	for _, e := range entries {
		name, is := strings.CutSuffix(e.Name(), recordSuffix)
		if volume, err := url.PathUnescape(name); is && err == nil {
			all = append(all, volume)
		}
	}
	return all, err
}

// owners are the volumes that have a usable record, by the names of their replicas.
func (r records) owners() (map[string]string, error) {
	volumes, err := r.volumes()
	owners := map[string]string{}
	for _, volume := range volumes {
		at, err := r.get(volume)
		if unrecorded(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, is := range at.Replicas {
			owners[is.Name] = volume
		}
	}
	return owners, err
}
