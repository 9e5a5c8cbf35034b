// SPDX-License-Identifier: Apache-2.0

package spdk_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/conformance"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
	"github.com/weft-storage/weft/dataplane/spdkrpc/spdktest"
)

const driveAddress = "0000:01:00.0"

// promises zeroes for what was deallocated, and breaks that with a loss of power.
var promises = spdktest.Drive{Zeroes: true, Forgets: true, WriteCache: spdktest.NoWriteCache}

// discarding is a rig on the fake whose pool is a drive that SPDK drives itself, and one more that is a file.
func discarding(t *testing.T, version string, drive spdktest.Drive, policy v1alpha1.Switch) (r *rig, file engine.Device, masked func() bool) {
	t.Helper()
	m := onFake(t, version)
	path := filepath.Join(m.dir, "drive")
	check(t, os.WriteFile(path, nil, 0o600))
	check(t, os.Truncate(path, conformance.PoolBytes))
	drive.Address, drive.Path, drive.BlockSize, drive.Serial = driveAddress, path, 4096, "S1"
	m.fake.Drives = []spdktest.Drive{drive}
	check(t, os.WriteFile(filepath.Join(m.dir, "drives.json"), []byte(`{"`+driveAddress+`": {"id": "`+drive.WWID()+`", "content": "Blank"}}`), 0o600))
	m.plan.SPDK = m.plan.SPDK.DeepCopy()
	m.plan.SPDK.Discard = policy
	r = &rig{machine: m, WithT: NewWithT(t), t: t, ctx: t.Context(), device: engine.Device{ID: drive.WWID(), PCIAddress: driveAddress}}
	m.launch(t)
	var features []string
	m.target.(*spdktest.Target).Inject(spdktest.Fault{Method: "nvmf_create_transport", Times: -1, Match: func(params json.RawMessage) bool {
		var all map[string]json.RawMessage
		if json.Unmarshal(params, &all) == nil {
			features = append(features, string(all["masked_oncs"]))
		}
		return false
	}})
	r.engine = m.engine(t)
	check(t, r.engine.Start(r.ctx, m.plan))
	var err error
	r.client, err = spdkrpc.New(r.socket(), spdkrpc.Options{})
	check(t, err)
	t.Cleanup(r.client.Close)
	file = m.file(conformance.PoolBytes)
	r.done(r.engine.OpenPools(r.ctx, []engine.Device{r.device, file}))
	r.done(r.engine.OpenPortals(r.ctx, m.portals()))
	return r, file, func() bool {
		r.Expect(features).NotTo(BeEmpty())
		return !slices.Contains(features, "")
	}
}

// limit of discards of a volume's subsystem, in blocks, once it was exported.
func (r *rig) limit(pool string, discard bool) uint32 {
	r.t.Helper()
	id := newID()
	r.done(r.engine.CreateVolumes(r.ctx, []engine.VolumeSpec{{ID: id, Pool: pool, SizeBytes: 4 * mib}}))
	x := r.exportOf(id)
	x.Discard = discard
	r.done(r.engine.Export(r.ctx, []engine.Export{x}))
	found, err := spdkrpc.Call(r.ctx, r.client, spdkrpc.NvmfGetSubsystems{NQN: x.NQN})
	check(r.t, err)
	return found[0].MaxDiscardBlocks
}

// TestDiscard: where the plan lets hosts discard, those of each export that may can; of any other, a discard is cut to
// a block, and frees nothing, whatever host sends it. A pool that SPDK does not drive itself never lets them.
func TestDiscard(t *testing.T) {
	r, file, masked := discarding(t, "26.05", promises, v1alpha1.SwitchEnabled)
	r.Expect(masked()).To(BeFalse())
	r.Expect(r.limit(r.device.ID, true)).To(BeEquivalentTo(256 << 20 / 4096))
	r.Expect(r.limit(r.device.ID, false)).To(BeEquivalentTo(1))
	r.Expect(r.limit(file.ID, true)).To(BeEquivalentTo(1))
	state := r.state()
	r.Expect(state.Discard).To(BeTrue())
	r.Expect(state.Pools).To(ConsistOf(
		And(HaveField("Device", r.device.ID), HaveField("Deallocated", v1alpha1.DeallocatedZeroes)),
		And(HaveField("Device", file.ID), HaveField("Deallocated", v1alpha1.DeallocatedUndefined))))
	var may int
	for _, x := range state.Exports {
		if x.Discard {
			may++
		}
	}
	r.Expect(may).To(Equal(1))

	// Another process knows it too, and that it takes a restart to change.
	e := r.machine.engine(t)
	check(t, e.Start(r.ctx, r.plan))
	plan := r.plan
	plan.SPDK = r.plan.SPDK.DeepCopy()
	plan.SPDK.Discard = ""
	r.Expect(e.Start(r.ctx, plan)).To(MatchError(ContainSubstring("discarding by hosts is on and should be off")))
	settings, err := e.Settings(r.ctx, plan)
	check(t, err)
	r.Expect(settings).To(ContainElement(And(HaveField("Setting", "discard"), HaveField("Value", "Enabled"))))
}

// TestDiscardIsKeptFromHosts unless the plan lets them, by a release that can keep it from some.
func TestDiscardIsKeptFromHosts(t *testing.T) {
	for version, policy := range map[string]v1alpha1.Switch{"26.05": "", "26.01": v1alpha1.SwitchEnabled} {
		t.Run(version, func(t *testing.T) {
			r, _, masked := discarding(t, version, promises, policy)
			r.Expect(masked()).To(BeTrue())
			r.Expect(r.limit(r.device.ID, true)).To(BeZero(), "no limit: Linux goes by what is offered then")
			r.Expect(r.state().Discard).To(BeFalse())
			r.Expect(r.state().Exports).To(HaveEach(HaveField("Discard", false)))
			check(t, r.machine.engine(t).Start(r.ctx, r.plan))
			if policy == "" {
				plan := r.plan
				plan.SPDK = r.plan.SPDK.DeepCopy()
				plan.SPDK.Discard = v1alpha1.SwitchEnabled
				r.Expect(r.machine.engine(t).Start(r.ctx, plan)).To(MatchError(ContainSubstring("discarding by hosts is off and should be on")))
			}
		})
	}
	for _, drive := range []spdktest.Drive{{WriteCache: spdktest.NoWriteCache}, {Zeroes: true, WriteCache: spdktest.VolatileWriteCache}} {
		r, _, _ := discarding(t, "26.05", drive, v1alpha1.SwitchEnabled)
		r.Expect(r.state().Pools).To(HaveEach(HaveField("Deallocated", v1alpha1.DeallocatedUndefined)), "the agent does not ask for it then")
	}
}

// TestDiscardIsSettledBeforeTheTransports: a process that is killed after any call leaves a target whose anchor tells
// what its transports do.
func TestDiscardIsSettledBeforeTheTransports(t *testing.T) {
	for _, method := range []string{"nvmf_create_subsystem", "nvmf_create_transport"} {
		m := onFake(t, "26.05")
		m.plan.SPDK = m.plan.SPDK.DeepCopy()
		m.plan.SPDK.Discard = v1alpha1.SwitchEnabled
		m.launch(t)
		m.target.(*spdktest.Target).Inject(spdktest.Fault{Method: method, Times: 1, Error: &spdktest.AnswerError{Code: -32603, Message: "killed"}})
		g := NewWithT(t)
		g.Expect(m.engine(t).Start(t.Context(), m.plan)).NotTo(Succeed())
		check(t, m.engine(t).Start(t.Context(), m.plan))
		state, err := m.engine(t).Gather(t.Context())
		check(t, err)
		g.Expect(state.Discard).To(BeTrue(), method)
	}
}
