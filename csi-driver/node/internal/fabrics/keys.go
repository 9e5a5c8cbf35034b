// SPDX-License-Identifier: Apache-2.0

package fabrics

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Connect options, and attributes of a controller in sysfs, that have keys.
const (
	hostKey       = "dhchap_secret"
	controllerKey = "dhchap_ctrl_secret"
)

// keyMode of these attributes: the kernel makes them readable for everybody (0644 in Linux 6.12).
const keyMode = 0o600

// Authenticates fails with ErrUnsupported when the kernel's hosts cannot prove themselves, and with another error when
// that is not known. Linux can since 6.0, if it was built with CONFIG_NVME_HOST_AUTH (CONFIG_NVME_AUTH before 6.7).
func (h *Host) Authenticates(ctx context.Context) error {
	if err := h.module(ctx, "nvme_fabrics", h.dev("nvme-fabrics")); err != nil {
		return err
	}
	known, err := h.knownOptions(ctx)
	if err != nil {
		return err
	}
	return authenticates(known)
}

// authenticates: an option that the kernel does not know it writes to its log, with its value. So no key may get there.
func authenticates(known map[string]bool) error {
	if known[hostKey] && known[controllerKey] {
		return nil
	}
	return fmt.Errorf("%w: this kernel cannot authenticate hosts; it takes Linux 6.0 or later with CONFIG_NVME_HOST_AUTH", ErrUnsupported)
}

// keyOptions of a connection; empty without keys. They are never logged.
func keyOptions(c Connection, known map[string]bool) (string, error) {
	if c.Keys.IsZero() {
		return "", nil
	}
	if err := c.Keys.Validate(); err != nil {
		return "", fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if err := authenticates(known); err != nil {
		return "", err
	}
	return "," + hostKey + "=" + c.Keys.Host.Text() + "," + controllerKey + "=" + c.Keys.Controller.Text(), nil
}

// hideKeys of a subsystem's controllers from everybody but root, as far as the kernel shows them in sysfs.
func (h *Host) hideKeys(nqn string) error {
	controllers, err := h.Controllers(nqn)
	errs := []error{err}
	for _, c := range controllers {
		for _, name := range []string{hostKey, controllerKey} {
			if err := os.Chmod(filepath.Join(c.dir, name), keyMode); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}
