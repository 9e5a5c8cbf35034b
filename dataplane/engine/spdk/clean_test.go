// SPDX-License-Identifier: Apache-2.0

package spdk_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
	"github.com/weft-storage/weft/dataplane/spdkrpc/spdktest"
)

// TestFreeSpaceIsHeldAfterACrash: what a target did not get to clear is given to nobody until it is, and nobody is
// refused space meanwhile.
func TestFreeSpaceIsHeldAfterACrash(t *testing.T) {
	t.Setenv(spdktest.TargetVariable, "")
	m := newMachine(t)
	m.fake.LvolTime = 50 * time.Millisecond
	r := rigOf(t, m)
	id, other := r.create(engine.Source{}, 200*mib), r.create(engine.Source{}, 400*mib)
	check(t, r.fake().Write(r.lvols()[string(id)].Alias, 0, 50))
	r.killedWhileItClears(id)
	r.reopened()
	r.Expect(r.fake().Dirty(r.lvstoreOf(other))).To(BeZero(), "it is held")
	r.Expect(r.engine.Export(r.ctx, []engine.Export{r.exportOf(other)})[0]).To(And(MatchError(engine.ErrBusy), MatchError(ContainSubstring("may contain old data"))))
	pool := r.state().Pools[0]
	r.Expect(pool.FreeBytes).To(BeZero())
	r.Expect(pool.ClearingBytes).To(Equal(pool.TotalBytes))

	r.clear()
	r.Expect(r.state().Pools[0]).To(And(HaveField("ClearingBytes", BeZero()), HaveField("FreeBytes", pool.TotalBytes)))
	r.done(r.engine.Export(r.ctx, []engine.Export{r.exportOf(other)}))
	check(t, r.fake().Write(r.lvols()[string(other)].Alias, 0, 100))
}

// TestCleanPoolServesAtOnce after its target was killed: there is nothing to clear.
func TestCleanPoolServesAtOnce(t *testing.T) {
	r, _ := newFakeRig(t)
	id, deleted := r.create(engine.Source{}, 400*mib), r.create(engine.Source{}, 16*mib)
	r.done(r.engine.DeleteVolumes(r.ctx, []engine.ID{deleted}))
	r.clear()
	r.reopened()
	r.done(r.engine.Export(r.ctx, []engine.Export{r.exportOf(id)}))
	r.Expect(r.state().Pools[0].ClearingBytes).To(BeZero())

	r.done(r.engine.DeleteVolumes(r.ctx, []engine.ID{r.create(engine.Source{}, 16*mib)}))
	r.Expect(r.clean()).To(BeTrue(), "nothing was deleted yet")
	r.clear()
	r.Expect(r.clean()).To(BeTrue())
}

// TestAnotherAgentGoesOn where the one before it was, also with what SPDK lists no more because it is clearing it, and
// holds nothing. The pool is marked once that is done, so that the target's next start finds it clean.
func TestAnotherAgentGoesOn(t *testing.T) {
	for name, used := range map[string]bool{"hosts use the pool": true, "nobody uses it": false} {
		t.Run(name, func(t *testing.T) {
			r, fake := newFakeRig(t)
			id, deleted := r.create(engine.Source{}, 16*mib), r.create(engine.Source{}, 16*mib)
			if used {
				r.done(r.engine.Export(r.ctx, []engine.Export{r.exportOf(id)}))
			}
			check(t, fake.Write(r.lvols()[string(deleted)].Alias, 0, 3))
			r.done(r.engine.DeleteVolumes(r.ctx, []engine.ID{deleted}))
			fake.Inject(spdktest.Fault{Method: "bdev_lvol_delete", Error: &spdktest.AnswerError{Code: -32603, Message: "Input/output error"}})
			_, err := r.engine.Clear(r.ctx, r.device.ID)
			r.Expect(err).To(HaveOccurred())
			free := r.state().Pools[0].FreeBytes
			goOn := fake.Hang(r.lvstoreOf(id))
			giveUp := r.beginsToClear()
			r.Eventually(r.lvols).ShouldNot(HaveKey("x-" + string(deleted)))
			giveUp()

			r.engine = r.machine.engine(t)
			r.clear()
			r.Expect(r.state().Pools[0]).To(And(HaveField("ClearingBytes", BeEquivalentTo(3*engine.SizeUnit)), HaveField("FreeBytes", free)))
			r.Expect(r.clean()).To(BeFalse())
			goOn()
			r.Eventually(func() int64 { return r.state().Pools[0].ClearingBytes }).Should(BeZero())
			r.clear()
			r.Expect(r.clean()).To(BeTrue())
			r.reopened()
			r.done(r.engine.Export(r.ctx, []engine.Export{r.exportOf(id)}))
		})
	}
}

// TestPoolWithoutMarks that hosts use: nobody says that its free space was looked at before they did.
func TestPoolWithoutMarks(t *testing.T) {
	r, _ := newFakeRig(t)
	id, deleted := r.create(engine.Source{}, 16*mib), r.create(engine.Source{}, 16*mib)
	r.done(r.engine.Export(r.ctx, []engine.Export{r.exportOf(id)}))
	_, err := spdkrpc.Call(r.ctx, r.client, spdkrpc.BdevLvolDelete{Name: r.lvstoreOf(id) + "/clean"})
	check(t, err)
	r.engine = r.machine.engine(t)
	r.state()
	r.done(r.engine.DeleteVolumes(r.ctx, []engine.ID{deleted}))
	r.clear()
	r.Expect(r.lvols()).NotTo(HaveKey("x-" + string(deleted)))
	r.engine = r.machine.engine(t)
	r.clear()
	r.Expect(r.marks("")).To(BeEmpty(), "who clears it does not say that somebody knows")
	r.reopened()
	r.Expect(r.engine.Export(r.ctx, []engine.Export{r.exportOf(id)})).To(HaveExactElements(MatchError(engine.ErrBusy)))
}

// TestMarkThatCannotBeMade keeps what was deleted: a target that ended then would pass for clean.
func TestMarkThatCannotBeMade(t *testing.T) {
	for name, test := range map[string]struct {
		of   spdktest.AnswerError
		also bool
	}{
		"the drive fails":                       {spdktest.AnswerError{Code: -32602, Message: "Input/output error"}, false},
		"no metadata page, and the other stays": {spdktest.AnswerError{Code: -32602, Message: "No space left on device"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			r, fake := newFakeRig(t)
			deleted := r.create(engine.Source{}, 16*mib)
			r.done(r.engine.DeleteVolumes(r.ctx, []engine.ID{deleted}))
			withdraw := fake.Inject(spdktest.Fault{Method: "bdev_lvol_create", Times: -1, Error: &test.of})
			if test.also {
				fake.Inject(spdktest.Fault{Method: "bdev_lvol_delete", Error: &spdktest.AnswerError{Code: -32603, Message: "Input/output error"}})
			}
			r.state()
			_, err := r.engine.Clear(r.ctx, r.device.ID)
			r.Expect(err).To(HaveOccurred())
			r.Expect(r.lvols()).To(HaveKey("x-" + string(deleted)))
			withdraw()
			r.clear()
			r.Expect(r.lvols()).To(BeEmpty())
			r.Expect(r.clean()).To(BeTrue())
		})
	}
}

// TestPoolWithoutMetadataPages is cleared all the same: the mark goes for which there is no other.
func TestPoolWithoutMetadataPages(t *testing.T) {
	r, fake := newFakeRig(t)
	deleted := r.create(engine.Source{}, 16*mib)
	r.done(r.engine.DeleteVolumes(r.ctx, []engine.ID{deleted}))
	fake.Inject(spdktest.Fault{Method: "bdev_lvol_create", Error: &spdktest.AnswerError{Code: -32602, Message: "No space left on device"}})
	r.clear()
	r.Expect(r.lvols()).To(BeEmpty())
	r.Expect(r.clean()).To(BeTrue())
}

// TestClearingThatIsInterrupted by something more to clear lets go of all that it had chosen.
func TestClearingThatIsInterrupted(t *testing.T) {
	r, fake := newFakeRig(t)
	ids := []engine.ID{r.create(engine.Source{}, 16*mib), r.create(engine.Source{}, 16*mib), r.create(engine.Source{}, 16*mib)}
	r.done(r.engine.DeleteVolumes(r.ctx, ids[:2]))
	held := fake.Inject(spdktest.Fault{Method: "bdev_lvol_delete", Match: notTheMark, Delay: 200 * time.Millisecond})
	defer held()
	ended := make(chan error)
	go func() {
		_, err := r.engine.Clear(r.ctx, r.device.ID)
		ended <- err
	}()
	r.Eventually(func() int { return fake.Calls()["bdev_lvol_delete"] }).Should(BeNumerically(">", 0))
	r.done(r.engine.DeleteVolumes(r.ctx, ids[2:]))
	r.Expect(<-ended).To(Succeed())
	r.clear()
	r.Expect(r.lvols()).To(BeEmpty())
	r.Expect(r.clean()).To(BeTrue())
}

// TestPoolWhoseDriveComesBack in one life of the target is looked at again.
func TestPoolWhoseDriveComesBack(t *testing.T) {
	m := newMachine(t)
	r := rigOf(t, m)
	id := r.create(engine.Source{}, 16*mib)
	r.done(r.engine.Export(r.ctx, []engine.Export{r.exportOf(id)}))
	r.done(r.engine.DeleteVolumes(r.ctx, []engine.ID{r.create(engine.Source{}, 16*mib)}))
	r.soil(id)
	m.Lose(t, r.device)
	r.done(r.engine.OpenPools(r.ctx, []engine.Device{r.device}))
	r.Expect(r.engine.Export(r.ctx, []engine.Export{r.exportOf(id)})[0]).To(MatchError(engine.ErrBusy))
}

func (r *rig) fake() *spdktest.Target { return r.target.(*spdktest.Target) }

// clean says whether the target has the marks of a pool whose free space is, and of no other that is not.
func (r *rig) clean() bool {
	r.t.Helper()
	marks := r.marks("")
	return slices.Contains(marks, "clean") && !slices.Contains(marks, "soiled")
}

// marks of free space in an lvstore, or in all of them.
func (r *rig) marks(lvstore string) []string {
	r.t.Helper()
	all, err := spdkrpc.Call(r.ctx, r.client, spdkrpc.BdevLvolGetLvols{})
	check(r.t, err)
	var marks []string
	for _, l := range all {
		if strings.HasPrefix(l.Alias, lvstore) && (l.Name == "clean" || l.Name == "soiled") {
			marks = append(marks, l.Name)
		}
	}
	return marks
}

// lvstoreOf a volume.
func (r *rig) lvstoreOf(id engine.ID) string {
	r.t.Helper()
	lvstore, _, _ := strings.Cut(r.lvols()[string(id)].Alias, "/")
	return lvstore
}

// soil the free space of a volume's pool, as far as its marks say.
func (r *rig) soil(id engine.ID) {
	r.t.Helper()
	_, err := spdkrpc.Call(r.ctx, r.client, spdkrpc.BdevLvolCreate{LvstoreName: r.lvstoreOf(id), Name: "soiled", SizeMiB: 4, Thin: true})
	check(r.t, err)
}

// killedWhileItClears a volume, once its metadata is gone.
func (r *rig) killedWhileItClears(id engine.ID) {
	r.t.Helper()
	r.done(r.engine.DeleteVolumes(r.ctx, []engine.ID{id}))
	r.state()
	ended := make(chan error)
	go func() {
		_, err := r.engine.Clear(r.ctx, r.device.ID)
		ended <- err
	}()
	r.Eventually(func() map[string]spdkrpc.Lvol { return r.lvols() }, time.Minute, time.Millisecond).ShouldNot(HaveKey("x-" + string(id)))
	r.target.Kill()
	r.Expect(<-ended).To(Or(BeNil(), MatchError(engine.ErrUnavailable)))
}
