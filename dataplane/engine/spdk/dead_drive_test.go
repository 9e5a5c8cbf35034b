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
			And(HaveField("Device", dead.WWID()), HaveField("NotDurable", MatchError(ContainSubstring("answers no command"))))))
		check(t, errors.Join(e.CreateVolumes(ctx, []engine.VolumeSpec{{ID: newID(), Pool: well.WWID(), SizeBytes: engine.SizeUnit}})...))
	}
	g.Expect(took[0]).To(BeNumerically("<", 20*time.Second))
	g.Expect(took[1:]).To(HaveEach(BeNumerically("<", time.Second)), "the drive is waited for once")
}

// twoDrives that the fake target drives itself.
func (m *machine) twoDrives(t *testing.T) []engine.Device {
	t.Helper()
	records := device.Records{}
	var devices []engine.Device
	for _, address := range []string{"0000:01:00.0", "0000:02:00.0"} {
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
