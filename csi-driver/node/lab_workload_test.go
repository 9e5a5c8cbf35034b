// SPDX-License-Identifier: Apache-2.0

//go:build lab

package node_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

const (
	// queueDepth is how many writers there are; each has one write in flight, and blocks of its own.
	queueDepth      = 32
	blocksPerWriter = 8
	recordedBytes   = 4 << 10
	// blockStride is two regions of the bitmap.
	blockStride = 128 << 10
	// A writer keeps to blocksPerWindow of its blocks for each writingWindow, so that a bitmap that covers a few
	// seconds does not cover all of them.
	blocksPerWindow = 2
	writingWindow   = 10 * time.Second
	maxRest         = time.Second
)

// writeEvent is a write's beginning, or its end.
type writeEvent struct {
	// Seq is its number. Those of one block only ever increase.
	Seq uint64
	// Nanoseconds that it took; -1 at its beginning.
	Nanoseconds int64
	Block       uint64
}

// workload is a process that writes to a device with direct I/O, and what each block may have.
type workload struct {
	process *exec.Cmd
	// stop ends the process once its writes have ended.
	stop  io.Closer
	wrote chan error

	mu sync.Mutex
	// next number of a write; 0 is a block that was never written.
	next uint64
	// acknowledged write of each block, and those that may be there instead, because nobody knows how they ended.
	acknowledged [queueDepth * blocksPerWriter]uint64
	open         [queueDepth * blocksPerWriter][]uint64
	// begun is when a block was written last.
	begun   [queueDepth * blocksPerWriter]time.Time
	longest time.Duration
	writes  int
}

func newWorkload() *workload { return &workload{next: 1} }

// Variables of a process that writes.
const writerDevice, writerSeed, writerNext = "WEFT_WRITER_DEVICE", "WEFT_WRITER_SEED", "WEFT_WRITER_NEXT"

// TestMain is a process that writes, too.
func TestMain(m *testing.M) {
	device := os.Getenv(writerDevice)
	if device == "" {
		os.Exit(m.Run())
	}
	var seed, next uint64
	if _, err := fmt.Sscan(os.Getenv(writerSeed)+" "+os.Getenv(writerNext), &seed, &next); err != nil {
		panic(err)
	}
	if err := writeUntilStopped(device, seed, next); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// writersReady is the first byte that a process says, once all its writers have the device open: one that is taken away
// any sooner would be missing, and its writers not be killed.
const writersReady = 'R'

// startWriting in a process of its own, with all writers, from a seed.
func (w *workload) startWriting(path string, seed uint64) error {
	w.mu.Lock()
	next := w.next
	w.mu.Unlock()
	var failure bytes.Buffer
	w.process, w.wrote = exec.CommandContext(context.Background(), "/proc/self/exe"), make(chan error, 1)
	w.process.Env = append(os.Environ(), writerDevice+"="+path, fmt.Sprintf("%s=%d", writerSeed, seed), fmt.Sprintf("%s=%d", writerNext, next))
	w.process.Stderr = &failure
	stop, err := w.process.StdinPipe()
	if err != nil {
		return err
	}
	written, err := w.process.StdoutPipe()
	if err != nil {
		return err
	}
	if err := w.process.Start(); err != nil {
		return err
	}
	w.stop = stop
	_, ready := io.ReadFull(written, make([]byte, 1))
	go func() {
		err := w.follow(written)
		if failed := w.process.Wait(); failed != nil {
			err = errors.Join(err, fmt.Errorf("%w: %s", failed, strings.TrimSpace(failure.String())))
		}
		w.wrote <- err
	}()
	if ready != nil {
		return errors.Join(ready, w.writingEnded())
	}
	return nil
}

// stopWriting waits until all writes have ended, and fails if one failed, or the process was killed.
func (w *workload) stopWriting() error {
	if w.stop == nil {
		return nil
	}
	if err := w.stop.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return err
	}
	return w.writingEnded()
}

// writingEnded waits until somebody has ended the process, and all its writes have ended.
func (w *workload) writingEnded() error {
	err := <-w.wrote
	w.stop = nil
	return err
}

// killWriting kills the process. It ends when its writes do.
func (w *workload) killWriting() error { return w.process.Process.Kill() }

// follow what the process says of its writes, until it has ended.
func (w *workload) follow(written io.Reader) error {
	for {
		var is writeEvent
		err := binary.Read(written, binary.LittleEndian, &is)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		w.mu.Lock()
		w.next = max(w.next, is.Seq+1)
		if is.Nanoseconds < 0 {
			w.open[is.Block] = append(w.open[is.Block], is.Seq)
			w.begun[is.Block] = time.Now()
		} else {
			w.acknowledged[is.Block], w.open[is.Block] = is.Seq, nil
			w.longest = max(w.longest, time.Duration(is.Nanoseconds))
			w.writes++
		}
		w.mu.Unlock()
	}
}

// writeUntilStopped writes in this process, until standard input ends, and says on standard output what it does. All
// writers write at once, a few times, and then rest for as long as that took, at most maxRest: without a pause, the
// kernel copies next to nothing in an emulated machine.
func writeUntilStopped(device string, seed, next uint64) error {
	stop := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(stop)
	}()
	number := atomic.Uint64{}
	number.Store(next - 1)
	var writers []*blockWriter
	for n := range queueDepth {
		w, err := newBlockWriter(device, n, seed, &number)
		if err != nil {
			return err
		}
		writers = append(writers, w)
	}
	if _, err := os.Stdout.Write([]byte{writersReady}); err != nil {
		return err
	}
	for {
		var group errgroup.Group
		begun := time.Now()
		for _, w := range writers {
			group.Go(w.write)
		}
		if err := group.Wait(); err != nil {
			return err
		}
		select {
		case <-stop:
			return nil
		case <-time.After(min(time.Since(begun), maxRest)):
		}
	}
}

// blockWriter writes blocks of its own.
type blockWriter struct {
	n      int
	file   *os.File
	memory []byte
	rng    *rand.Rand
	number *atomic.Uint64
	// window of blocks that it writes, and since when.
	window []int
	since  time.Time
}

func newBlockWriter(device string, n int, seed uint64, number *atomic.Uint64) (*blockWriter, error) {
	f, err := os.OpenFile(device, os.O_WRONLY|unix.O_DIRECT, 0)
	if err != nil {
		return nil, err
	}
	memory, err := directMemory()
	return &blockWriter{n: n, file: f, memory: memory, rng: rand.New(rand.NewPCG(seed, uint64(n))), number: number}, err
}

// write a few blocks, one after the other.
func (w *blockWriter) write() error {
	if time.Since(w.since) > writingWindow {
		w.window, w.since = w.rng.Perm(blocksPerWriter)[:blocksPerWindow], time.Now()
	}
	for range 1 + w.rng.IntN(3) {
		block := w.n*blocksPerWriter + w.window[w.rng.IntN(blocksPerWindow)]
		if err := writeBlock(w.file, w.memory, block, w.number.Add(1)); err != nil {
			return fmt.Errorf("writer %d: %w", w.n, err)
		}
	}
	if w.rng.IntN(16) == 0 {
		if err := unix.Fdatasync(int(w.file.Fd())); err != nil {
			return fmt.Errorf("writer %d: fdatasync: %w", w.n, err)
		}
	}
	return nil
}

// writeBlock says that it begins before the kernel knows of it, and that it has ended only after the kernel said so.
func writeBlock(f *os.File, memory []byte, block int, seq uint64) error {
	is := writeEvent{Seq: seq, Nanoseconds: -1, Block: uint64(block)}
	if err := say(is); err != nil {
		return err
	}
	fillBlock(memory, block, seq)
	begun := time.Now()
	if _, err := f.WriteAt(memory, int64(block)*blockStride); err != nil {
		return err
	}
	is.Nanoseconds = time.Since(begun).Nanoseconds()
	return say(is)
}

// say is one write to a pipe, so that what several writers say is not mixed.
func say(is writeEvent) error {
	var text bytes.Buffer
	if err := binary.Write(&text, binary.LittleEndian, is); err != nil {
		return err
	}
	_, err := os.Stdout.Write(text.Bytes())
	return err
}

// written is how many writes were acknowledged.
func (w *workload) written() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.writes
}

// blocksSince is how many blocks were written since then, each in another region of the bitmap.
func (w *workload) blocksSince(then time.Time) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	blocks := 0
	for _, begun := range w.begun {
		if begun.After(then) {
			blocks++
		}
	}
	return blocks
}

// acked gives the write of each block that was acknowledged last.
func (w *workload) acked() []uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.acknowledged[:])
}

// fillBlock with its volume, its number, the write's number, and a checksum.
func fillBlock(memory []byte, block int, seq uint64) {
	clear(memory)
	copy(memory, volumeUUID)
	binary.LittleEndian.PutUint32(memory[40:], uint32(block))
	for at := 48; at < recordedBytes-8; at += 8 {
		binary.LittleEndian.PutUint64(memory[at:], seq)
	}
	binary.LittleEndian.PutUint32(memory[recordedBytes-8:], crc32.ChecksumIEEE(memory[:recordedBytes-8]))
}

// readBlock gives the number of the write that a block has.
func readBlock(memory []byte, block int) (uint64, error) {
	seq := binary.LittleEndian.Uint64(memory[48:])
	want := make([]byte, recordedBytes)
	if seq != 0 {
		fillBlock(want, block, seq)
	}
	if !bytes.Equal(memory, want) {
		return 0, fmt.Errorf("block %d has what no write wrote: %x", block, memory[:64])
	}
	return seq, nil
}

func directMemory() ([]byte, error) {
	return unix.Mmap(-1, 0, recordedBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
}

// readBlocks gives the numbers of the writes that the blocks of a device have, from an offset on. One that is being
// written is read again.
func (w *workload) readBlocks(path string, flags int, offset int64) ([]uint64, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|flags, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read
	memory, err := directMemory()
	if err != nil {
		return nil, err
	}
	defer unix.Munmap(memory) //nolint:errcheck // of this process
	found := make([]uint64, len(w.acknowledged))
	for block := range found {
		for tried := 0; ; tried++ {
			if _, err := f.ReadAt(memory, offset+int64(block)*blockStride); err != nil {
				return nil, err
			}
			if found[block], err = readBlock(memory, block); err == nil {
				break
			}
			if tried == 10 {
				return nil, err
			}
		}
	}
	return found, nil
}

// check all blocks of a device, from an offset on, past all caches, while nobody writes. It gives what it found.
func (w *workload) check(path string, offset int64) ([]uint64, error) {
	found, err := w.readBlocks(path, unix.O_DIRECT, offset)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for block, seq := range found {
		if seq != w.acknowledged[block] && !slices.Contains(w.open[block], seq) {
			err = errors.Join(err, fmt.Errorf("block %d has write %d, not %d, which was acknowledged, nor one of %v", block, seq, w.acknowledged[block], w.open[block]))
		}
	}
	return found, err
}

// settleOn what was found: nothing else may be there from now on, until it is written.
func (w *workload) settleOn(found []uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for block, seq := range found {
		w.acknowledged[block], w.open[block] = seq, nil
	}
}
