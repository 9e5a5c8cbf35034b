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
	// ID of the drive that it was, as the inventory has it: what Content says is true of that drive only. Empty when
	// the kernel did not tell.
	ID string `json:"id,omitempty"`
	// Content is Blank, Weft (an lvstore), or Unknown when the kernel could not be made to look.
	Content v1alpha1.DriveContent `json:"content"`
	// CheckedAt is when that was.
	CheckedAt time.Time `json:"checkedAt"`
}

// Records by PCI address.
type Records map[string]Record

// RefusedError is why a target was started without a planned drive.
type RefusedError struct {
	// Reason is one of the constants of api/v1alpha1.
	Reason string `json:"reason"`
	// Message says what was found, and what mends it.
	Message string `json:"message"`
}

func (e *RefusedError) Error() string {
	return "the target was started without it: " + e.Message + "; it is checked again when the target pod is deleted"
}

// Refusals of planned drives, by their IDs.
type Refusals map[string]*RefusedError

func refusalsFile(socket string) string { return filepath.Join(filepath.Dir(socket), "refused.json") }

// ReadRefusals of the launcher that started the target last; without a file there are none.
func ReadRefusals(socket string) (Refusals, error) {
	refusals := Refusals{}
	return refusals, readFile(refusalsFile(socket), &refusals)
}

// Write replaces the file as a whole.
func (r Refusals) Write(socket string) error { return replaceFile(refusalsFile(socket), r) }

func recordsFile(socket string) string { return filepath.Join(filepath.Dir(socket), "drives.json") }

// ReadRecords reads what lies beside the target's socket; without a file there are none.
func ReadRecords(socket string) (Records, error) {
	records := Records{}
	if err := readFile(recordsFile(socket), &records); err != nil {
		return nil, err
	}
	return records, nil
}

// readFile into what it has the JSON of; a file that is not there leaves it as it is.
func readFile(file string, into any) error {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the records of drives: %w", err)
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("%s is damaged; remove it, but then the content of drives that SPDK already uses is unknown: %w", file, err)
	}
	return nil
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
		return fmt.Errorf("drive %s has no record in %s: weft-launch did not take it", address, recordsFile(socket))
	}
	records[address] = Record{ID: record.ID, Content: v1alpha1.ContentWeft, CheckedAt: now.UTC()}
	return records.Write(socket)
}

// Write replaces the file as a whole: a reader never sees half of it.
func (r Records) Write(socket string) error { return replaceFile(recordsFile(socket), r) }

func replaceFile(file string, content any) error {
	text, err := json.MarshalIndent(content, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(file+".new", append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("write the records of drives: %w", err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		return fmt.Errorf("write the records of drives: %w", err)
	}
	return nil
}
