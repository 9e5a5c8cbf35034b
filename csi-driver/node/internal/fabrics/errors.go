// SPDX-License-Identifier: Apache-2.0

package fabrics

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"syscall"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// Errors of this package, besides the types below.
var (
	// ErrInvalid: what was asked for cannot be written as connect options.
	ErrInvalid = errors.New("invalid connection")
	// ErrNotFound: the host has no such namespace now.
	ErrNotFound = errors.New("no such NVMe namespace on this host")
	// ErrShrunk: a namespace is smaller than its volume.
	ErrShrunk = errors.New("the device is smaller than its volume")
	// ErrNotNVMe: a block device is not a namespace of a subsystem.
	ErrNotNVMe = errors.New("not an NVMe namespace")
	// ErrUnreachable: the portal does not answer, or nothing listens on the port.
	ErrUnreachable = errors.New("portal cannot be reached")
	// ErrRefused: a target answered, and refused the connection.
	ErrRefused = errors.New("target refused the connection")
	// ErrUnsupported: this host's kernel cannot connect over the transport.
	ErrUnsupported = errors.New("not supported by this host's kernel")
)

// ConnectError says why a connection to a portal could not be made. It is one of
// ErrUnreachable, ErrRefused, ErrUnsupported, or neither when the kernel gave another error, and it is the kernel's
// errno.
type ConnectError struct {
	NQN    string
	Host   string
	Portal v1alpha1.Portal
	Err    error
}

// reasons gives, for what the kernel answers to a write to /dev/nvme-fabrics,
// its kind and its meaning, as seen on Linux 6.12. Every NVMe status of the Connect command
// becomes EIO there, and the status is left to the kernel's log.
var reasons = []struct {
	errno syscall.Errno
	kind  error
	words string
}{
	{syscall.ECONNREFUSED, ErrUnreachable, "nothing listens on the port"},
	{syscall.ECONNRESET, ErrUnreachable, "the connection was closed or rejected; over RDMA also: nothing listens on the port, or it does not answer"},
	{syscall.ECONNABORTED, ErrUnreachable, "the connection was closed during the handshake"},
	{syscall.EPIPE, ErrUnreachable, "the connection was closed during the handshake"},
	{syscall.ETIMEDOUT, ErrUnreachable, "it does not answer"},
	{syscall.EAGAIN, ErrUnreachable, "it accepts connections but does not answer; its target may be stopped or overloaded"},
	{syscall.EHOSTUNREACH, ErrUnreachable, "there is no route to it, or it does not answer"},
	{syscall.ENETUNREACH, ErrUnreachable, "there is no route to its network"},
	{syscall.EHOSTDOWN, ErrUnreachable, "it is down"},
	{syscall.EADDRNOTAVAIL, ErrUnreachable, "this host has no address in its network"},
	{syscall.EIO, ErrRefused, "the target does not admit this host to the subsystem, or does not serve the subsystem"},
	{syscall.EKEYREJECTED, ErrRefused, "the target did not accept this host's key"},
	{syscall.ENOKEY, ErrRefused, "the target requires this host to authenticate, and it has no key"},
	{syscall.EACCES, ErrRefused, "the target requires this host to authenticate"},
	{syscall.ENODEV, ErrUnsupported, "no device of this host supports the transport"},
	{syscall.EINVAL, ErrUnsupported, "the kernel rejects the connect options, or the module of the transport is not loaded"},
}

// Error says what failed, and what that means.
func (e *ConnectError) Error() string {
	address := net.JoinHostPort(e.Portal.Address, strconv.Itoa(int(e.Portal.Port)))
	words := "failed"
	for _, r := range reasons {
		if errors.Is(e.Err, r.errno) {
			words = r.words
		}
	}
	return fmt.Sprintf("connect to %s over %s at %s as %s: %s: %v", e.NQN, e.Portal.Transport, address, e.Host, words, e.Err)
}

// Unwrap gives the kernel's error.
func (e *ConnectError) Unwrap() error { return e.Err }

// Is tells the kind.
func (e *ConnectError) Is(target error) bool {
	for _, r := range reasons {
		if r.kind == target && errors.Is(e.Err, r.errno) {
			return true
		}
	}
	var timeout net.Error
	return target == ErrUnreachable && errors.As(e.Err, &timeout) && timeout.Timeout()
}

// NotReadyError says what a namespace that was waited for lacks.
type NotReadyError struct {
	ID
	// Lacks says what was still missing when the wait ended.
	Lacks string
	// Err is why the wait ended.
	Err error
}

// Error names the volume and what it lacks.
func (e *NotReadyError) Error() string {
	return fmt.Sprintf("namespace %s of %s is not ready: %s: %v", e.NGUID, e.NQN, e.Lacks, e.Err)
}

// Unwrap gives why the wait ended: usually the context's error.
func (e *NotReadyError) Unwrap() error { return e.Err }

// InUseError says that a namespace is still used on this host, so that its connections were left alone.
type InUseError struct {
	Namespace
	// Users are mount points, or words for another kind of use.
	Users []string
}

// Error names the users.
func (e *InUseError) Error() string {
	return fmt.Sprintf("%s (%s) is still in use: %s", e.Path, e.NQN, strings.Join(e.Users, ", "))
}

// StuckError says that the kernel did not finish taking controllers away.
type StuckError struct {
	NQN         string
	Controllers []Controller
	// Err is why the wait ended.
	Err error
}

// Error names the controllers with their states.
func (e *StuckError) Error() string {
	names := make([]string, len(e.Controllers))
	for i, c := range e.Controllers {
		names[i] = c.String()
	}
	return fmt.Sprintf("disconnect %s: the kernel has not yet removed %s: %v", e.NQN, strings.Join(names, ", "), e.Err)
}

// Unwrap gives why the wait ended.
func (e *StuckError) Unwrap() error { return e.Err }
