// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"encoding/json"
	"errors"
	"net/url"
	"os"
	"path/filepath"
)

// records are files in one folder about subsystems, by their NQNs, or volumes, by their aliases: what the process after
// this one has to know.
type records struct{ dir string }

// besideSocket of the target are records on a memory filesystem, which mean nothing after a reboot.
func (e *Engine) besideSocket(folder string) records {
	return records{e.path(filepath.Dir(e.config.Socket), folder)}
}

func (r records) path(nqn string) string { return filepath.Join(r.dir, url.PathEscape(nqn)) }

// of which subsystems there are any.
func (r records) of() ([]string, error) {
	entries, err := os.ReadDir(r.dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var nqns []string
	for _, e := range entries {
		if nqn, err := url.PathUnescape(e.Name()); err == nil {
			nqns = append(nqns, nqn)
		}
	}
	return nqns, nil
}

func (r records) write(nqn string, content any) error {
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return err
	}
	data, err := json.Marshal(content)
	if err != nil {
		return err
	}
	return os.WriteFile(r.path(nqn), data, 0o600)
}

// read what was written last. A record is empty where that was cut off, and content stays as it is.
func (r records) read(nqn string, content any) error {
	data, err := os.ReadFile(r.path(nqn))
	if err != nil || len(data) == 0 {
		return err
	}
	return json.Unmarshal(data, content)
}

// remove a record, which may be gone.
func (r records) remove(nqn string) error {
	if err := os.Remove(r.path(nqn)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
