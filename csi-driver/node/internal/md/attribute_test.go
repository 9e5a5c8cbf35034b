// SPDX-License-Identifier: Apache-2.0

package md

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// An attribute that changes while it is read is not put together from what it was and what it is: what a pipe has after
// the first read is not asked for.
func TestAttributeIsReadOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sync_completed")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	pipe, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pipe.WriteString("none\n"); err != nil {
		t.Fatal(err)
	}
	read := make(chan string, 1)
	go func() {
		value, err := attribute(path)
		if err != nil {
			value = err.Error()
		}
		read <- value
	}()
	// The reader has the pipe open once it is empty: what is written now comes after the first read.
	for left := 1; left > 0; {
		if left, err = unread(pipe); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := pipe.WriteString("65536\n"); err != nil {
		t.Fatal(err)
	}
	if err := pipe.Close(); err != nil {
		t.Fatal(err)
	}
	if value := <-read; value != "none" {
		t.Errorf("read %q", value)
	}
}

// unread bytes of a pipe.
func unread(pipe *os.File) (int, error) {
	return unix.IoctlGetInt(int(pipe.Fd()), unix.TIOCINQ)
}
