// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"encoding/json"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/weft-storage/weft/dataplane/device"
)

// records are files in one folder about subsystems or volumes, by their names: what the process after this one has to
// know.
type records struct{ dir string }

// besideSocket of the target are records on a memory filesystem, which mean nothing after a reboot.
func (e *Engine) besideSocket(folder string) records {
	return records{e.path(filepath.Dir(e.config.Socket), folder)}
}

func (r records) path(name string) string { return filepath.Join(r.dir, url.PathEscape(name)) }

// of which names there are any.
func (r records) of() ([]string, error) {
	entries, err := os.ReadDir(r.dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if name, err := url.PathUnescape(e.Name()); err == nil && !strings.HasSuffix(name, device.NewSuffix) {
			names = append(names, name)
		}
	}
	return names, nil
}

func (r records) write(name string, content any) error {
	return r.writeBy(func(file string, data []byte) error { return os.WriteFile(file, data, 0o600) }, name, content)
}

// writeDurably is write for what has to outlast a loss of power.
func (r records) writeDurably(name string, content any) error {
	return r.writeBy(device.ReplaceFile, name, content)
}

func (r records) writeBy(write func(file string, data []byte) error, name string, content any) error {
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return err
	}
	data, err := json.Marshal(content)
	if err != nil {
		return err
	}
	return write(r.path(name), data)
}

// read what was written last. A record is empty where that was cut off, and content stays as it is.
func (r records) read(name string, content any) error {
	data, err := os.ReadFile(r.path(name))
	if err != nil || len(data) == 0 {
		return err
	}
	return json.Unmarshal(data, content)
}

// remove a record, which may be gone.
func (r records) remove(name string) error {
	if err := os.Remove(r.path(name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
