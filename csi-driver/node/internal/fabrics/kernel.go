// SPDX-License-Identifier: Apache-2.0

package fabrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics/own"
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

// Create writes to /dev/nvme-fabrics; the answer is read from the same open file. The error holds
// what the kernel logged about the subsystem meanwhile: the errno alone does not say why a target refused.
func (LinuxKernel) Create(options string) (string, error) {
	f, err := os.OpenFile(fabricsDevice, os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	log := openLog()
	defer log.close()
	if _, err := f.WriteString(options); err != nil {
		return "", log.explain(err, options)
	}
	answer := make([]byte, 128)
	n, err := f.Read(answer)
	return strings.TrimSpace(string(answer[:n])), err
}

// kernelLog reads what the kernel logs from now on; -1 when it cannot be read. It only ever
// adds words to an error.
type kernelLog int

func openLog() kernelLog {
	fd, err := syscall.Open("/dev/kmsg", syscall.O_RDONLY|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	if _, err := syscall.Seek(fd, 0, io.SeekEnd); err != nil {
		_ = syscall.Close(fd)
		return -1
	}
	return kernelLog(fd)
}

func (l kernelLog) close() {
	if l >= 0 {
		_ = syscall.Close(int(l))
	}
}

// explain adds the log's lines of the initiator that name the subsystem.
func (l kernelLog) explain(err error, options string) error {
	if l < 0 {
		return err
	}
	_, nqn, _ := strings.Cut(options, ",nqn=")
	nqn, _, _ = strings.Cut(nqn, ",")
	var lines []string
	record := make([]byte, 8192) // each read gives one record, of at most this size
	for {
		n, readErr := syscall.Read(int(l), record)
		if errors.Is(readErr, syscall.EPIPE) {
			continue // records were overwritten before they were read
		}
		if readErr != nil || n <= 0 {
			break // EAGAIN: the end
		}
		_, text, _ := strings.Cut(string(record[:n]), ";")
		text, _, _ = strings.Cut(text, "\n")
		if strings.HasPrefix(text, "nvme ") && strings.Contains(text, nqn) {
			lines = append(lines, text)
		}
	}
	if len(lines) == 0 {
		return err
	}
	return fmt.Errorf("%w (kernel: %s)", err, strings.Join(lines, "; "))
}

// Rescan writes to the controller's rescan_controller.
func (LinuxKernel) Rescan(controller string) error {
	f, err := os.OpenFile(filepath.Join(controller, "rescan_controller"), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString("1")
	return errors.Join(err, f.Close())
}

// Delete writes to the controller's delete_controller.
func (LinuxKernel) Delete(c *own.Controller) error { return c.Delete() }

// Open opens the device for reading.
func (LinuxKernel) Open(device string) (Device, error) {
	f, err := os.Open(device)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// OpenDirect opens the device with O_DIRECT and O_DSYNC, by which the kernel sends writes with FUA, or flushes.
func (LinuxKernel) OpenDirect(device string, write bool) (DirectDevice, error) {
	flags := os.O_RDONLY
	if write {
		flags = os.O_RDWR | unix.O_DSYNC
	}
	f, err := os.OpenFile(device, flags|unix.O_DIRECT, 0)
	if err != nil {
		return nil, err
	}
	return directFile{f}, nil
}

// directFile reads into, and writes from, memory that is aligned as the kernel wants it.
type directFile struct{ *os.File }

// ReadAt implements io.ReaderAt.
func (f directFile) ReadAt(p []byte, offset int64) (n int, err error) {
	err = aligned(len(p), func(memory []byte) error {
		n, err = f.File.ReadAt(memory, offset)
		copy(p, memory[:n])
		return err
	})
	return n, err
}

// WriteAt implements io.WriterAt.
func (f directFile) WriteAt(p []byte, offset int64) (n int, err error) {
	err = aligned(len(p), func(memory []byte) error {
		copy(memory, p)
		n, err = f.File.WriteAt(memory, offset)
		return err
	})
	return n, err
}

func aligned(length int, do func(memory []byte) error) error {
	memory, err := unix.Mmap(-1, 0, length, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return os.NewSyscallError("mmap", err)
	}
	return errors.Join(do(memory), unix.Munmap(memory))
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
