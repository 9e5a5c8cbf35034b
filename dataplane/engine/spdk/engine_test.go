// SPDX-License-Identifier: Apache-2.0

package spdk_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
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

// rig is a target with an open pool and the open portals of its plan.
type rig struct {
	*machine
	*WithT
	t      *testing.T
	ctx    context.Context
	engine *spdk.Engine
	client *spdkrpc.Client
	device engine.Device
}

// newRig on the target that WEFT_SPDK_TARGET names, else on the fake.
func newRig(t *testing.T) *rig {
	t.Helper()
	return rigOf(t, newMachine(t))
}

func rigOf(t *testing.T, m *machine) *rig {
	t.Helper()
	return rigOn(t, m, m.file(enginetest.PoolBytes))
}

// rigOn a device that is its pool.
func rigOn(t *testing.T, m *machine, device engine.Device) *rig {
	t.Helper()
	r := &rig{machine: m, WithT: NewWithT(t), t: t, ctx: t.Context(), device: device}
	r.restarted()
	r.done(r.engine.OpenPortals(r.ctx, m.portals()))
	return r
}

// restarted target with its pool, and connections to it: the first call on one to the target before would fail.
func (r *rig) restarted() {
	r.t.Helper()
	r.reopened()
	r.clear()
}

// reopened is restarted, but for what has to be cleared.
func (r *rig) reopened() {
	r.t.Helper()
	r.relaunched()
	r.done(r.engine.OpenPools(r.ctx, []engine.Device{r.device}))
}

// relaunched target, with its settings and nothing else.
func (r *rig) relaunched() {
	r.t.Helper()
	r.restart(r.t)
	r.engine = r.machine.engine(r.t)
	var err error
	r.client, err = spdkrpc.New(r.socket(), spdkrpc.Options{})
	check(r.t, err)
	r.t.Cleanup(r.client.Close)
}

// newFakeRig is for tests that need what only the fake can do.
func newFakeRig(t *testing.T) (*rig, *spdktest.Target) {
	t.Helper()
	t.Setenv(spdktest.TargetVariable, "")
	r := newRig(t)
	return r, r.target.(*spdktest.Target)
}

func (r *rig) done(errs []error) {
	r.t.Helper()
	r.Expect(errors.Join(errs...)).NotTo(HaveOccurred())
}

func (r *rig) state() engine.State {
	r.t.Helper()
	state, err := enginetest.Look(r.ctx, r.t, r.engine, r.engine)
	r.Expect(err).NotTo(HaveOccurred())
	return state
}

// clear all that was deleted and can be cleared now.
func (r *rig) clear() {
	r.t.Helper()
	r.Expect(enginetest.Clear(r.ctx, r.engine)).To(Succeed())
}

func (r *rig) create(source engine.Source, sizeBytes int64) engine.ID {
	r.t.Helper()
	id := newID()
	spec := engine.VolumeSpec{ID: id, Pool: r.device.ID, SizeBytes: sizeBytes, Source: source}
	r.done(r.engine.CreateVolumes(r.ctx, []engine.VolumeSpec{spec}))
	return id
}

func (r *rig) snap(volume engine.ID) engine.ID {
	r.t.Helper()
	id := newID()
	r.done(r.engine.CreateSnapshots(r.ctx, []engine.SnapshotSpec{{ID: id, Volume: volume}}))
	return id
}

// lvols that the target itself lists, by name, but for the marks of its free space.
func (r *rig) lvols() map[string]spdkrpc.Lvol {
	r.t.Helper()
	all, err := spdkrpc.Call(r.ctx, r.client, spdkrpc.BdevLvolGetLvols{})
	r.Expect(err).NotTo(HaveOccurred())
	byName := map[string]spdkrpc.Lvol{}
	for _, l := range all {
		if l.Name != "clean" && l.Name != "soiled" {
			byName[l.Name] = l
		}
	}
	return byName
}

func (r *rig) exportOf(id engine.ID) engine.Export {
	return engine.Export{
		NQN: v1alpha1.NQNPrefix + "pvc-" + string(id), Serial: id.NGUID()[:20], Model: "weft", MaxIOQueues: 2,
		Namespaces: []engine.Namespace{{NSID: 1, Volume: id}},
		Hosts:      []string{v1alpha1.HostNQNPrefix + uuid.NewString()},
	}
}

func newID() engine.ID { return engine.ID(uuid.NewString()) }

// TestOnlyReads: what is as asked costs no call that could change anything.
func TestOnlyReads(t *testing.T) {
	r, fake := newFakeRig(t)
	id := r.create(engine.Source{}, 4*mib)
	snapshot := r.snap(id)
	clone := r.create(engine.Source{Snapshot: snapshot}, 8*mib)
	copied := r.create(engine.Source{Volume: id}, 4*mib)
	exports := []engine.Export{r.exportOf(id), r.exportOf(clone)}
	r.done(r.engine.Export(r.ctx, exports))
	portals := r.portals()
	r.done(r.engine.OpenPortals(r.ctx, portals))
	before, calls := r.state(), fake.Calls()

	e := r.machine.engine(t)
	check(t, e.Start(r.ctx, r.plan))
	r.done(e.OpenPools(r.ctx, []engine.Device{r.device}))
	r.done(e.CreateVolumes(r.ctx, []engine.VolumeSpec{
		{ID: id, Pool: r.device.ID, SizeBytes: 4 * mib},
		{ID: clone, SizeBytes: 8 * mib, Source: engine.Source{Snapshot: snapshot}},
		{ID: copied, SizeBytes: 4 * mib, Source: engine.Source{Volume: id}},
	}))
	r.done(e.CreateSnapshots(r.ctx, []engine.SnapshotSpec{{ID: snapshot, Volume: id}}))
	r.done(e.GrowVolumes(r.ctx, []engine.VolumeSize{{ID: clone, SizeBytes: 8 * mib}}))
	r.done(e.Export(r.ctx, exports))
	r.done(e.OpenPortals(r.ctx, portals))
	r.done(e.DeleteVolumes(r.ctx, []engine.ID{newID()}))
	r.done(e.DeleteSnapshots(r.ctx, []engine.ID{newID()}))
	r.done(e.Unexport(r.ctx, []string{v1alpha1.NQNPrefix + "never-there"}))
	r.done(e.ClosePortals(r.ctx, []v1alpha1.Portal{{Transport: v1alpha1.TransportTCP, Address: "127.0.0.1", Port: 9}}))
	_, err := e.Info(r.ctx)
	check(t, err)

	r.Expect(r.state()).To(Equal(before))
	for method, n := range fake.Calls() {
		if !strings.Contains(method, "_get_") && method != "bdev_wait_for_examine" {
			r.Expect(n).To(Equal(calls[method]), method)
		}
	}
}

// TestSnapshotWithClones: its user's request to delete it succeeds, it is listed no more, and it goes with the clones.
func TestSnapshotWithClones(t *testing.T) {
	r := newRig(t)
	id := r.create(engine.Source{}, 4*mib)
	snapshot, kept := r.snap(id), r.snap(id)
	clones := []engine.ID{r.create(engine.Source{Snapshot: snapshot}, 4*mib), r.create(engine.Source{Snapshot: snapshot}, 4*mib)}
	for range 2 {
		r.done(r.engine.DeleteSnapshots(r.ctx, []engine.ID{snapshot}))
		r.Expect(r.state().Snapshots).To(ConsistOf(HaveField("ID", kept)))
	}
	r.Expect(r.engine.CreateVolumes(r.ctx, []engine.VolumeSpec{{ID: newID(), SizeBytes: 4 * mib, Source: engine.Source{Snapshot: snapshot}}})[0]).
		To(MatchError(engine.ErrNotFound), "for its user it is gone")
	r.Expect(r.lvols()).To(HaveKey("d-" + string(snapshot)))

	r.restarted()
	r.Expect(r.state().Snapshots).To(ConsistOf(HaveField("ID", kept)), "nor after the target's end")

	r.done(r.engine.DeleteVolumes(r.ctx, clones))
	r.done(r.engine.DeleteSnapshots(r.ctx, []engine.ID{kept}))
	r.clear()
	r.Expect(r.state()).To(And(HaveField("Snapshots", BeEmpty()), HaveField("Volumes", ConsistOf(HaveField("ID", id)))))
	r.Expect(r.lvols()).To(HaveLen(1))
}

// TestMarkWithoutItsSnapshot is what an agent leaves that is killed after SPDK has deleted a snapshot. SPDK may also
// have forgotten one, which comes back with its next start; so the mark stays until then, and goes.
func TestMarkWithoutItsSnapshot(t *testing.T) {
	r := newRig(t)
	id := r.create(engine.Source{}, 4*mib)
	marked := r.snap(id)
	r.create(engine.Source{Snapshot: marked}, 4*mib)
	r.done(r.engine.DeleteSnapshots(r.ctx, []engine.ID{marked}))
	gone := "d-" + string(newID())
	r.leftBlank(gone)
	r.clear()
	r.Expect(r.lvols()).To(HaveKey(gone))

	r.restarted()
	r.Expect(r.lvols()).To(And(Not(HaveKey(gone)), HaveKey("d-"+string(marked))))
}

// TestManySnapshots of one volume, which SPDK deletes one after the other.
func TestManySnapshots(t *testing.T) {
	r := newRig(t)
	id := r.create(engine.Source{}, 4*mib)
	var specs []engine.SnapshotSpec
	var ids []engine.ID
	for range 8 {
		specs = append(specs, engine.SnapshotSpec{ID: newID(), Volume: id})
		ids = append(ids, specs[len(specs)-1].ID)
	}
	r.done(r.engine.CreateSnapshots(r.ctx, specs))
	r.Expect(r.state().Snapshots).To(HaveLen(8))
	r.done(r.engine.DeleteSnapshots(r.ctx, ids))
	r.Expect(r.state().Snapshots).To(BeEmpty())
	r.clear()
	r.Expect(r.lvols()).To(HaveLen(1))
}

// TestClonesOfAVolume: the snapshot between them is nobody's, and goes with them.
func TestClonesOfAVolume(t *testing.T) {
	r := newRig(t)
	id := r.create(engine.Source{}, 4*mib)
	specs := []engine.VolumeSpec{
		{ID: newID(), SizeBytes: 4 * mib, Source: engine.Source{Volume: id}},
		{ID: newID(), SizeBytes: 8 * mib, Source: engine.Source{Volume: id}},
	}
	r.done(r.engine.CreateVolumes(r.ctx, specs))
	r.Expect(r.state()).To(And(HaveField("Snapshots", BeEmpty()), HaveField("Volumes", HaveLen(3))))
	r.Expect(r.lvols()).To(HaveLen(4), "they share a snapshot")
	r.done(r.engine.DeleteVolumes(r.ctx, []engine.ID{id}))
	r.done(r.engine.DeleteVolumes(r.ctx, []engine.ID{specs[0].ID}))
	r.clear()
	r.Expect(r.lvols()).To(HaveLen(1), "the last clone has taken the snapshot over")
	r.done(r.engine.DeleteVolumes(r.ctx, []engine.ID{specs[1].ID}))
	r.clear()
	r.Expect(r.lvols()).To(BeEmpty())
}

// TestInterruptedClones are finished by the next call.
func TestInterruptedClones(t *testing.T) {
	r := newRig(t)
	id := r.create(engine.Source{}, 4*mib)
	snapshot := r.snap(id)
	var alias string
	for name, l := range r.lvols() {
		if strings.HasPrefix(name, "s-"+string(snapshot)) {
			alias = l.Alias
		}
	}
	unfinished, frozen, blank := newID(), newID(), newID()
	_, err := spdkrpc.Call(r.ctx, r.client, spdkrpc.BdevLvolClone{Snapshot: alias, Name: string(unfinished)})
	check(t, err)
	_, err = spdkrpc.Call(r.ctx, r.client, spdkrpc.BdevLvolSnapshot{Volume: r.lvols()[string(id)].Alias, Name: "c-" + string(frozen)})
	check(t, err)
	// Stopped before it had its parent, and with what held the snapshot.
	_, err = spdkrpc.Call(r.ctx, r.client, spdkrpc.BdevLvolClone{Snapshot: alias, Name: "h-" + string(blank)})
	check(t, err)
	r.leftBlank("t-" + string(blank))
	for range 2 {
		r.done(r.engine.CreateVolumes(r.ctx, []engine.VolumeSpec{
			{ID: unfinished, SizeBytes: 8 * mib, Source: engine.Source{Snapshot: snapshot}},
			{ID: frozen, SizeBytes: 12 * mib, Source: engine.Source{Volume: id}},
			{ID: blank, SizeBytes: 4 * mib, Source: engine.Source{Snapshot: snapshot}},
		}))
		r.onlyWholeClones(unfinished, frozen, blank)
		r.Expect(r.state().Volumes).To(ConsistOf(
			HaveField("ID", id),
			And(HaveField("ID", unfinished), HaveField("SizeBytes", int64(8*mib))),
			And(HaveField("ID", frozen), HaveField("SizeBytes", int64(12*mib))),
			And(HaveField("ID", blank), HaveField("SizeBytes", int64(4*mib))),
		))
	}
}

// leftBlank lvol of 4 MiB, as an interrupted call leaves it.
func (r *rig) leftBlank(name string) {
	r.t.Helper()
	lvstores, err := spdkrpc.Call(r.ctx, r.client, spdkrpc.BdevLvolGetLvstores{})
	check(r.t, err)
	_, err = spdkrpc.Call(r.ctx, r.client, spdkrpc.BdevLvolCreate{LvstoreName: lvstores[0].Name, Name: name, SizeMiB: 4, Thin: true})
	check(r.t, err)
}

// onlyWholeClones: they have their parents, and nothing is left of making them.
func (r *rig) onlyWholeClones(ids ...engine.ID) {
	r.t.Helper()
	all := r.lvols()
	for _, id := range ids {
		r.Expect(all).To(HaveKeyWithValue(string(id), HaveField("IsClone", BeTrue())))
	}
	for name := range all {
		r.Expect(name).NotTo(Or(HavePrefix("t-"), HavePrefix("h-")))
	}
}

// TestAbandonedClones are nobody's volumes, and go with the next thing that is deleted; a snapshot that only they
// depend on leaves them nothing.
func TestAbandonedClones(t *testing.T) {
	r, fake := newFakeRig(t)
	id := r.create(engine.Source{}, 4*mib)
	check(t, fake.Write(r.lvols()[string(id)].Alias, 0, 1))
	snapshot, blank := r.snap(id), newID()
	r.done(r.engine.DeleteVolumes(r.ctx, []engine.ID{id}))
	r.clear()
	var alias string
	for _, l := range r.lvols() {
		alias = l.Alias
	}
	_, err := spdkrpc.Call(r.ctx, r.client, spdkrpc.BdevLvolClone{Snapshot: alias, Name: "h-" + string(blank)})
	check(t, err)
	r.leftBlank("t-" + string(blank))
	r.Expect(r.state().Volumes).To(BeEmpty())
	r.done(r.engine.DeleteSnapshots(r.ctx, []engine.ID{snapshot}))
	r.clear()
	r.Expect(r.lvols()).To(BeEmpty())
	lvstore, _, _ := strings.Cut(alias, "/")
	r.Expect(fake.Dirty(lvstore)).To(BeZero())
}

// TestCloneOfALoneSnapshot: a target that was started anew takes a snapshot that nothing depends on for a volume.
func TestCloneOfALoneSnapshot(t *testing.T) {
	r := newRig(t)
	id := r.create(engine.Source{}, 4*mib)
	snapshot := r.snap(id)
	r.done(r.engine.DeleteVolumes(r.ctx, []engine.ID{id}))
	r.clear()
	r.restarted()
	var ids []engine.ID
	var specs []engine.VolumeSpec
	for range 3 {
		ids = append(ids, newID())
		specs = append(specs, engine.VolumeSpec{ID: ids[len(ids)-1], SizeBytes: 8 * mib, Source: engine.Source{Snapshot: snapshot}})
	}
	r.done(r.engine.CreateVolumes(r.ctx, specs))
	r.onlyWholeClones(ids...)
	r.restarted()
	r.onlyWholeClones(ids...)
}

// TestDeletedClonesLeaveNothing of what hosts wrote to them, nor do snapshots of them.
func TestDeletedClonesLeaveNothing(t *testing.T) {
	r, fake := newFakeRig(t)
	id := r.create(engine.Source{}, 16*mib)
	snapshot := r.snap(id)
	clone, copied := r.create(engine.Source{Snapshot: snapshot}, 16*mib), r.create(engine.Source{Volume: id}, 20*mib)
	for _, v := range []engine.ID{id, clone, copied} {
		check(t, fake.Write(r.lvols()[string(v)].Alias, 0, 2))
	}
	later := r.snap(clone)
	check(t, fake.Write(r.lvols()[string(clone)].Alias, 0, 1))
	lvstore, _, _ := strings.Cut(r.lvols()[string(clone)].Alias, "/")
	r.done(r.engine.DeleteVolumes(r.ctx, []engine.ID{clone, copied}))
	r.done(r.engine.DeleteSnapshots(r.ctx, []engine.ID{later}))
	r.done(r.engine.DeleteSnapshots(r.ctx, []engine.ID{snapshot}))
	r.done(r.engine.DeleteVolumes(r.ctx, []engine.ID{id}))
	r.clear()
	r.Expect(r.lvols()).To(BeEmpty())
	r.Expect(fake.Dirty(lvstore)).To(BeZero())
}

// TestWrittenVolume is not blank because a snapshot took its clusters over.
func TestWrittenVolume(t *testing.T) {
	r, fake := newFakeRig(t)
	id, blank := r.create(engine.Source{}, 16*mib), r.create(engine.Source{}, 16*mib)
	check(t, fake.Write(r.lvols()[string(id)].Alias, 1, 2))
	snapshot := r.snap(id)
	r.snap(blank)
	clone := r.create(engine.Source{Volume: id}, 16*mib)
	r.Expect(r.lvols()[string(id)].AllocatedClusters).To(BeZero())
	r.Expect(r.state().Volumes).To(ConsistOf(
		And(HaveField("ID", id), HaveField("AllocatedBytes", int64(8*mib))),
		And(HaveField("ID", clone), HaveField("AllocatedBytes", int64(8*mib))),
		And(HaveField("ID", blank), HaveField("AllocatedBytes", BeZero())),
	))
	r.Expect(r.state().Snapshots).To(ContainElement(And(HaveField("ID", snapshot), HaveField("AllocatedBytes", int64(8*mib)))))
}

// TestGrowthIsOrdered: SPDK would carry out both, and cut the data off.
func TestGrowthIsOrdered(t *testing.T) {
	r := newRig(t)
	id := r.create(engine.Source{}, 4*mib)
	errs := r.engine.GrowVolumes(r.ctx, []engine.VolumeSize{{ID: id, SizeBytes: 8 * mib}, {ID: id, SizeBytes: 16 * mib}, {ID: id, SizeBytes: 12 * mib}})
	r.Expect(errs[0]).NotTo(HaveOccurred())
	r.Expect(errs[1]).NotTo(HaveOccurred())
	r.Expect(errs[2]).To(MatchError(engine.ErrShrink))
	r.Expect(r.state().Volumes).To(ConsistOf(HaveField("SizeBytes", int64(16*mib))))
}

// TestOldDataIsCleared: what an lvol leaves is overwritten, and hosts cannot free clusters as they are.
func TestOldDataIsCleared(t *testing.T) {
	r, fake := newFakeRig(t)
	var cleared, masked []string
	note := func(fake *spdktest.Target, method, field string, into *[]string) {
		watch(fake, method, func(params json.RawMessage) {
			var all map[string]json.RawMessage
			if json.Unmarshal(params, &all) == nil {
				*into = append(*into, string(all[field]))
			}
		})
	}
	note(fake, "bdev_lvol_create", "clear_method", &cleared)
	r.create(engine.Source{}, 4*mib)
	r.Expect(cleared).To(Equal([]string{`"write_zeroes"`}))

	r.target.Kill()
	r.launch(t)
	note(r.fake(), "nvmf_create_transport", "masked_oncs", &masked)
	check(t, r.machine.engine(t).Start(r.ctx, r.plan))
	r.Expect(masked).To(Equal([]string{`["nvmdsmsv"]`, `["nvmdsmsv"]`}))
}

// TestTooMuchAtOnce is sent again.
func TestTooMuchAtOnce(t *testing.T) {
	r, fake := newFakeRig(t)
	fake.Inject(spdktest.Fault{Method: "bdev_lvol_create", Skip: 3, Times: 5, Error: &spdktest.AnswerError{Code: -32602, Message: "Cannot allocate memory"}})
	var specs []engine.VolumeSpec
	for range 20 {
		specs = append(specs, engine.VolumeSpec{ID: newID(), Pool: r.device.ID, SizeBytes: 4 * mib})
	}
	r.done(r.engine.CreateVolumes(r.ctx, specs))
	r.Expect(r.state().Volumes).To(HaveLen(20))
}

// dismissed host of an export, to which it is connected: the export as it is to be without it.
func (r *rig) dismissed(fake *spdktest.Target) (x engine.Export, host string, connection *spdktest.Connection) {
	r.t.Helper()
	x = r.exportOf(r.create(engine.Source{}, 4*mib))
	r.done(r.engine.Export(r.ctx, []engine.Export{x}))
	host = x.Hosts[0]
	connection, err := fake.Connect(x.NQN, host, 1)
	check(r.t, err)
	x.Hosts = nil
	return x, host, connection
}

// TestHostThatStays: a host that the target did not disconnect is not said to be gone.
func TestHostThatStays(t *testing.T) {
	r, fake := newFakeRig(t)
	x, host, connection := r.dismissed(fake)
	fake.Inject(spdktest.Fault{Method: "nvmf_subsystem_remove_host", Error: &spdktest.AnswerError{Code: -32603, Message: "Timeout reached during host removal"}})
	r.Expect(r.engine.Export(r.ctx, []engine.Export{x})[0]).To(And(MatchError(engine.ErrBusy), MatchError(ContainSubstring(host))))
	r.Expect(connection.Alive()).To(BeTrue())
	r.Expect(r.state().Exports).To(ConsistOf(HaveField("Hosts", ConsistOf(host))))
	r.done(r.engine.Export(r.ctx, []engine.Export{x}))
	r.Expect(connection.Alive()).To(BeFalse())
	r.Expect(r.state().Exports).To(ConsistOf(HaveField("Hosts", BeEmpty())))
}

// TestHostThatStaysAfterTheCall: a target that still disconnects a host when the call ends lists it again, so that the
// next process does not take it for gone.
func TestHostThatStaysAfterTheCall(t *testing.T) {
	r, fake := newFakeRig(t)
	x, host, _ := r.dismissed(fake)
	fake.Inject(spdktest.Fault{Method: "nvmf_subsystem_remove_host", Delay: time.Minute})
	ctx, cancel := context.WithTimeout(r.ctx, 100*time.Millisecond)
	defer cancel()
	r.Expect(r.engine.Export(ctx, []engine.Export{x})[0]).To(MatchError(ContainSubstring("still connected: " + host)))
}

// TestHostThatStaysAfterAKill: a host that SPDK disconnects when the process is killed is listed by the next one until
// it is gone, and not where the target has ended since.
func TestHostThatStaysAfterAKill(t *testing.T) {
	r, fake := newFakeRig(t)
	x, host, connection := r.dismissed(fake)
	release := connection.Hold()
	r.killedIn(x)
	r.Expect(r.state().Exports).To(ConsistOf(HaveField("Hosts", ConsistOf(host))))
	release()
	r.done(r.engine.Export(r.ctx, []engine.Export{x}))
	r.Expect(connection.Alive()).To(BeFalse())
	r.Expect(r.state().Exports).To(ConsistOf(HaveField("Hosts", BeEmpty())))

	x.Hosts = []string{host}
	r.done(r.engine.Export(r.ctx, []engine.Export{x}))
	connection, err := fake.Connect(x.NQN, host, 1)
	check(t, err)
	connection.Hold()
	x.Hosts = nil
	r.killedIn(x)
	r.restarted()
	r.Expect(r.state().Exports).To(BeEmpty())
}

// TestHostsThatMayBeLeftHoldUpTheirSubsystemAlone: while the target does not say whether a host is gone that was taken
// away, the host is listed, its subsystem is given to nobody, and everything else goes on.
func TestHostsThatMayBeLeftHoldUpTheirSubsystemAlone(t *testing.T) {
	r, fake := newFakeRig(t)
	x, host, connection := r.dismissed(fake)
	release := connection.Hold()
	r.killedIn(x)
	answer := fake.Inject(spdktest.Fault{Method: "nvmf_subsystem_get_controllers", Times: -1, Error: &spdktest.AnswerError{Code: -32603, Message: "Internal error"}})
	r.Expect(r.state().Exports).To(ConsistOf(HaveField("Hosts", ConsistOf(host))))
	next := x
	next.Hosts = []string{host[:len(host)-1] + "x"}
	r.Expect(r.engine.Export(r.ctx, []engine.Export{next})[0]).To(And(MatchError(engine.ErrBusy), MatchError(ContainSubstring("unknown"))))
	other := r.exportOf(r.create(engine.Source{}, 4*mib))
	r.done(r.engine.Export(r.ctx, []engine.Export{other}))

	answer()
	r.Expect(r.state().Exports).To(ContainElement(And(HaveField("NQN", x.NQN), HaveField("Hosts", ConsistOf(host)))))
	release()
	r.done(r.engine.Export(r.ctx, []engine.Export{x}))
	r.Expect(connection.Alive()).To(BeFalse())
	r.Expect(r.state().Exports).To(ContainElement(And(HaveField("NQN", x.NQN), HaveField("Hosts", BeEmpty()))))
}

// killedIn a call that takes away a host, as soon as the target does not list that any more; another process is there
// then.
func (r *rig) killedIn(x engine.Export) {
	r.t.Helper()
	answered := make(chan error)
	go func() { answered <- r.engine.Export(r.ctx, []engine.Export{x})[0] }()
	r.Eventually(func() ([]spdkrpc.Subsystem, error) {
		return spdkrpc.Call(r.ctx, r.client, spdkrpc.NvmfGetSubsystems{NQN: x.NQN})
	}).Should(ConsistOf(HaveField("Hosts", BeEmpty())))
	r.engine.Close()
	r.Expect(<-answered).NotTo(Succeed())
	r.engine = r.machine.engine(r.t)
}

// TestHostLeavesLate: an older target answers before a host's connections are gone; the engine waits for them.
func TestHostLeavesLate(t *testing.T) {
	r := rigOf(t, onFake(t, "26.01"))
	x, _, connection := r.dismissed(r.target.(*spdktest.Target))
	r.done(r.engine.Export(r.ctx, []engine.Export{x}))
	r.Expect(connection.Alive()).To(BeFalse())
}

// TestSnapshotsLeaveRoom: snapshots are refused while all volumes can still be written in full, and clones of volumes
// too.
func TestSnapshotsLeaveRoom(t *testing.T) {
	r := newRig(t)
	const volumes = 8
	var ids []engine.ID
	for range volumes {
		ids = append(ids, r.create(engine.Source{}, 4*mib))
	}
	var err error
	made := 0
	for err == nil && made < 1000 {
		// All of a volume is written again after each snapshot, which takes the pages it had.
		r.write(ids[made%volumes])
		err = r.engine.CreateSnapshots(r.ctx, []engine.SnapshotSpec{{ID: newID(), Volume: ids[made%volumes]}})[0]
		made++
	}
	r.Expect(err).To(And(MatchError(engine.ErrNoSpace), MatchError(ContainSubstring("delete snapshots"))))
	r.Expect(made).To(BeNumerically(">", 30), "a pool of 512 MiB has 128 pages")
	for _, id := range ids {
		r.write(id)
	}
	clone := engine.VolumeSpec{ID: newID(), SizeBytes: 4 * mib, Source: engine.Source{Volume: ids[(made-1)%volumes]}}
	r.Expect(r.engine.CreateVolumes(r.ctx, []engine.VolumeSpec{clone})[0]).To(MatchError(engine.ErrNoSpace))
	// A mark takes a page too: those that are left without one go with a later call.
	for range made {
		var all []engine.ID
		for _, s := range r.state().Snapshots {
			all = append(all, s.ID)
		}
		if err = errors.Join(r.engine.DeleteSnapshots(r.ctx, all)...); err == nil {
			break
		}
		r.clear()
	}
	r.done([]error{err})
	r.clear()
	r.snap(ids[0])
}

// write all of a volume, as a host would. A real target is not written to here.
func (r *rig) write(id engine.ID) {
	r.t.Helper()
	fake, ok := r.target.(*spdktest.Target)
	if !ok {
		return
	}
	is := r.lvols()[string(id)]
	check(r.t, fake.Write(is.UUID, 0, 1))
}

// TestRawData is left as it was: of software that uses devices raw, or of a pool whose first page is lost.
func TestRawData(t *testing.T) {
	r := newRig(t)
	for _, at := range []int64{5000, enginetest.PoolBytes - 5000} {
		raw := r.file(enginetest.PoolBytes)
		f, err := os.Create(raw.Path)
		check(t, err)
		_, err = f.WriteAt([]byte("raw"), at)
		check(t, errors.Join(err, f.Truncate(raw.FileBytes), f.Close()))
		var foreign *device.ForeignSignatureError
		err = r.engine.OpenPools(r.ctx, []engine.Device{raw})[0]
		r.Expect(errors.As(err, &foreign)).To(BeTrue(), "%v", err)
		r.Expect(err).To(MatchError(And(ContainSubstring("data without a signature"), ContainSubstring("blkdiscard -f "+raw.Path))))
		held := make([]byte, 3)
		f, err = os.Open(raw.Path)
		check(t, err)
		_, err = f.ReadAt(held, at)
		check(t, errors.Join(err, f.Close()))
		r.Expect(string(held)).To(Equal("raw"))
	}
}

// TestPoolWhoseEndsWereCleared reads as blank, and what is left of it is not overwritten by a new one.
func TestPoolWhoseEndsWereCleared(t *testing.T) {
	r := newRig(t)
	r.target.Kill()
	f, err := os.OpenFile(r.device.Path, os.O_RDWR, 0)
	check(t, err)
	t.Cleanup(func() { check(t, f.Close()) })
	const left = enginetest.PoolBytes / 2
	_, err = f.WriteAt([]byte("left"), left)
	check(t, err)
	for _, at := range []int64{0, enginetest.PoolBytes - 1<<20} {
		_, err = f.WriteAt(make([]byte, 1<<20), at)
		check(t, err)
	}
	r.launch(t)
	e := r.machine.engine(t)
	check(t, e.Start(r.ctx, r.plan))
	record := filepath.Join(r.dir, "state/spdk/pools", url.PathEscape(r.device.ID))
	for range 2 {
		r.Expect(e.OpenPools(r.ctx, []engine.Device{r.device})[0]).To(MatchError(And(ContainSubstring("was a pool"), ContainSubstring("remove "+record))))
		held := make([]byte, 4)
		_, err = f.ReadAt(held, left)
		check(t, err)
		r.Expect(string(held)).To(Equal("left"))
	}
	check(t, os.Remove(record))
	r.done(e.OpenPools(r.ctx, []engine.Device{r.device}))
}

// TestForeignLvstore is left as it was, whoever made it.
func TestForeignLvstore(t *testing.T) {
	r := newRig(t)
	moved := r.file(enginetest.PoolBytes)
	r.target.Kill()
	// The pool's file under another name: its lvstore belongs to another ID.
	check(t, os.Rename(r.device.Path, moved.Path))
	r.launch(t)
	e := r.machine.engine(t)
	check(t, e.Start(r.ctx, r.plan))
	for range 2 {
		var foreign *device.ForeignSignatureError
		err := e.OpenPools(r.ctx, []engine.Device{moved})[0]
		r.Expect(errors.As(err, &foreign)).To(BeTrue(), "%v", err)
		bdevs, err := spdkrpc.Call(r.ctx, r.client, spdkrpc.BdevGetBdevs{})
		check(t, err)
		r.Expect(bdevs).To(BeEmpty(), "the target does not hold it")
	}
	r.Expect(e.OpenPools(r.ctx, []engine.Device{r.device})[0]).To(MatchError(engine.ErrNotFound), "a pool's file that is gone is not made anew")
	check(t, os.Rename(moved.Path, r.device.Path))
	r.done(e.OpenPools(r.ctx, []engine.Device{r.device}))
}

// TestDrives that SPDK drives itself are prepared only when the kernel saw them blank.
func TestDrives(t *testing.T) {
	t.Setenv(spdktest.TargetVariable, "")
	m := newMachine(t)
	g := NewWithT(t)
	drives := map[string]string{"0000:01:00.0": "Blank", "0000:02:00.0": "Unknown", "0000:03:00.0": ""}
	records := map[string]map[string]string{}
	var devices []engine.Device
	for _, address := range []string{"0000:01:00.0", "0000:02:00.0", "0000:03:00.0", "0000:04:00.0"} {
		path := filepath.Join(m.dir, address)
		if content, there := drives[address]; there {
			check(t, os.WriteFile(path, nil, 0o600))
			check(t, os.Truncate(path, enginetest.PoolBytes))
			m.fake.Drives = append(m.fake.Drives, spdktest.Drive{Address: address, Path: path, Model: "drive", Serial: address})
			if content != "" {
				records[address] = map[string]string{"id": address, "content": content}
			}
		}
		devices = append(devices, engine.Device{ID: address, PCIAddress: address})
	}
	text, err := json.Marshal(records)
	check(t, err)
	check(t, os.WriteFile(filepath.Join(m.dir, "drives.json"), text, 0o600))
	m.restart(t)
	for range 2 {
		errs := m.engine(t).OpenPools(t.Context(), devices)
		g.Expect(errs[0]).NotTo(HaveOccurred())
		var foreign *device.ForeignSignatureError
		g.Expect(errors.As(errs[1], &foreign)).To(BeTrue(), "%v", errs[1])
		g.Expect(errors.As(errs[2], &foreign)).To(BeTrue(), "%v", errs[2])
		g.Expect(errs[3]).To(HaveOccurred())
		// What was prepared is a pool, and no longer recorded as blank.
		recorded, err := device.ReadRecords(filepath.Join(m.dir, "any.sock"))
		check(t, err)
		g.Expect(recorded["0000:01:00.0"].Content).To(Equal(v1alpha1.ContentWeft))
		m.restart(t)
	}
	g.Expect(m.engine(t).OpenPools(t.Context(), devices[:1])).To(ConsistOf(BeNil()))
	state, err := m.engine(t).Gather(t.Context())
	check(t, err)
	g.Expect(state.Pools).To(ConsistOf(And(HaveField("Device", "0000:01:00.0"), HaveField("Path", "0000:01:00.0"), HaveField("Err", BeNil()))))

	// A drive that was blank once, and whose lvstore cannot be found, is not made anew.
	check(t, os.Truncate(filepath.Join(m.dir, "0000:01:00.0"), 0))
	check(t, os.Truncate(filepath.Join(m.dir, "0000:01:00.0"), enginetest.PoolBytes))
	m.restart(t)
	var foreign *device.ForeignSignatureError
	errs := m.engine(t).OpenPools(t.Context(), devices[:1])
	g.Expect(errors.As(errs[0], &foreign)).To(BeTrue(), "%v", errs[0])
}

// TestSwappedDrive: another drive sits where the kernel saw the planned one blank. Nothing is made on it, nor opened,
// whatever the launcher recorded, and the other drives go on. Once the planned one is back it is a pool.
func TestSwappedDrive(t *testing.T) {
	t.Setenv(spdktest.TargetVariable, "")
	m := newMachine(t)
	g := NewWithT(t)
	drives := map[string]spdktest.Drive{}
	for _, name := range []string{"planned", "other", "neighbour"} {
		drives[name] = spdktest.Drive{Address: "0000:01:00.0", Path: filepath.Join(m.dir, name), Model: "drive", Serial: name, NGUID: uuid.New()}
		check(t, os.WriteFile(drives[name].Path, nil, 0o600))
		check(t, os.Truncate(drives[name].Path, enginetest.PoolBytes))
	}
	beside := drives["neighbour"]
	beside.Address = "0000:02:00.0"
	records := device.Records{
		"0000:01:00.0": {ID: drives["planned"].WWID(), Content: v1alpha1.ContentBlank},
		"0000:02:00.0": {ID: beside.WWID(), Content: v1alpha1.ContentBlank},
	}
	check(t, records.Write(m.socket()))
	devices := []engine.Device{{ID: drives["planned"].WWID(), PCIAddress: "0000:01:00.0"}, {ID: beside.WWID(), PCIAddress: "0000:02:00.0"}}
	swap := func(name string) []error {
		m.fake.Drives = []spdktest.Drive{drives[name], beside}
		m.restart(t)
		return m.engine(t).OpenPools(t.Context(), devices)
	}
	refused := func(errs []error) {
		t.Helper()
		var swapped *device.SwappedError
		g.Expect(errors.As(errs[0], &swapped)).To(BeTrue(), "%v", errs[0])
		g.Expect(swapped.Found).To(Equal(drives["other"].WWID()))
		g.Expect(errs[1]).NotTo(HaveOccurred())
		state, err := m.engine(t).Gather(t.Context())
		check(t, err)
		g.Expect(state.Pools).To(ContainElement(And(HaveField("Device", beside.WWID()), HaveField("Err", BeNil()))))
		client, err := spdkrpc.New(m.socket(), spdkrpc.Options{})
		check(t, err)
		defer client.Close()
		_, err = spdkrpc.Call(t.Context(), client, spdkrpc.BdevGetBdevs{Name: "weft:" + devices[0].ID + "n1"})
		g.Expect(err).To(MatchError(spdkrpc.ErrNotFound), "the target holds the drive no more")
	}
	isBlank := func(name string) bool {
		f, err := os.Open(drives[name].Path)
		check(t, err)
		defer f.Close() //nolint:errcheck // nothing was written
		zero, err := device.ZeroEdges(f)
		check(t, err)
		return zero
	}

	refused(swap("other"))
	g.Expect(isBlank("other")).To(BeTrue())
	g.Expect(errors.Join(swap("planned")...)).NotTo(HaveOccurred())
	g.Expect(isBlank("planned")).To(BeFalse())
	// A copy of the drive is another drive, too.
	check(t, os.Rename(drives["planned"].Path, drives["other"].Path))
	refused(swap("other"))

	// What was recorded of one drive says nothing about another.
	check(t, os.WriteFile(drives["planned"].Path, nil, 0o600))
	check(t, os.Truncate(drives["planned"].Path, enginetest.PoolBytes))
	records["0000:01:00.0"] = device.Record{ID: drives["other"].WWID(), Content: v1alpha1.ContentBlank}
	check(t, records.Write(m.socket()))
	var foreign *device.ForeignSignatureError
	err := swap("planned")[0]
	g.Expect(errors.As(err, &foreign)).To(BeTrue(), "%v", err)
	g.Expect(isBlank("planned")).To(BeTrue())
}

// TestWatch follows the target through its lives.
func TestWatch(t *testing.T) {
	r := newRig(t)
	changed := make(chan struct{}, 100)
	ctx, cancel := context.WithCancel(r.ctx)
	ended := make(chan struct{})
	go func() {
		r.engine.Watch(ctx, func() { changed <- struct{}{} })
		close(ended)
	}()
	r.Eventually(changed).Should(Receive())
	r.target.Kill()
	r.Eventually(changed).Should(Receive())
	r.Expect(errorOf(r.engine.Gather(r.ctx))).To(MatchError(engine.ErrUnavailable))
	r.launch(t)
	r.Eventually(changed).Should(Receive())
	cancel()
	r.Eventually(ended).Should(BeClosed())
}

func errorOf[T any](_ T, err error) error { return err }

// TestStart tells plans that can be followed at once from those that need a restart, and from those that cannot be
// kept.
func TestStart(t *testing.T) {
	t.Setenv(spdktest.TargetVariable, "")
	m := newMachine(t)
	m.fake = spdktest.Options{CoreMask: "0x6"}
	m.plan = planOf(v1alpha1.TransportTCP)
	m.plan.SPDK.CoreMask, m.plan.SPDK.PollGroupMask = "0xe", "0xc"
	m.plan.SPDK.Mode = v1alpha1.CoresDynamic
	m.plan.SPDK.Placement = v1alpha1.PlacementCPU
	m.plan.SPDK.Scheduler = &v1alpha1.PlannedScheduler{PeriodMicroseconds: 500000, LoadLimit: 15, CoreLimit: 75, CoreBusy: 90}
	g := NewWithT(t)
	m.launch(t)
	e := m.engine(t)
	differences := func(plan v1alpha1.Plan) []string {
		var restart *engine.RestartNeededError
		err := e.Start(t.Context(), plan)
		g.Expect(errors.As(err, &restart)).To(BeTrue(), "%v", err)
		return restart.Differences
	}
	fewer := ConsistOf(And(HavePrefix("it runs on cores 1-2, but should run on 1-3: "), ContainSubstring("cores 3 are not available to its container")))
	g.Expect(differences(m.plan)).To(fewer, "it serves on the cores that it was given")
	settings, err := e.Settings(t.Context(), m.plan)
	check(t, err)
	g.Expect(settings).To(ContainElement(v1alpha1.EngineSetting{Setting: "coreMask", Value: "0x6", Planned: "0xe"}))
	client, err := spdkrpc.New(m.socket(), spdkrpc.Options{})
	check(t, err)
	t.Cleanup(client.Close)
	info, err := e.Info(t.Context())
	check(t, err)
	g.Expect(info).To(Equal(engine.Info{Type: v1alpha1.EngineSPDK, Version: "26.05", Transports: []v1alpha1.TransportType{v1alpha1.TransportTCP}, QoS: true, Authentication: true}))

	changed := m.plan
	changed.SPDK = m.plan.SPDK.DeepCopy()
	changed.SPDK.Scheduler.LoadLimit = 33
	g.Expect(differences(changed)).To(fewer)
	scheduler, err := spdkrpc.Call(t.Context(), client, spdkrpc.FrameworkGetScheduler{})
	check(t, err)
	g.Expect(scheduler.LoadLimit).To(BeEquivalentTo(33), "it needs no restart")

	changed.SPDK.CoreMask, changed.SPDK.PollGroupMask = "0x5", ""
	changed.SPDK.SmallBuffers++
	changed.SPDK.MaxSubsystems++
	changed.SPDK.BdevIOPoolSize++
	changed.SPDK.Placement = v1alpha1.PlacementNAPI
	changed.SPDK.Transports[0].LargeCache++
	g.Expect(differences(changed)).To(ConsistOf(
		ContainSubstring("it runs on cores 1-2, but should run on 0,2"), ContainSubstring("small buffers are 4096, but should be 4097"), ContainSubstring("subsystems"),
		ContainSubstring("I/O descriptors"), ContainSubstring("placement of TCP connections is CPU, but should be NAPI"),
		ContainSubstring("large buffer cache of transport TCP is 32, but should be 33"),
	))

	err = e.Start(t.Context(), planOf(v1alpha1.TransportTCP, v1alpha1.TransportRDMA))
	g.Expect(err).To(MatchError(engine.ErrUnsupported), "there is no RDMA device")
	portals := slices.Clone(m.portals())
	portals[0].Transport = v1alpha1.TransportRDMA
	g.Expect(e.OpenPortals(t.Context(), portals)[0]).To(MatchError(engine.ErrUnsupported))
}
