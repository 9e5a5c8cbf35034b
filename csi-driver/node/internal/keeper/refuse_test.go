// SPDX-License-Identifier: Apache-2.0

package keeper

import (
	"errors"
	"slices"
	"testing"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
)

// The last member in sync stays although it is to leave, and writes do not wait for that; they do once it is silent.
func TestTheLastMemberThatIsToLeaveServes(t *testing.T) {
	r := startRunning(t)
	r.want("running", in(Running))
	all := mirror.InSync(r.api.mirror.Record)
	last := r.targets[all[0]]
	next, err := mirror.Retire(r.api.mirror.Record, all[0])
	if err != nil {
		t.Fatal(err)
	}
	r.api.mirror.Record = next
	r.targets[all[1]].crash()
	r.want("alone", func(Status) bool { return slices.Equal(mirror.InSync(r.api.mirror.Record), all[:1]) })
	if r.steps(200, func(s Status) bool { return errors.Is(s.Err, ErrLastLeg) }) {
		t.Error("writes are said to wait, and the last member works")
	}
	last.crash()
	r.want("waiting", func(s Status) bool { return errors.Is(s.Err, ErrLastLeg) })
}

// A member that the holder refuses is recorded as foreign: nobody can tell once it does not answer any more. It stays
// so until it returns.
func TestARefusedMemberIsRecorded(t *testing.T) {
	for name, estrange := range map[string]func(d *disk, self string){
		"a kernel went on with it alone":  func(d *disk, self string) { d.super.active, d.super.copying = map[string]bool{self: true}, nil },
		"its header has an unknown mark":  func(d *disk, _ string) { d.header.Mark = "unknown" },
		"its header has an epoch to come": func(d *disk, _ string) { d.header.Epoch += 100 },
	} {
		t.Run(name, func(t *testing.T) {
			r := startRunning(t)
			r.want("running", in(Running))
			lost := mirror.InSync(r.api.mirror.Record)[1]
			is := func() mirror.Member { m, _ := mirror.Get(r.api.mirror.Record, lost); return m }
			at := r.targets[lost]
			at.crash()
			r.want("out", func(Status) bool { return is().State == v1alpha1.MemberOut && is().Released })
			was := at.disk
			estrange(&at.disk, lost)
			at.powered = true
			r.want("refused", func(Status) bool { r.agents(); return is().Foreign })
			at.crash()
			r.steps(200, func(Status) bool { r.agents(); return false })
			if m := is(); !m.Foreign || m.State != v1alpha1.MemberOut {
				t.Errorf("when it is silent again, it is %+v", m)
			}

			at.disk, at.powered = was, true
			r.n.kill()
			r.n.keep()
			r.n.plugin.Mode = Keep
			r.want("back", func(Status) bool { r.agents(); return is().State == v1alpha1.MemberReturning })
			if is().Foreign {
				t.Error("it returns, and is foreign")
			}
		})
	}
}
