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
	"strings"
	"time"

	"github.com/weft-storage/weft/csi-driver/publishcontext"
)

// records keep, in a file for each, what volumes were staged with: their publish context. The kernel knows which paths
// a volume has, and only the publish context which it should have. Nothing that a volume is used by rests on its
// record: without it, a path that is missing is neither noticed nor connected again, until the volume is staged anew.
type records struct{ dir string }

const (
	recordSuffix = ".json"
	usedSuffix   = ".used"
	// newRecord begins the name of a record that is being written.
	newRecord = ".new-"
)

func (r records) path(volume, suffix string) string {
	return filepath.Join(r.dir, url.PathEscape(volume)+suffix)
}

// put writes a record, or replaces it whole.
func (r records) put(volume string, at publishcontext.Context) error {
	return r.write(r.path(volume, recordSuffix), at.Encode(), false)
}

// write a file, or replace it whole. A durable one survives a crash of the machine, once its folder is flushed.
func (r records) write(path string, content any, durable bool) error {
	data, err := json.Marshal(content)
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
	if err == nil && durable {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

func flushFolder(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// get a record. It fails with fs.ErrNotExist when there is none.
func (r records) get(volume string) (publishcontext.Context, error) {
	data, err := os.ReadFile(r.path(volume, recordSuffix))
	if err != nil {
		return publishcontext.Context{}, err
	}
	var m map[string]string
	if err := json.Unmarshal(data, &m); err != nil {
		return publishcontext.Context{}, fmt.Errorf("record of volume %s: %w", volume, err)
	}
	return decode(volume, m)
}

// remove a record. From now on the volume's attachment may end, of which nobody tells the node: see forgettable.
func (r records) remove(volume string) error {
	now := time.Now()
	if err := ignoreMissing(os.Chtimes(r.path(volume, usedSuffix), now, now)); err != nil {
		return err
	}
	return removeFile(r.path(volume, recordSuffix))
}

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

// volumes that have a file of a kind.
func (r records) volumes(suffix string) ([]string, error) {
	entries, err := os.ReadDir(r.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var all []string
	for _, e := range entries {
		name, is := strings.CutSuffix(e.Name(), suffix)
		if volume, err := url.PathUnescape(name); is && err == nil {
			all = append(all, volume)
		}
	}
	return all, err
}
