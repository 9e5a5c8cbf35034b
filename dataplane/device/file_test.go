// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/dataplane/device"
)

// TestRoomOfFile: what a file takes is what it has written, whatever its size.
func TestRoomOfFile(t *testing.T) {
	g := NewWithT(t)
	path := filepath.Join(t.TempDir(), "pool")
	const written, size = 1 << 20, 1 << 40
	g.Expect(os.WriteFile(path, make([]byte, written), 0o600)).To(Succeed())
	g.Expect(os.Truncate(path, size)).To(Succeed())
	taken, left, err := device.RoomOfFile(path)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(taken).To(And(BeNumerically(">=", written), BeNumerically("<", size)))
	g.Expect(left).To(And(BeNumerically(">", 0), BeNumerically("<", size)))
}

// TestRoomOfWhatIsNoFile is unknown, and not none.
func TestRoomOfWhatIsNoFile(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	_, _, err := device.RoomOfFile(dir)
	g.Expect(err).To(MatchError(os.ErrInvalid))
	_, _, err = device.RoomOfFile(filepath.Join(dir, "missing"))
	g.Expect(err).To(MatchError(os.ErrNotExist))
}
