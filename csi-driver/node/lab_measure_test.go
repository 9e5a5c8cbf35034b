// SPDX-License-Identifier: Apache-2.0

//go:build lab

package node_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node/internal/mapper"
	"github.com/weft-storage/weft/csi-driver/node/internal/md"
)

const (
	// measureRounds of measureTime each, in turns, so that other work on the machine meets all alike.
	measureRounds = 101
	measureTime   = 100 * time.Millisecond
	// measureRamp before each is not counted: an array that was idle marks itself dirty on each leg before it writes.
	measureRamp = 50 * time.Millisecond
	// measureFrom lies behind everything that a replica begins with.
	measureFrom = 8 << 20
)

// asynchronous I/O as the kernel has it (include/uapi/linux/aio_abi.h): one thread keeps a depth of requests.
type (
	iocb struct {
		data        uint64
		_, _        uint32 // key and flags
		opcode      uint16
		_           int16 // priority
		fd          uint32
		memory, len uint64
		offset      int64
		_           uint64
		_, _        uint32
	}
	ioEvent struct {
		data, request uint64
		result, _     int64
	}
)

// perSecond measures 4 KiB requests a second at random offsets of a device.
func perSecond(path string, write bool, depth int) (float64, error) {
	const block = 4096
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_DIRECT, 0)
	if err != nil {
		return 0, err
	}
	defer f.Close() //nolint:errcheck // past all caches
	memory, err := unix.Mmap(-1, 0, block*depth, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return 0, err
	}
	defer unix.Munmap(memory) //nolint:errcheck // the process ends soon
	var context uint64
	if _, _, errno := unix.Syscall(unix.SYS_IO_SETUP, uintptr(depth), uintptr(unsafe.Pointer(&context)), 0); errno != 0 {
		return 0, errno
	}
	defer unix.Syscall(unix.SYS_IO_DESTROY, uintptr(context), 0, 0) //nolint:errcheck // waits for what is on its way
	requests, events := make([]iocb, depth), make([]ioEvent, depth)
	free := make([]*iocb, 0, depth)
	for n := range requests {
		requests[n] = iocb{data: uint64(n), fd: uint32(f.Fd()), memory: uint64(uintptr(unsafe.Pointer(&memory[n*block]))), len: block}
		if write {
			requests[n].opcode = 1
		}
		free = append(free, &requests[n])
	}
	// A call submits at least half of them: on an emulated machine, calls cost more than requests.
	ramped, done := time.Now().Add(measureRamp), 0
	var begun time.Time
	for begun.IsZero() || time.Since(begun) < measureTime {
		for _, request := range free {
			request.offset = measureFrom + rand.Int64N(stackBytes/2/block)*block
		}
		for len(free) > 0 {
			got, _, errno := unix.Syscall(unix.SYS_IO_SUBMIT, uintptr(context), uintptr(len(free)), uintptr(unsafe.Pointer(&free[0])))
			if errno != 0 {
				return 0, errno
			}
			free = free[got:]
		}
		free = make([]*iocb, 0, depth)
		got, _, errno := unix.Syscall6(unix.SYS_IO_GETEVENTS, uintptr(context), uintptr((depth+1)/2), uintptr(depth), uintptr(unsafe.Pointer(&events[0])), 0, 0)
		switch errno {
		case 0:
		case unix.EINTR: // Go's runtime interrupts it
			got = 0
		default:
			return 0, errno
		}
		for _, e := range events[:got] {
			if e.result != block {
				return 0, fmt.Errorf("a request gave %d: %w", e.result, unix.EIO)
			}
			free = append(free, &requests[e.data])
		}
		if !begun.IsZero() {
			done += len(free)
		} else if time.Now().After(ramped) {
			begun = time.Now()
		}
	}
	return float64(done) / time.Since(begun).Seconds(), nil
}

// compare devices in turns: it gives the median of each in requests a second, and of each round's ratio to the first.
func compare(t *testing.T, write bool, depth int, paths ...string) (medians, ratios []float64) {
	t.Helper()
	all, against := make([][]float64, len(paths)), make([][]float64, len(paths))
	for round := range measureRounds + 1 {
		for i, path := range paths {
			v, err := perSecond(path, write, depth)
			must(t, err)
			if round > 0 { // the first warms up
				all[i], against[i] = append(all[i], v), append(against[i], v/last(all[0], v))
			}
		}
	}
	for i := range paths {
		slices.Sort(all[i])
		slices.Sort(against[i])
		medians, ratios = append(medians, all[i][measureRounds/2]), append(ratios, against[i][measureRounds/2])
	}
	return medians, ratios
}

func last(values []float64, otherwise float64) float64 {
	if len(values) == 0 {
		return otherwise
	}
	return values[len(values)-1]
}

func atLeast(t *testing.T, bound, ratio float64, what string) {
	t.Helper()
	if ratio < bound {
		t.Errorf("%s: ratio %.3f, and it is to be %.2f at least", what, ratio, bound)
	}
}

// inMemory is a folder of a filesystem in memory.
func (l *lab) inMemory() string {
	l.Helper()
	dir := filepath.Join(l.dir, "memory")
	must(l, os.Mkdir(dir, 0o750))
	l.run("mount", "-t", "tmpfs", "none", dir)
	l.Cleanup(func() { l.run("umount", dir) })
	return dir
}

// allocate all of a device.
func (l *lab) allocate(path string, sizeBytes int64) {
	l.Helper()
	l.run("dd", "if=/dev/zero", "of="+path, "bs=1M", fmt.Sprintf("count=%d", sizeBytes>>20), "oflag=direct", "status=none")
}

// TestMeasureEncryption says what an encrypted volume costs against a plain one, both of a target that keeps its data
// in memory, in requests of 4 KiB. It depends on the processor's instructions for AES, so nothing is asked of it.
func TestMeasureEncryption(t *testing.T) {
	l := setUpLab(t)
	dir, port := l.inMemory(), l.port(4450, v1alpha1.TransportTCP)
	var paths []string
	for _, v := range []*volume{
		l.volumeIn(dir, "plain", stackBytes, guid(1), port),
		l.volumeIn(dir, "encrypted", stackBytes+v1alpha1.LUKSHeaderBytes, guid(2), port).encrypt(),
	} {
		v.up(blockCapability())
		path := v.device().Path
		l.allocate(path, stackBytes)
		paths = append(paths, path)
	}
	for _, depth := range []int{1, 32} {
		for _, write := range []bool{false, true} {
			medians, ratios := compare(t, write, depth, paths...)
			t.Logf("encrypted, write %t, depth %d: %.0f a second, plain %.0f, ratio %.3f", write, depth, medians[1], medians[0], ratios[1])
		}
	}
}

// TestMeasureStack says what the layers of a node's stack cost, against the bare device of a target that keeps its data
// in memory, in requests of 4 KiB. It fails when a layer costs more than it may. make bench-kernel runs it.
func TestMeasureStack(t *testing.T) {
	l := setUpLab(t)
	s := l.stackIn(l.inMemory())
	a, b := s.legs[0], s.legs[1]
	for _, leg := range s.legs {
		l.allocate(leg.ns.Path, leg.ns.SizeBytes)
		leg.build()
	}
	spec := s.overLeg(a)
	spec.Lower, spec.OffsetBytes = mapper.Lower{Name: a.slice.Name, Number: a.slice.Number}, v1alpha1.HeaderBytes-md.RecordBytes
	s.build(spec)
	for _, depth := range []int{1, 32} {
		for _, write := range []bool{false, true} {
			medians, ratios := compare(t, write, depth, a.ns.Path, s.top.Path)
			t.Logf("slice and top, write %t, depth %d: %.0f of %.0f a second, ratio %.3f", write, depth, medians[1], medians[0], ratios[1])
			atLeast(t, 0.97, ratios[1], "slice and top")
		}
	}
	s.remove()
	s.create(a.member(), b.member())
	s.build(s.overMirror())
	for _, depth := range []int{1, 32} {
		medians, ratios := compare(t, false, depth, a.ns.Path, s.top.Path)
		t.Logf("reads of a mirror, depth %d: %.0f of %.0f a second, ratio %.3f", depth, medians[1], medians[0], ratios[1])
		atLeast(t, 0.95, ratios[1], "reads of a mirror")
		medians, _ = compare(t, true, depth, a.ns.Path, b.ns.Path, s.top.Path)
		ratio := medians[2] / min(medians[0], medians[1])
		t.Logf("writes of a mirror, depth %d: %.0f a second, its legs alone %.0f and %.0f, ratio to the slower %.3f", depth, medians[2], medians[0], medians[1], ratio)
		atLeast(t, 0.85, ratio, "writes of a mirror")
	}
}
