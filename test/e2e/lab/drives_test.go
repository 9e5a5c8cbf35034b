// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"os"
	"strings"
	"testing"
)

// TestDrivesAreCarried: a drive that is taken out of a lab is in a node of another one, with its number and what is on
// it, and beside the node's own.
func TestDrivesAreCarried(t *testing.T) {
	from, to, dir := testLab(t), testLab(t), t.TempDir()
	to.state.Nodes = []string{"second1", "second2"}
	for path, content := range map[string]string{from.drive("node2", 1): "carried", to.drive("second1", 1): "its own"} {
		if err := writeFileAtomic(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	drive, err := from.TakeDrive("node2", 1, dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := from.TakeDrive("node2", 1, dir); err == nil {
		t.Error("the drive was taken out twice")
	}
	if err := to.plugIn(map[string][]Drive{"node2": {drive}}); err == nil {
		t.Error("the drive was put into a node that is not there")
	}
	if err := to.plugIn(map[string][]Drive{"second1": {drive}}); err != nil {
		t.Fatal(err)
	}
	again, err := Open(to.Dir)
	if err != nil {
		t.Fatal(err)
	}
	args := strings.Join(again.qemuArgs(0), " ")
	for _, want := range []string{"serial=" + DriveSerial("node2", 1), "serial=" + DriveSerial("second1", 0), "serial=" + DriveSerial("second1", 1)} {
		if strings.Count(args, want) != 1 {
			t.Errorf("the arguments have %q %d times: %s", want, strings.Count(args, want), args)
		}
	}
	for path, want := range map[string]string{again.carriedDrive("second1", 0): "carried", again.drive("second1", 1): "its own"} {
		if content, err := os.ReadFile(path); err != nil || string(content) != want {
			t.Errorf("%s has %q (%v), want %q", path, content, err, want)
		}
	}
	if args := strings.Join(again.qemuArgs(1), " "); strings.Contains(args, "carried") {
		t.Errorf("the other node has the drive: %s", args)
	}
	for _, opts := range []Options{{Names: from.state.Nodes}, {Carried: map[string][]Drive{"second1": {drive}}}} {
		if err := again.matches(opts); err == nil {
			t.Errorf("a lab that runs gets %+v", opts)
		}
	}
	if err := again.matches(Options{Names: to.state.Nodes}); err != nil {
		t.Error(err)
	}
}
