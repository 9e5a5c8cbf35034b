// SPDX-License-Identifier: Apache-2.0

//go:build lab

// These tests need a machine of their own, with root: they load modules, mount,
// and take everything from the kernel's target. The lab has such machines:
//
//	CGO_ENABLED=0 go test -c -tags lab -o $WEFT_LAB_DIR/share/nvmet.test ./dataplane/engine/nvmet
//	weft-lab exec node1 -- /host-share/nvmet.test -test.v
package nvmet_test

import (
	"context"
	"errors"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/device"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
	"github.com/weft-storage/weft/dataplane/engine/nvmet"
	"github.com/weft-storage/weft/internal/dhchap"
)

const (
	// stateDir and scratch are the tests' own: nothing of the machine is touched.
	stateDir = "/var/tmp/weft-conformance/state"
	scratch  = "/var/tmp/weft-conformance/scratch"
	configfs = "/sys/kernel/config/nvmet"
)

func TestConformance(t *testing.T) {
	log, err := enginetest.OpenKernelLog()
	check(t, err)
	enginetest.Run(t, harness{log})
}

type harness struct{ log *enginetest.KernelLog }

// Complaints implements enginetest.Complainer.
func (h harness) Complaints() ([]string, error) { return h.log.Complaints() }

func (harness) Engine(*testing.T) engine.Engine { return nvmet.New(nvmet.Options{StateDir: stateDir}) }

func (harness) Traits() enginetest.Traits {
	return enginetest.Traits{RetryEvery: enginetest.KernelRetries, HangsUnproved: enginetest.HangsUnproved()}
}

func (harness) Plan(*testing.T) v1alpha1.Plan { return v1alpha1.Plan{Engine: v1alpha1.EngineNvmet} }

// Reset takes away all that is weft's, by hand: not with the code under test.
func (h harness) Reset(t *testing.T) {
	enginetest.DisconnectKernel()
	h.Restart(t)
	for _, dir := range glob(t, stateDir+"/pools/*") {
		check(t, os.Remove(dir))
	}
	for _, file := range slices.Concat(glob(t, scratch+"/*"), glob(t, stateDir+"/files/*"), glob(t, stateDir+"/refused-hosts.json")) {
		check(t, os.Remove(file))
	}
	check(t, os.MkdirAll(scratch, 0o700))
}

// Lose shuts the pool's filesystem down, as XFS does by itself when it cannot write to its drive.
func (harness) Lose(t *testing.T, d engine.Device) {
	t.Helper()
	const goingDown = 0x8004587d // XFS_IOC_GOINGDOWN in linux/xfs_fs.h
	dir, err := os.Open(filepath.Join(stateDir, "pools", url.PathEscape(d.ID)))
	check(t, err)
	err = unix.IoctlSetPointerInt(int(dir.Fd()), goingDown, 0)
	check(t, errors.Join(err, dir.Close()))
}

// Restart leaves the target as a reboot does: nothing in configfs, nothing mounted, no loop device.
func (harness) Restart(t *testing.T) {
	// Ports first: a host must find nobody listening, not a port that lost its subsystem.
	for _, link := range glob(t, configfs+"/ports/*/subsystems/*") {
		check(t, os.Remove(link))
	}
	for _, dir := range glob(t, configfs+"/ports/*") {
		check(t, os.Remove(dir))
	}
	for _, link := range glob(t, configfs+"/subsystems/*/allowed_hosts/*") {
		check(t, os.Remove(link))
	}
	for _, dir := range append(glob(t, configfs+"/subsystems/*/namespaces/*"), append(glob(t, configfs+"/subsystems/*"), glob(t, configfs+"/hosts/*")...)...) {
		check(t, os.Remove(dir))
	}
	for _, dir := range glob(t, stateDir+"/pools/*") {
		if err := unix.Unmount(dir, 0); err != nil && err != unix.EINVAL {
			t.Fatalf("unmount %s: %v", dir, err)
		}
	}
	for _, loop := range loops(t, stateDir+"/") {
		program(t, "losetup", "--detach", loop)
	}
}

// wwid of an NVMe drive, such as /dev/nvme1n1.
func wwid(t *testing.T, drive string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(drive), "wwid"))
	check(t, err)
	return strings.TrimSpace(string(text))
}

// loops whose files lie under a path.
func loops(t *testing.T, under string) []string {
	var found []string
	for _, attr := range glob(t, "/sys/block/loop*/loop/backing_file") {
		if b, err := os.ReadFile(attr); err == nil && strings.HasPrefix(string(b), under) {
			found = append(found, "/dev/"+strings.Split(attr, "/")[3])
		}
	}
	return found
}

func (h harness) BlankDevice(t *testing.T) engine.Device {
	path := h.device(t)
	return engine.Device{ID: device.ByPathPrefix + "of/" + filepath.Base(path) + "." + uuid.NewString()[:8], Path: path}
}

// device of PoolBytes, a loop device that is not the pool's own.
func (harness) device(t *testing.T) string {
	file := filepath.Join(scratch, uuid.NewString())
	f, err := os.Create(file)
	check(t, err)
	check(t, f.Truncate(enginetest.PoolBytes))
	check(t, f.Close())
	loop := strings.TrimSpace(program(t, "losetup", "--find", "--show", file))
	// Runs before Reset's cleanup, when the pool is still mounted: detached then when it is unmounted.
	t.Cleanup(func() { program(t, "losetup", "--detach", loop) })
	return loop
}

func (h harness) ForeignDevice(t *testing.T) (engine.Device, string) {
	d := h.BlankDevice(t)
	program(t, "mke2fs", "-q", "-t", "ext4", d.Path)
	return d, "ext4"
}

func (harness) File(_ *testing.T, bytes int64) engine.Device {
	path := filepath.Join(stateDir, "files", uuid.NewString()+".img")
	return engine.Device{ID: path, Path: path, FileBytes: bytes}
}

func (harness) Portals(t *testing.T) []engine.Portal {
	address, err := enginetest.LabAddress()
	check(t, err)
	portal := func(transport v1alpha1.TransportType, port int32) engine.Portal {
		return engine.Portal{
			Portal:     v1alpha1.Portal{Transport: transport, Address: address, Port: port},
			QueueDepth: 64, InCapsuleDataBytes: 4096,
		}
	}
	return []engine.Portal{portal(v1alpha1.TransportTCP, 4430), portal(v1alpha1.TransportRDMA, 4431)}
}

// Kept implements enginetest.Harness.
func (harness) Kept(*testing.T) []string { return []string{stateDir, configfs} }

func (harness) Connect(_ context.Context, t *testing.T, portal v1alpha1.Portal, nqn, hostNQN string, keys dhchap.Pair) (enginetest.Connection, error) {
	return enginetest.ConnectKernelWith(t, portal, nqn, hostNQN, keys)
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	all, err := filepath.Glob(pattern)
	check(t, err)
	return all
}

func program(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(context.Background(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
	return string(out)
}
