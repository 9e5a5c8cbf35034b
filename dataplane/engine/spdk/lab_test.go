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
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/conformance"
	"github.com/weft-storage/weft/dataplane/engine/conformance/initiator"
	"github.com/weft-storage/weft/dataplane/spdkrpc/spdktest"
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
	m.address, err = initiator.Address()
	check(t, err)
	m.plan = planOf(v1alpha1.TransportTCP, v1alpha1.TransportRDMA)
	// Machines of the lab are emulated: a core that polls takes half of one. Older releases serve RDMA only so.
	if program(t, m.real, "--version") >= "SPDK v26.01" {
		m.flags, m.plan.SPDK.Mode = []string{"--interrupt-mode"}, v1alpha1.CoresInterrupt
	}
	conformance.Run(t, &hosted{m})
}

// hosted machine: its kernel connects to the target that it runs.
type hosted struct{ *machine }

func (hosted) Traits() conformance.Traits {
	return conformance.Traits{FixedTransports: true, RefusedHostsRetry: true}
}

func (hosted) Connect(_ context.Context, _ *testing.T, portal v1alpha1.Portal, nqn, hostNQN string) (conformance.Connection, error) {
	return initiator.Connect(portal, nqn, hostNQN)
}

func (m hosted) Reset(t *testing.T) {
	t.Helper()
	initiator.DisconnectAll()
	m.kill()
	m.machine.Reset(t)
}

// BlankDevice is a loop device.
func (m hosted) BlankDevice(t *testing.T) engine.Device {
	t.Helper()
	file := filepath.Join(m.dir, uuid.NewString())
	f, err := os.Create(file)
	check(t, err)
	check(t, f.Truncate(conformance.PoolBytes))
	check(t, f.Close())
	loop := strings.TrimSpace(program(t, "losetup", "--find", "--show", "--sector-size", "4096", file))
	// The target may hold it still: it is detached then when that ends.
	t.Cleanup(func() { program(t, "losetup", "--detach", loop) })
	return engine.Device{ID: "wwid/of " + filepath.Base(loop) + "." + uuid.NewString()[:8], Path: loop}
}

func (m hosted) ForeignDevice(t *testing.T) (engine.Device, string) {
	t.Helper()
	d := m.BlankDevice(t)
	program(t, "mke2fs", "-q", "-t", "ext4", d.Path)
	return d, "ext4"
}

func program(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(context.WithoutCancel(t.Context()), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
	return string(out)
}
