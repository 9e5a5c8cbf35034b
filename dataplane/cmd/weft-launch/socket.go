// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// prepareSocket makes the socket's folder root's alone, and removes a socket that nobody listens on.
// Everything that is made from here on is for root only.
func prepareSocket(ctx context.Context, socket string) error {
	syscall.Umask(0o077)
	dir := filepath.Dir(socket)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("create the socket's directory: %w", err)
	}
	// It may have been there before: the kubelet makes a hostPath with mode 0755.
	if err := os.Chmod(dir, 0o700); err != nil {
		return fmt.Errorf("make the socket's directory private: %w", err)
	}
	info, err := os.Lstat(socket)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return refuse(v1alpha1.ReasonInvalidSetting, "%s exists and is not a socket; use another path for --socket, or remove the file", socket)
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", socket)
	switch {
	case err == nil:
		_ = conn.Close()
		return refuse(v1alpha1.ReasonTargetRunning, "a target already answers on %s; two targets on a node would conflict over drives and ports: stop the other one first", socket)
	case errors.Is(err, syscall.ECONNREFUSED):
		if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the socket of a dead target: %w", err)
		}
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, syscall.EAGAIN):
		return refuse(v1alpha1.ReasonTargetRunning, "a target listens on %s, but is too busy to answer; two targets on a node would conflict over drives and ports: stop the other one first", socket)
	}
	return fmt.Errorf("check whether a target still listens: %w", err)
}
