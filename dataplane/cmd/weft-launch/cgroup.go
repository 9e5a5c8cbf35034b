// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
)

const groupsDir = "sys/fs/cgroup"

// ownGroup lists the folders of this process's cgroup (v2) and its ancestors,
// innermost first, relative to the machine's root. A privileged container sees the whole
// node's tree, another one only its own, as the root of it.
func ownGroup(m Machine) ([]string, error) {
	text, err := m.read("proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	own := "/"
	for line := range strings.Lines(text) {
		if p, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			own = path.Clean("/" + p)
		}
	}
	if _, err := os.Stat(m.path(groupsDir, own)); errors.Is(err, fs.ErrNotExist) {
		// The path is the host's, and the mount the container's own: its root is our group.
		own = "/"
	} else if err != nil {
		return nil, err
	}
	var dirs []string
	for ; own != "/"; own = path.Dir(own) {
		dirs = append(dirs, path.Join(groupsDir, own))
	}
	return append(dirs, groupsDir), nil
}

// A limit of a cgroup, in bytes.
type limit struct {
	// file that sets it, relative to the machine's root.
	file string
	max  int64
	// left of it.
	left int64
}

// limits are those set for a cgroup and its ancestors, innermost first. Each name is of a
// pair of files: name.max and name.current.
func limits(m Machine, names ...string) ([]limit, error) {
	dirs, err := ownGroup(m)
	if err != nil {
		return nil, err
	}
	var found []limit
	for _, dir := range dirs {
		for _, name := range names {
			most, ok, err := groupNumber(m, dir, name+".max")
			if err != nil {
				return nil, err
			}
			if !ok {
				continue
			}
			used, _, err := groupNumber(m, dir, name+".current")
			if err != nil {
				return nil, err
			}
			found = append(found, limit{file: path.Join(dir, name+".max"), max: most, left: most - used})
		}
	}
	return found, nil
}

// groupNumber reads a number of a cgroup; ok is false for "max", and for a file that is not there: the root
// has none, nor has a group whose parent does not enable the controller.
func groupNumber(m Machine, dir, file string) (n int64, ok bool, err error) {
	text, err := m.read(dir, file)
	if errors.Is(err, fs.ErrNotExist) || err == nil && text == "max" {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	n, err = strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, false, fmt.Errorf("%s: %w", m.path(dir, file), err)
	}
	return n, true, nil
}
