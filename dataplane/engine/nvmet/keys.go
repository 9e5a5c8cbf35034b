// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/internal/dhchap"
)

// The kernel keeps a host's keys in its folder in configfs, one pair for all subsystems. Weft's hosts have a name for
// each attachment and replica, so that no two of its subsystems need different ones of a host. The attributes can be
// read, and the kernel makes them readable for everybody: they are closed to all but root before a key is written.

// Attributes of a host that have keys, and those of how they are proved.
const (
	hostKey       = "dhchap_key"
	controllerKey = "dhchap_ctrl_key"
	groupAttr     = "dhchap_dhgroup"
	// keyMode of the first two.
	keyMode = 0o600
	// probeHost is admitted nowhere, and is there for a moment: what the kernel can is seen by a host's attributes.
	probeHost = v1alpha1.HostNQNPrefix + "00000000-0000-4000-8000-000000000000"
)

// groups by the names that the kernel has for them (dhgroup_map in drivers/nvme/common/auth.c).
var groups = map[v1alpha1.DHGroup]string{
	v1alpha1.DHGroupNone: "null", v1alpha1.DHGroupFFDHE2048: "ffdhe2048",
	v1alpha1.DHGroupFFDHE3072: "ffdhe3072", v1alpha1.DHGroupFFDHE4096: "ffdhe4096",
}

// errNoKeys: NVME_TARGET_AUTH came with Linux 6.0.
var errNoKeys = fmt.Errorf("%w: this kernel's target cannot authenticate hosts; it takes Linux 6.0 or later with CONFIG_NVME_TARGET_AUTH", engine.ErrUnsupported)

// authenticates says whether the kernel's target can.
func (h *host) authenticates() (bool, error) {
	dir := h.config("hosts", probeHost)
	if err := os.Mkdir(dir, 0o755); err != nil && !os.IsExist(err) {
		return false, err
	}
	_, err := os.Stat(filepath.Join(dir, controllerKey))
	if removed := os.Remove(dir); removed != nil && !isMissing(removed) {
		return false, removed
	}
	if isMissing(err) {
		return false, nil
	}
	return err == nil, err
}

// fingerprintOf the keys that a host has; empty without any.
func (h *host) fingerprintOf(host string) (string, error) {
	var pair dhchap.Pair
	for attr, into := range map[string]*dhchap.Key{hostKey: &pair.Host, controllerKey: &pair.Controller} {
		text, err := h.readAttr(h.config("hosts", host, attr))
		if isMissing(err) {
			return "", nil // without NVME_TARGET_AUTH
		}
		if err != nil {
			return "", err
		}
		if text == "" || text == "(null)" { // which some kernels print for none
			continue
		}
		if *into, err = dhchap.ParseKey(text); err != nil {
			return engine.UnknownKeys, nil //nolint:nilerr // somebody's, or unusable: not those that are wanted
		}
	}
	switch {
	case pair.IsZero():
		return "", nil
	case pair.Host.IsZero() || pair.Controller.IsZero() || pair.Host == pair.Controller:
		return engine.UnknownKeys, nil
	}
	return pair.Fingerprint(), nil
}

// setKeys of a host, those of the controller first: whoever connects in between is refused.
func (h *host) setKeys(host string, a engine.Authentication) error {
	dir := h.config("hosts", host)
	for _, attr := range []string{controllerKey, hostKey} {
		if err := os.Chmod(filepath.Join(dir, attr), keyMode); isMissing(err) {
			return errNoKeys
		} else if err != nil {
			return err
		}
	}
	if group, known := groups[a.Group]; known {
		if err := h.writeAttr(filepath.Join(dir, groupAttr), group); err != nil {
			return fmt.Errorf("%s: %w", groupAttr, err)
		}
	}
	return errors.Join(h.writeKey(filepath.Join(dir, controllerKey), a.Keys.Controller.Text()), h.writeKey(filepath.Join(dir, hostKey), a.Keys.Host.Text()))
}

// writeKey is writeAttr of what no error may tell.
func (h *host) writeKey(path, key string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(key)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write a key to %s: %w", path, err)
	}
	return nil
}

// spoilKeys of a host, so that nobody connects as it, and nothing of what it had can be read.
func (h *host) spoilKeys(host string) error {
	if err := h.writeAttr(h.config("hosts", host, hostKey), unusableKey); err != nil {
		return err
	}
	had, err := h.readAttr(h.config("hosts", host, controllerKey))
	if isMissing(err) || err == nil && (had == "" || had == "(null)") {
		return nil
	}
	if err != nil {
		return err
	}
	return h.writeAttr(h.config("hosts", host, controllerKey), unusableKey)
}

// keysElsewhere fails with ErrInUse when another subsystem admits a host with other keys.
func (h *host) keysElsewhere(nqn, host string, a engine.Authentication) error {
	is, err := h.fingerprintOf(host)
	if err != nil || is == a.Keys.Fingerprint() {
		return err
	}
	others, err := h.othersWith(nqn, host)
	if err != nil || len(others) == 0 {
		return err
	}
	return fmt.Errorf("%w: subsystem %s admits host %s with other keys", engine.ErrInUse, others[0], host)
}
