// SPDX-License-Identifier: Apache-2.0

package spdktest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// An lvstore's metadata lies on its device: SPDK's signature in the first block, so that whoever looks at the device
// sees what is there, and from the second one on a journal of this package: a line of text that names it, then one
// JSON record a line, ended by a zero byte. It has the space that SPDK's metadata would have.
const (
	signature     = "SPDKBLOB"
	journalStart  = 4096
	journalHeader = "weft spdktest lvstore 1\n"
)

// A disk is a file or block device under a bdev.
type disk struct {
	file *os.File
	path string
	size int64
	// volatile says that a write is acknowledged now which would be lost with the power; nil: none ever is.
	volatile func() bool
	// cached are the writes that would be, oldest first.
	cached []covered
}

func openDisk(path string, readOnly bool) (*disk, error) {
	flags := os.O_RDWR
	if readOnly {
		flags = os.O_RDONLY
	}
	f, err := os.OpenFile(path, flags, 0)
	if err != nil {
		return nil, err
	}
	d := &disk{file: f, path: path}
	if err := d.measure(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return d, nil
}

func (d *disk) measure() error {
	size, err := d.file.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("size of %s: %w", d.path, err)
	}
	d.size = size
	return nil
}

// holdsData says whether a file has any from there on.
func (d *disk) holdsData(from int64) bool {
	info, err := d.file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return false
	}
	_, err = unix.Seek(int(d.file.Fd()), from, unix.SEEK_DATA)
	return err == nil
}

func (d *disk) close() { _ = d.file.Close() } // everything was written, or told

var errForeign = fmt.Errorf("the device holds an lvstore of a real target: %w", syscall.EIO)

// hasStore says whether the journal of a fake is on the disk. A real target's blobstore is errForeign: the fake
// cannot read it, and must not take the device for a blank one.
func (d *disk) hasStore() (bool, error) {
	head := make([]byte, journalStart+len(journalHeader))
	n, err := d.file.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	head = head[:n]
	switch {
	case !bytes.HasPrefix(head, []byte(signature)):
		return false, nil
	case n < cap(head) || string(head[journalStart:]) != journalHeader:
		return false, errForeign
	}
	return true, nil
}

// A storeRecord describes an lvstore, a volumeRecord a volume as it is after a change, and an empty one its end.
type storeRecord struct {
	UUID        string `json:"uuid"`
	Name        string `json:"name"`
	ClusterSize uint64 `json:"clusterSize"`
	MDPages     uint64 `json:"mdPages"`
	MDClusters  uint64 `json:"mdClusters"`
	Clusters    uint64 `json:"clusters"`        // for data
	Dirty       uint64 `json:"dirty,omitempty"` // clusters that were freed as they were
	Lost        bool   `json:"lost,omitempty"`  // its first page was overwritten
}

type volumeRecord struct {
	UUID      string      `json:"uuid"`
	Name      string      `json:"name"`
	Thin      bool        `json:"thin,omitempty"`
	Snapshot  bool        `json:"snapshot,omitempty"`
	ReadOnly  bool        `json:"readOnly,omitempty"`
	Clear     string      `json:"clear,omitempty"` // clear method of what it frees
	Clusters  uint64      `json:"clusters"`
	Parent    uint64      `json:"parent,omitempty"` // page of the snapshot it is a clone of
	Dirty     uint64      `json:"dirty,omitempty"`  // clusters that it was given as they were
	Allocated [][2]uint64 `json:"allocated,omitempty"`
	Words     [][2]uint64 `json:"words,omitempty"` // what hosts wrote, by cluster
}

type record struct {
	Store  *storeRecord  `json:"store,omitempty"`
	Page   uint64        `json:"page,omitempty"`
	Volume *volumeRecord `json:"volume,omitempty"`
}

// journal appends records of changes, and writes itself anew when its space is full.
type journal struct {
	disk    *disk
	end     int64 // where the next record goes
	limit   int64
	pending bytes.Buffer
}

func (j *journal) add(r record) error {
	line, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	j.pending.Write(line)
	j.pending.WriteByte('\n')
	return nil
}

// sync makes the pending records lasting; all gives every record there should be, for a new start.
func (j *journal) sync(all func() []record) error {
	if j.pending.Len() == 0 {
		return nil
	}
	if j.end+int64(j.pending.Len()) >= j.limit {
		j.pending.Reset()
		j.end = journalStart + int64(len(journalHeader))
		for _, r := range all() {
			if err := j.add(r); err != nil {
				return err
			}
		}
		if j.end+int64(j.pending.Len()) >= j.limit {
			return fmt.Errorf("the lvstore on %s has more metadata than space for it: %w", j.disk.path, syscall.ENOSPC)
		}
	}
	n := j.pending.Len()
	j.pending.WriteByte(0)
	if err := j.disk.write(j.pending.Bytes(), j.end); err != nil {
		return fmt.Errorf("write journal: %w", err)
	}
	j.end += int64(n)
	j.pending.Reset()
	return nil
}

// format starts an empty journal on the disk, over whatever was there.
func (j *journal) format() error {
	head := make([]byte, journalStart, journalStart+len(journalHeader)+1)
	copy(head, signature)
	head = append(append(head, journalHeader...), 0)
	if err := j.disk.write(head, 0); err != nil {
		return fmt.Errorf("write superblock: %w", err)
	}
	j.end = journalStart + int64(len(journalHeader))
	return nil
}

// load reads the journal: the store, and its volumes by page.
func (d *disk) load() (store storeRecord, volumes map[uint64]*volumeRecord, end int64, err error) {
	volumes = map[uint64]*volumeRecord{}
	end = journalStart + int64(len(journalHeader))
	in := bufio.NewReaderSize(io.NewSectionReader(d.file, end, d.size-end), 1<<20)
	for {
		if next, err := in.Peek(1); err == nil && next[0] == 0 {
			return store, volumes, end, nil // what follows the zero byte is of an earlier round
		}
		line, err := in.ReadBytes('\n')
		if err != nil {
			return store, nil, 0, fmt.Errorf("read journal: %w", err)
		}
		var r record
		if err := json.Unmarshal(line, &r); err != nil {
			return store, nil, 0, fmt.Errorf("read journal at %d: %w", end, err)
		}
		switch {
		case r.Store != nil:
			store = *r.Store
		case r.Volume != nil:
			volumes[r.Page] = r.Volume
		default:
			delete(volumes, r.Page)
		}
		end += int64(len(line))
	}
}
