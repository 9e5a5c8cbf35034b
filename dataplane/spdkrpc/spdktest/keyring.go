// SPDX-License-Identifier: Apache-2.0

package spdktest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// A key is a file whose content the fake never reads.
type key struct {
	name    string
	path    string
	refs    int // the keyring's own one included
	removed bool
}

// get counts a user of a key; putKey takes one away, and a removed key goes with its last user.
func (k *key) get() {
	if k != nil {
		k.refs++
	}
}

func (a *app) putKey(k *key) {
	if k == nil {
		return
	}
	if k.refs--; k.refs == 0 {
		a.keys = slices.DeleteFunc(a.keys, func(o *key) bool { return o == k })
	}
}

// namedKey finds a key; no name is no key, which is well.
func (a *app) namedKey(name string) (*key, bool) {
	if name == "" {
		return nil, true
	}
	i := slices.IndexFunc(a.keys, func(k *key) bool { return k.name == name && !k.removed })
	if i < 0 {
		return nil, false
	}
	return a.keys[i], true
}

// checkKeyFile under a root wants an absolute path, nobody else's access, and this process's user as the owner.
func checkKeyFile(root, path string) syscall.Errno {
	if !filepath.IsAbs(path) {
		return syscall.EPERM
	}
	info, err := os.Stat(filepath.Join(root, path))
	if err != nil {
		return errnoOf(err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || info.Mode().Perm()&0o077 != 0 || int(st.Uid) != os.Getuid() {
		return syscall.EPERM
	}
	return 0
}

func (a *app) keyringFileAdd(r *request) {
	var name, path string
	if !r.decodeRelaxed(required("name", asString(&name)), required("path", asString(&path))) {
		r.fail(codeInvalidParams, strerror(syscall.EINVAL))
		return
	}
	if strings.Index(name, ":") > 0 {
		r.errno(syscall.EINVAL) // keyrings by name do not exist
		return
	}
	if k, ok := a.namedKey(name); ok && k != nil {
		r.errno(syscall.EEXIST)
		return
	}
	if e := checkKeyFile(a.opts.Root, path); e != 0 {
		r.errno(e)
		return
	}
	a.keys = append(a.keys, &key{name: name, path: path, refs: 1})
	r.answer(true)
}

func (a *app) keyringFileRemove(r *request) {
	var name string
	if !r.decode(required("name", asString(&name))) {
		r.fail(codeInvalidParams, strerror(syscall.EINVAL))
		return
	}
	k, ok := a.namedKey(name)
	if !ok || k == nil {
		r.errno(syscall.ENOKEY)
		return
	}
	k.removed = true
	a.putKey(k)
	r.answer(true)
}

func (a *app) keyringList(r *request) {
	keys := []any{}
	shown := slices.Clone(a.keys)
	slices.SortStableFunc(shown, func(x, y *key) int {
		switch {
		case x.removed == y.removed:
			return 0
		case x.removed:
			return 1
		default:
			return -1
		}
	})
	for _, k := range shown {
		info := map[string]any{
			"name": k.name, "module": "keyring_file", "removed": k.removed, "probed": false, "refcnt": k.refs,
		}
		if !k.removed {
			info["path"] = k.path
		}
		keys = append(keys, info)
	}
	r.answer(keys)
}
