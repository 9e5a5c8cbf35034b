// SPDX-License-Identifier: Apache-2.0

package spdk_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"
	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/device"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
	"github.com/weft-storage/weft/dataplane/engine/spdk"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
	"github.com/weft-storage/weft/dataplane/spdkrpc/spdktest"
)

// TestDeadDrive answers nothing any more while the target serves it: that is said, and keeps the node's other drive
// from nothing, neither at the first look nor at any later one.
func TestDeadDrive(t *testing.T) {
	t.Setenv(spdktest.TargetVariable, "")
	m := newMachine(t)
	g := NewWithT(t)
	devices := m.twoDrives(t)
	dead, well := m.fake.Drives[0], m.fake.Drives[1]
	m.restart(t)
	e := m.engine(t)
	check(t, errors.Join(e.OpenPools(t.Context(), devices)...))

	m.target.(*spdktest.Target).Mute(dead.Address)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var took []time.Duration
	for range 4 {
		began := time.Now()
		state, err := e.Gather(ctx)
		took = append(took, time.Since(began))
		check(t, err)
		g.Expect(state.Pools).To(ConsistOf(
			And(HaveField("Device", well.WWID()), HaveField("Err", BeNil()), HaveField("NotDurable", BeNil())),
			And(HaveField("Device", dead.WWID()), HaveField("NotDurable", MatchError(ContainSubstring("does not answer"))))))
		check(t, errors.Join(e.CreateVolumes(ctx, []engine.VolumeSpec{{ID: newID(), Pool: well.WWID(), SizeBytes: engine.SizeUnit}})...))
	}
	g.Expect(took[0]).To(BeNumerically("<", 20*time.Second))
	g.Expect(took[1:]).To(HaveEach(BeNumerically("<", time.Second)), "the drive is waited for once")
}

// TestMuteDrive answers no read when its target starts, which SPDK would wait for without end, and keep every other
// drive waiting: the other pool is opened, a new drive becomes one, and what was deleted is cleared. Nothing is known
// of its own volumes, until it answers, or a person gives it up.
func TestMuteDrive(t *testing.T) {
	t.Setenv(spdktest.TargetVariable, "")
	m := newMachine(t)
	g := NewWithT(t)
	devices := m.drives(t, "0000:01:00.0", "0000:02:00.0", "0000:03:00.0")
	added := devices[2]
	m.restart(t)
	e := m.engine(t)
	check(t, errors.Join(e.OpenPools(t.Context(), devices[:2])...))
	var ids []engine.ID
	for _, d := range devices[:2] {
		ids = append(ids, newID())
		check(t, errors.Join(e.CreateVolumes(t.Context(), []engine.VolumeSpec{{ID: ids[len(ids)-1], Pool: d.ID, SizeBytes: engine.SizeUnit}})...))
	}

	mute := &m.fake.Drives[0]
	mute.Mute = true
	m.restart(t)
	now := time.Now()
	e, err := spdk.New(spdk.Config{Socket: m.socket(), StateDir: filepath.Join(m.dir, "state"), Now: func() time.Time { return now }})
	check(t, err)
	m.engines = append(m.engines, e)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	silent := And(MatchError(engine.ErrBusy), MatchError(ContainSubstring("does not answer")))
	g.Expect(e.OpenPools(ctx, devices)).To(HaveExactElements(silent, BeNil(), BeNil()))
	began := time.Now()
	g.Expect(e.OpenPools(ctx, devices)).To(HaveExactElements(silent, BeNil(), BeNil()))
	g.Expect(time.Since(began)).To(BeNumerically("<", time.Second), "the drive is waited for once")
	state, err := e.Gather(ctx)
	check(t, err)
	g.Expect(state.Pools).To(ConsistOf(
		And(HaveField("Device", mute.WWID()), HaveField("Err", MatchError(engine.ErrUnavailable))),
		And(HaveField("Device", devices[1].ID), HaveField("Err", BeNil())),
		And(HaveField("Device", added.ID), HaveField("Err", BeNil()))))
	g.Expect(state.Volumes).To(ConsistOf(HaveField("ID", ids[1])))
	check(t, errors.Join(e.DeleteVolumes(ctx, ids[1:])...))
	check(t, enginetest.Clear(ctx, e))
	g.Expect(e.DeleteVolumes(ctx, ids[:1])).To(HaveExactElements(MatchError(engine.ErrUnavailable)))

	now = now.Add(11 * time.Minute)
	g.Expect(e.OpenPools(ctx, devices[:1])).To(HaveExactElements(And(Not(MatchError(engine.ErrBusy)), MatchError(ContainSubstring("does not answer")))))
	g.Expect(e.ForgetPools(ctx, []string{mute.WWID()})).To(HaveExactElements(HaveOccurred()), "SPDK has not let go of the drive")
	g.Expect(e.ForgetPools(ctx, []string{mute.WWID()})).To(HaveExactElements(BeNil()))
	state, err = e.Gather(ctx)
	check(t, err)
	g.Expect(state.Pools).To(ConsistOf(HaveField("Device", devices[1].ID), HaveField("Device", added.ID)))
}

// TestPoolThatIsBeingOpened: SPDK lists an lvstore before all that is in it. An agent that comes while it opens one
// knows nothing of the pool, and takes no volume for lost. One that has seen it open before goes on.
func TestPoolThatIsBeingOpened(t *testing.T) {
	t.Setenv(spdktest.TargetVariable, "")
	m := newMachine(t)
	g := NewWithT(t)
	devices := m.twoDrives(t)
	mute := &m.fake.Drives[1]
	mute.Mute = true
	m.restart(t)
	before := m.engine(t)
	check(t, errors.Join(before.OpenPools(t.Context(), devices[:1])...))
	// The other drive went dead after it had answered a read.
	client, err := spdkrpc.New(m.socket(), spdkrpc.Options{})
	check(t, err)
	t.Cleanup(client.Close)
	_, err = spdkrpc.Call(t.Context(), client, spdkrpc.BdevNvmeAttachController{Name: "other", Transport: spdkrpc.TransportPCIe, Address: mute.Address})
	check(t, err)
	_, err = spdkrpc.Call(t.Context(), client, spdkrpc.BdevExamine{Name: "othern1"})
	check(t, err)
	pool := func(e *spdk.Engine) engine.Pool {
		t.Helper()
		state, err := e.Gather(t.Context())
		check(t, err)
		g.Expect(state.Pools).To(HaveLen(1))
		return state.Pools[0]
	}
	g.Expect(pool(before).Err).NotTo(HaveOccurred())
	after := m.engine(t)
	g.Expect(pool(after).Err).To(MatchError(engine.ErrBusy))
	_, err = spdkrpc.Call(t.Context(), client, spdkrpc.BdevNvmeDetachController{Name: "other"})
	check(t, err)
	g.Expect(pool(after).Err).NotTo(HaveOccurred())
}

// twoDrives that the fake target drives itself.
func (m *machine) twoDrives(t *testing.T) []engine.Device {
	t.Helper()
	return m.drives(t, "0000:01:00.0", "0000:02:00.0")
}

// drives at PCI addresses, which are blank.
func (m *machine) drives(t *testing.T, addresses ...string) []engine.Device {
	t.Helper()
	records := device.Records{}
	var devices []engine.Device
	for _, address := range addresses {
		drive := spdktest.Drive{Address: address, Path: filepath.Join(m.dir, address), Model: "drive", Serial: address, NGUID: uuid.New()}
		check(t, os.WriteFile(drive.Path, nil, 0o600))
		check(t, os.Truncate(drive.Path, enginetest.PoolBytes))
		m.fake.Drives = append(m.fake.Drives, drive)
		records[address] = device.Record{ID: drive.WWID(), Content: v1alpha1.ContentBlank}
		devices = append(devices, engine.Device{ID: drive.WWID(), PCIAddress: address})
	}
	check(t, records.Write(m.socket()))
	return devices
}
