// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
	"github.com/weft-storage/weft/internal/dhchap"
)

// SPDK takes keys from files, and reads them again whenever it uses them. A file's name, which is the key's in SPDK's
// keyring as well, says whose key it is and what it has:
//
//	weft-<subsystem>-<host>-<fingerprint of the pair>-<h of the host, c of the controller>
//
// with 16 hexadecimal digits of a hash for the first two. So whether a host has the keys that it should have is seen
// without reading any, and no request has one in it. The files lie beside the target's socket, on a memory filesystem.

const (
	keyPrefix = "weft"
	// tagBytes of a SHA-256 name a subsystem or a host among those of one target.
	tagBytes = 8
	// keyParts of a key's name, between hyphens.
	keyParts = 5

	keysFolderMode = 0o700
	keyFileMode    = 0o600
)

// keyName in SPDK's keyring, and of the file.
type keyName string

// namesOf the two keys of a host; both empty without keys.
func namesOf(nqn, host string, pair dhchap.Pair) (of, controller keyName) {
	if pair.IsZero() {
		return "", ""
	}
	stem := strings.Join([]string{keyPrefix, tagOf(nqn), tagOf(host), pair.Fingerprint()}, "-")
	return keyName(stem + "-h"), keyName(stem + "-c")
}

func tagOf(nqn string) string {
	sum := sha256.Sum256([]byte(nqn))
	return hex.EncodeToString(sum[:tagBytes])
}

// belongsTo a subsystem.
func (k keyName) belongsTo(nqn string) bool {
	return strings.HasPrefix(string(k), keyPrefix+"-"+tagOf(nqn)+"-")
}

// authenticationOf a host that SPDK admits; nil of one without keys.
func authenticationOf(nqn string, h spdkrpc.AllowedHost) *engine.Authentication {
	if h.Key == "" && h.ControllerKey == "" {
		return nil
	}
	stem, whole := strings.CutSuffix(h.Key, "-h")
	parts := strings.Split(h.Key, "-")
	if !whole || h.ControllerKey != stem+"-c" || len(parts) != keyParts || parts[1] != tagOf(nqn) || parts[2] != tagOf(h.NQN) {
		return &engine.Authentication{Fingerprint: engine.UnknownKeys}
	}
	return &engine.Authentication{Fingerprint: parts[3]}
}

// addHost is the request that admits a host of an export.
func addHost(x engine.Export, host string) spdkrpc.NvmfSubsystemAddHost {
	key, controller := namesOf(x.NQN, host, x.Authentication[host].Keys)
	return spdkrpc.NvmfSubsystemAddHost{NQN: x.NQN, Host: host, Key: string(key), ControllerKey: string(controller)}
}

// setKeys of a host that is admitted, if it has others; nil when it has those that it should have.
func setKeys(x engine.Export, is spdkrpc.AllowedHost) *spdkrpc.NvmfSubsystemSetKeys {
	key, controller := namesOf(x.NQN, is.NQN, x.Authentication[is.NQN].Keys)
	if is.Key == string(key) && is.ControllerKey == string(controller) {
		return nil
	}
	return &spdkrpc.NvmfSubsystemSetKeys{NQN: x.NQN, Host: is.NQN, Key: string(key), ControllerKey: string(controller)}
}

// keysOf all hosts of an export, by their names.
func keysOf(x engine.Export) map[keyName]dhchap.Key {
	keys := map[keyName]dhchap.Key{}
	for host, a := range x.Authentication {
		key, controller := namesOf(x.NQN, host, a.Keys)
		keys[key], keys[controller] = a.Keys.Host, a.Keys.Controller
	}
	return keys
}

// keysFolder of the target, as it sees it itself.
func (e *Engine) keysFolder() string { return filepath.Join(filepath.Dir(e.config.Socket), "keys") }

// giveKeys that hosts of an export get now to the target: first the files, then, in the batch, their names. A file that
// somebody took away is written again, whosever key it is.
func (s *session) giveKeys(b *batch, item int, c *change) error {
	news := map[keyName]bool{}
	for _, host := range c.addHosts {
		news[keyName(host.Key)], news[keyName(host.ControllerKey)] = true, true
	}
	for _, host := range c.setKeys {
		news[keyName(host.Key)], news[keyName(host.ControllerKey)] = true, true
	}
	for name, key := range c.keys {
		path := filepath.Join(s.keysFolder(), string(name))
		if _, err := os.Stat(s.path(path)); err == nil && !news[name] {
			continue
		}
		if err := s.writeKey(path, key); err != nil {
			return fmt.Errorf("write a key for the target: %w", err)
		}
		if news[name] {
			b.putKey(item, spdkrpc.KeyringFileAddKey{Name: string(name), Path: path})
		}
	}
	return nil
}

// putKey into a batch. One that the target has already, by this name, is this one.
func (b *batch) putKey(item int, req spdkrpc.KeyringFileAddKey) {
	pending := spdkrpc.Start(b.s.ctx, b.s.conn, req)
	b.waits = append(b.waits, func() {
		if _, err := pending.Wait(); err != nil && !errors.Is(err, spdkrpc.ErrExists) && b.errs[item] == nil {
			b.errs[item] = fmt.Errorf("give the target a key: %w", mapError(err))
		}
	})
}

// writeKey to a file that nobody but root can read, at no moment, and that is whole once it has its name.
func (s *session) writeKey(path string, key dhchap.Key) error {
	dir := s.path(filepath.Dir(path))
	if err := os.MkdirAll(dir, keysFolderMode); err != nil {
		return err
	}
	if err := os.Chmod(dir, keysFolderMode); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".new-*") // 0600
	if err != nil {
		return err
	}
	_, err = f.WriteString(key.Text())
	if err = errors.Join(err, f.Chmod(keyFileMode), f.Close()); err == nil {
		err = os.Rename(f.Name(), s.path(path))
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// dropKeys of subsystems that no host has any more, by their files: from SPDK's keyring, then the files themselves, so
// that a call that was cut off is taken up by the next.
func (s *session) dropKeys(nqns []string, keep []map[keyName]dhchap.Key, errs []error) {
	files, err := os.ReadDir(s.path(s.keysFolder()))
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	type former struct {
		of      int
		name    keyName
		pending *spdkrpc.Pending[spdkrpc.Done]
	}
	var all []former
	for i, nqn := range nqns {
		if errs[i] == nil {
			errs[i] = err
		}
		for _, file := range files {
			name := keyName(file.Name())
			if errs[i] == nil && name.belongsTo(nqn) && keep[i][name].IsZero() {
				all = append(all, former{i, name, spdkrpc.Start(s.ctx, s.conn, spdkrpc.KeyringFileRemoveKey{Name: string(name)})})
			}
		}
	}
	for _, f := range all {
		_, err := f.pending.Wait()
		if err == nil || errors.Is(err, spdkrpc.ErrNotFound) {
			err = os.Remove(s.path(s.keysFolder(), string(f.name)))
		} else {
			err = mapError(err)
		}
		if err != nil && errs[f.of] == nil {
			errs[f.of] = fmt.Errorf("remove a key of a host that is gone: %w", err)
		}
	}
}

// forgetKeys that a target of before had: one that waits for its settings has none.
func (s *session) forgetKeys() error {
	if err := os.RemoveAll(s.path(s.keysFolder())); err != nil {
		return fmt.Errorf("remove the keys of the former target: %w", err)
	}
	return nil
}
