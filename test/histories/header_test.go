// SPDX-License-Identifier: Apache-2.0

package histories

import (
	"io"
	"slices"

	"github.com/weft-storage/weft/internal/header"
)

// headerCluster of a volume on its drive, before those of its data. Its word stands for what was written there: the
// first of headerWords for the first such text, and so on. Copies of the cluster are copies of the text.
const (
	headerCluster = 0
	headerWords   = 1 << 40
)

// startOf a volume, or of a snapshot: what a host reads there first.
func (w *world) startOf(volume string) ([]byte, error) {
	word, err := w.storage.Target().ReadWord(volume, headerCluster)
	if err != nil || word == 0 {
		return make([]byte, header.Bytes), err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.starts[word-headerWords]), nil
}

// writeStart of a volume. It is one write for the drive: all of it is there, or nothing.
func (w *world) writeStart(volume string, offset int64, slot []byte) error {
	w.starting.Lock()
	defer w.starting.Unlock()
	start, err := w.startOf(volume)
	if err != nil {
		return err
	}
	copy(start[offset:], slot)
	w.mu.Lock()
	word := uint64(headerWords + len(w.starts))
	w.starts = append(w.starts, start)
	w.mu.Unlock()
	return w.storage.Target().WriteWord(volume, headerCluster, word)
}

// headerOf a volume, or of a snapshot.
func (w *world) headerOf(volume string) (header.Header, error) {
	start, err := w.startOf(volume)
	if err != nil {
		return header.Header{}, err
	}
	return header.Parse(start)
}

// OpenDirect implements nodetest.Config's Kernel: what a host reads and writes there, past its cache, lies with the
// target.
func (k kernel) OpenDirect(device string, write bool) (interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
}, error) {
	opened, err := k.Kernel.OpenDirect(device, write)
	if err != nil {
		return nil, err
	}
	return start{opened, k, device}, nil
}

type start struct {
	io.Closer
	kernel kernel
	device string
}

// ReadAt implements io.ReaderAt.
func (s start) ReadAt(p []byte, offset int64) (int, error) {
	h := s.kernel.host
	err := h.io(s.device, func(volume string) error {
		all, err := h.startOf(volume)
		if err == nil {
			copy(p, all[offset:])
		}
		return err
	})
	return len(p), err
}

// WriteAt implements io.WriterAt.
func (s start) WriteAt(p []byte, offset int64) (int, error) {
	h := s.kernel.host
	err := s.kernel.life.cross(func() error {
		return h.io(s.device, func(volume string) error { return h.writeStart(volume, offset, p) })
	})
	return len(p), err
}

// checkHeader of a volume that is staged: it says that it is the volume's, and that nobody may format it.
func (w *world) checkHeader(v *volume) {
	w.Helper()
	var h header.Header
	w.await("the target to show the header", func() bool {
		var err error
		h, err = w.headerOf(v.uuid)
		return err == nil
	})
	kind := "ext4"
	if v.block {
		kind = header.Block
	}
	if h.Volume != v.uuid || h.State != header.Formatted || h.Type != kind {
		w.Fatalf("volume %s has the header %+v", v.uuid, h)
	}
}
