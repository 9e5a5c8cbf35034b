// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

const verbsDir = "sys/class/infiniband_verbs"

// VerbsSource tells an RDMA device's limits.
type VerbsSource interface {
	// Limits through the device's node, such as /dev/infiniband/uverbs0. A driver that does not tell them to a
	// program without its user-space part is ErrLimitsUnknown. It is safe for concurrent use.
	Limits(device, driver string) (Limits, error)
}

// Limits of an RDMA device.
type Limits struct {
	// MaxQP queue pairs, MaxSRQ shared receive queues, and MaxSRQWR work requests in each of these.
	MaxQP, MaxSRQ, MaxSRQWR int64
}

// ErrLimitsUnknown says that a device does not tell its limits.
var ErrLimitsUnknown = errors.New("the device does not report its limits")

// limitsOf an RDMA device; zero, which is unknown, when its module ib_uverbs or its node is not there, or its driver
// does not tell.
func limitsOf(t tree, verbs VerbsSource, name string) (Limits, error) {
	nodes, err := t.listIfThere(verbsDir)
	if err != nil {
		return Limits{}, err
	}
	for _, node := range nodes {
		owner, err := t.readIfSaid(verbsDir, node, "ibdev")
		if err != nil {
			return Limits{}, err
		}
		if owner != name {
			continue
		}
		driver, err := t.base(verbsDir, node, "device", "driver")
		if err != nil {
			return Limits{}, err
		}
		limits, err := verbs.Limits(t.path("dev/infiniband", node), driver)
		if errors.Is(err, ErrLimitsUnknown) || unsaid(err) {
			return Limits{}, nil
		}
		if err != nil {
			return Limits{}, fmt.Errorf("limits of %s (%s): %w", name, path.Join("/dev/infiniband", node), err)
		}
		return limits, nil
	}
	return Limits{}, nil
}

// Verbs asks the kernel (ib_uverbs) with the two commands that the RDMA core's own library begins with: GET_CONTEXT and
// QUERY_DEVICE of include/uapi/rdma/ib_user_verbs.h. Nothing is made on the device but the context, which goes with the
// file.
type Verbs struct{}

const (
	getContext  = 0
	queryDevice = 1
	// verbsAnswer is more than any driver answers: some write without looking at how much room there is.
	verbsAnswer = 4096
	// Where struct ib_uverbs_query_device_resp has what is asked for.
	maxQPAt, maxSRQAt, maxSRQWRAt = 52, 156, 160
)

// contextData is what drivers want to be told with GET_CONTEXT. Mellanox's (struct mlx5_ib_alloc_ucontext_req) are told
// of doorbell registers: 16, of which 4 for little latency, as their library does by default. Others want nothing.
func contextData(driver string) []byte {
	if driver != "mlx5_core" {
		return nil
	}
	return binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint32(nil, 16), 4)
}

// Limits implements VerbsSource.
func (Verbs) Limits(device, driver string) (Limits, error) {
	f, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		return Limits{}, err
	}
	defer f.Close() //nolint:errcheck // nothing was written to it but commands
	answer, err := verbsCommand(f, getContext, contextData(driver))
	if err != nil {
		return Limits{}, err
	}
	// The context comes with a file of events.
	defer unix.Close(int(binary.NativeEndian.Uint32(answer))) //nolint:errcheck // nobody reads it
	answer, err = verbsCommand(f, queryDevice, nil)
	if err != nil {
		return Limits{}, err
	}
	return parseLimits(answer), nil
}

func parseLimits(answer []byte) Limits {
	at := func(offset int) int64 { return int64(int32(binary.NativeEndian.Uint32(answer[offset:]))) }
	return Limits{MaxQP: max(at(maxQPAt), 0), MaxSRQ: max(at(maxSRQAt), 0), MaxSRQWR: max(at(maxSRQWRAt), 0)}
}

// verbsCommand writes a command, which holds the address of its answer: the kernel fills it before the write returns.
func verbsCommand(f *os.File, command uint32, driverData []byte) ([]byte, error) {
	answer := make([]byte, verbsAnswer)
	var pin runtime.Pinner
	pin.Pin(&answer[0])
	defer pin.Unpin()
	request := verbsRequest(command, uint64(uintptr(unsafe.Pointer(&answer[0]))), driverData) //nolint:gosec // the kernel writes to the address
	_, err := f.Write(request)
	switch {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.ENOSPC),
		errors.Is(err, unix.EFAULT), errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return nil, fmt.Errorf("%w: command %d: %w", ErrLimitsUnknown, command, err)
	case err != nil:
		return nil, fmt.Errorf("command %d: %w", command, err)
	}
	return answer, nil
}

// verbsRequest has struct ib_uverbs_cmd_hdr (the command, and the lengths in words of request and answer), the answer's
// address, and what the driver is told.
func verbsRequest(command uint32, answer uint64, driverData []byte) []byte {
	const header = 16
	request := binary.NativeEndian.AppendUint32(make([]byte, 0, header+len(driverData)), command)
	request = binary.NativeEndian.AppendUint16(request, uint16((header+len(driverData))/4))
	request = binary.NativeEndian.AppendUint16(request, verbsAnswer/4)
	request = binary.NativeEndian.AppendUint64(request, answer)
	return append(request, driverData...)
}
