// SPDX-License-Identifier: Apache-2.0

package fabrics

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"syscall"
	"time"
)

// reachTimeout bounds a try to open a TCP connection: two retransmitted SYNs.
const reachTimeout = 4 * time.Second

// LinuxKernel is the running kernel.
type LinuxKernel struct{}

const fabricsDevice = "/dev/nvme-fabrics"

// Options reads /dev/nvme-fabrics.
func (LinuxKernel) Options() (string, error) {
	data, err := os.ReadFile(fabricsDevice)
	return string(data), err
}

// Create writes to /dev/nvme-fabrics; the answer is read from the same open file.
func (LinuxKernel) Create(options string) (string, error) {
	f, err := os.OpenFile(fabricsDevice, os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	if _, err := f.WriteString(options); err != nil {
		return "", err
	}
	answer := make([]byte, 128)
	n, err := f.Read(answer)
	return strings.TrimSpace(string(answer[:n])), err
}

// WriteAttribute writes to a file that exists.
func (LinuxKernel) WriteAttribute(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// Claimed opens the device exclusively, which fails with EBUSY when something holds it.
func (LinuxKernel) Claimed(device string) (bool, error) {
	fd, err := syscall.Open(device, syscall.O_RDONLY|syscall.O_EXCL|syscall.O_CLOEXEC|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.EBUSY) {
		return true, nil
	}
	if err != nil {
		return false, &os.PathError{Op: "open", Path: device, Err: err}
	}
	return false, syscall.Close(fd)
}

// Reachable opens a TCP connection and closes it.
func Reachable(ctx context.Context, address string) error {
	dialer := net.Dialer{Timeout: reachTimeout}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return conn.Close()
}
