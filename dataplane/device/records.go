// SPDX-License-Identifier: Apache-2.0

package device

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// Record is what the launcher saw on a drive when it took it from the kernel. Nobody but SPDK sees the
// drive after that, so this is the only word on whether it may be made a pool: only a drive
// that is recorded as Blank may, and only once: see RecordLvstore.
type Record struct {
	// ID of the drive that it was, as the inventory has it: what Content says is true of that drive only. Empty when the
	// kernel did not tell.
	ID string `json:"id,omitempty"`
	// Content is Blank, Weft (an lvstore), or Unknown when the kernel could not be made to look.
	Content v1alpha1.DriveContent `json:"content"`
	// CheckedAt is when that was.
	CheckedAt time.Time `json:"checkedAt"`
}

// Records by PCI address.
type Records map[string]Record

func recordsFile(socket string) string { return filepath.Join(filepath.Dir(socket), "drives.json") }

// ReadRecords reads what lies beside the target's socket; without a file there are none.
func ReadRecords(socket string) (Records, error) {
	text, err := os.ReadFile(recordsFile(socket))
	if errors.Is(err, fs.ErrNotExist) {
		return Records{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the records of drives: %w", err)
	}
	records := Records{}
	if err := json.Unmarshal(text, &records); err != nil {
		return nil, fmt.Errorf("%s is damaged; remove it, and what is on drives that SPDK has already is unknown: %w", recordsFile(socket), err)
	}
	return records, nil
}

// RecordLvstore says that a recorded drive holds an lvstore from now on. It is to be called before the lvstore
// is made: a drive that is blank no more must not pass for blank when its lvstore cannot be found.
func RecordLvstore(socket, address string, now time.Time) error {
	records, err := ReadRecords(socket)
	if err != nil {
		return err
	}
	record, ok := records[address]
	if !ok {
		return fmt.Errorf("drive %s has no record in %s: no launcher took it", address, recordsFile(socket))
	}
	records[address] = Record{ID: record.ID, Content: v1alpha1.ContentWeft, CheckedAt: now.UTC()}
	return records.Write(socket)
}

// Write replaces the file as a whole: a reader never sees half of it.
func (r Records) Write(socket string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	file := recordsFile(socket)
	if err := os.WriteFile(file+".new", append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("write the records of drives: %w", err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		return fmt.Errorf("write the records of drives: %w", err)
	}
	return nil
}
