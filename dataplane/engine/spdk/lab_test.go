// SPDX-License-Identifier: Apache-2.0

//go:build lab

// With this tag the suite runs with the kernel's initiator, against a real
// nvmf_tgt: on a machine of its own, as root. The lab has such machines; the target and the
// libraries it needs come along in the shared folder:
//
//	CGO_ENABLED=0 go test -c -tags lab -o $WEFT_LAB_DIR/share/spdk.test ./dataplane/engine/spdk
//	weft-lab exec node1 -- env WEFT_SPDK_TARGET=/host-share/nvmf_tgt /host-share/spdk.test -test.v
package spdk_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/device"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
	"github.com/weft-storage/weft/dataplane/spdkrpc/spdktest"
	"github.com/weft-storage/weft/internal/dhchap"
)

func TestConformance(t *testing.T) {
	if os.Getenv(spdktest.TargetVariable) == "" {
		t.Fatalf("%s is not set: name an nvmf_tgt that runs on this machine", spdktest.TargetVariable)
	}
	if out, err := exec.CommandContext(t.Context(), "modprobe", "-a", "nvme-tcp", "nvme-rdma").CombinedOutput(); err != nil {
		t.Fatalf("modprobe nvme-tcp nvme-rdma: %v: %s", err, out)
	}
	m := newMachine(t)
	var err error
	m.address, err = enginetest.LabAddress()
	check(t, err)
	m.plan = planOf(v1alpha1.TransportTCP, v1alpha1.TransportRDMA)
	m.withoutPipes()
	m.fitRDMA(t)
	m.interrupts() // older releases serve RDMA only where they poll
	enginetest.Run(t, &hosted{m})
}

// fitRDMA gives a target of a release that needs it for RDMA hugepages, which this machine sets aside.
func (m *machine) fitRDMA(t *testing.T) {
	t.Helper()
	if m.release >= "26.01" {
		return
	}
	m.plan.SPDK.Hugepages = v1alpha1.Hugepages2Mi
	const file = "/proc/sys/vm/nr_hugepages"
	check(t, os.WriteFile(file, []byte(strconv.Itoa(spdktest.RealMemoryMiB/2)), 0o200))
	got, err := os.ReadFile(file)
	check(t, err)
	if n, err := strconv.Atoi(strings.TrimSpace(string(got))); err != nil || n < spdktest.RealMemoryMiB/2 {
		t.Fatalf("%s is %q: this machine has no %d MiB for SPDK %s, which serves RDMA only from hugepages", file, got, spdktest.RealMemoryMiB, m.release)
	}
}

// hosted machine: its kernel connects to the target that it runs.
type hosted struct{ *machine }

func (m hosted) Traits() enginetest.Traits {
	return enginetest.Traits{FixedTransports: true, NoNotes: true, NoBlockLists: true, Lingers: m.lingers(), RepeatsReads: true, RetryEvery: enginetest.KernelRetries, HangsUnproved: enginetest.HangsUnproved()}
}

func (hosted) Connect(_ context.Context, t *testing.T, portal v1alpha1.Portal, nqn, hostNQN string, keys dhchap.Pair) (enginetest.Connection, error) {
	return enginetest.ConnectKernelWith(t, portal, nqn, hostNQN, keys)
}

func (m hosted) Reset(t *testing.T) {
	t.Helper()
	enginetest.DisconnectKernel()
	m.kill()
	m.machine.Reset(t)
}

// BlankDevice is a loop device.
func (m hosted) BlankDevice(t *testing.T) engine.Device {
	t.Helper()
	file := filepath.Join(m.dir, uuid.NewString())
	f, err := os.Create(file)
	check(t, err)
	check(t, f.Truncate(enginetest.PoolBytes))
	check(t, f.Close())
	loop := strings.TrimSpace(program(t, "losetup", "--find", "--show", "--sector-size", "4096", file))
	// The target may hold it still: it is detached then when that ends.
	t.Cleanup(func() { program(t, "losetup", "--detach", loop) })
	return engine.Device{ID: device.ByPathPrefix + "of/" + filepath.Base(loop) + "." + uuid.NewString()[:8], Path: loop}
}

func (m hosted) ForeignDevice(t *testing.T) (engine.Device, string) {
	t.Helper()
	d := m.BlankDevice(t)
	program(t, "mke2fs", "-q", "-t", "ext4", d.Path)
	return d, "ext4"
}

// TestPoolsReadByOthers go on being written: the kernel keeps what was read in its cache, and a target that asks it not
// to wait would be refused for as long as that is there.
func TestPoolsReadByOthers(t *testing.T) {
	m := hosted{newMachine(t)}
	m.restart(t)
	d := m.BlankDevice(t)
	e := m.engine(t)
	check(t, errors.Join(e.OpenPools(t.Context(), []engine.Device{d})...))
	for range 3 {
		program(t, "dd", "if="+d.Path, "of=/dev/null", "bs=1M")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		check(t, errors.Join(e.CreateVolumes(ctx, []engine.VolumeSpec{{ID: newID(), Pool: d.ID, SizeBytes: engine.SizeUnit}})...))
		cancel()
	}
}

// TestPoolsOfSmallRequests are refused where the target could not write to them.
func TestPoolsOfSmallRequests(t *testing.T) {
	m := hosted{newMachine(t)}
	m.restart(t)
	d := m.BlankDevice(t)
	limit := filepath.Join("/sys/block", filepath.Base(d.Path), "queue/max_sectors_kb")
	was, err := os.ReadFile(limit)
	check(t, err)
	t.Cleanup(func() { check(t, os.WriteFile(limit, was, 0o200)) }) // the loop device keeps it
	check(t, os.WriteFile(limit, []byte("64"), 0o200))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err = errors.Join(m.engine(t).OpenPools(ctx, []engine.Device{d})...)
	if m.release < "26.01" {
		NewWithT(t).Expect(err).To(MatchError(engine.ErrUnsupported))
		return
	}
	check(t, err)
}

func program(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(context.WithoutCancel(t.Context()), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
	return string(out)
}
