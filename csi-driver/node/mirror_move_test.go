// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/grpc/codes"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
)

// moving is the CSI controller that moves a volume's replica.
type moving struct {
	testing.TB
	api client.Client
	now func() time.Time
	// changed is told of each change of the mirror, as the node plugin's watch tells it.
	changed func(ctx context.Context, volume string) error
}

// editVolume and editMirror change an object as it is now.
func (m moving) editVolume(edit func(*v1alpha1.NvmfVolume)) {
	m.Helper()
	must(m, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		var v v1alpha1.NvmfVolume
		if err := m.api.Get(context.Background(), client.ObjectKey{Name: vol}, &v); err != nil {
			return err
		}
		edit(&v)
		return m.api.Update(context.Background(), &v)
	}))
}

func (m moving) editMirror(edit func(mirror.Record) (mirror.Record, error)) {
	m.Helper()
	must(m, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		var is v1alpha1.NvmfMirror
		err := m.api.Get(context.Background(), client.ObjectKey{Name: vol}, &is)
		if err != nil {
			return err
		}
		if is.Spec, err = edit(is.Spec); err != nil {
			return err
		}
		return m.api.Update(context.Background(), &is)
	}))
	must(m, m.changed(context.Background(), vol))
}

func (m moving) record() mirror.Record {
	m.Helper()
	var is v1alpha1.NvmfMirror
	must(m, m.api.Get(context.Background(), client.ObjectKey{Name: vol}, &is))
	return is.Spec
}

func (m moving) stateOf(l *leg) func() v1alpha1.MirrorMemberState {
	return func() v1alpha1.MirrorMemberState { return mirror.StateOf(m.record(), l.name) }
}

// recorded makes the record of a volume with one replica, while it is attached.
func (m moving) recorded(only *leg) {
	m.Helper()
	record, err := mirror.New(attachment, []mirror.Replica{only.replica()}, nil, m.now())
	must(m, err)
	record.HolderNode = "n1"
	is := &v1alpha1.NvmfMirror{}
	is.Name, is.Spec = vol, record
	must(m, m.api.Create(context.Background(), is))
}

// mirrored makes a volume with one replica a mirrored one.
func (m moving) mirrored(only *leg) {
	m.Helper()
	m.recorded(only)
	m.editVolume(func(v *v1alpha1.NvmfVolume) { v.Spec.Mirrored = true })
}

// add a replica, which nobody is admitted to yet.
func (m moving) add(l *leg, sizeBytes int64) {
	m.Helper()
	must(m, m.api.Create(context.Background(), l.object(sizeBytes)))
	m.editVolume(func(v *v1alpha1.NvmfVolume) { v.Spec.Members = append(v.Spec.Members, l.member()) })
	m.editMirror(func(r mirror.Record) (mirror.Record, error) { return mirror.Add(r, l.replica(), m.now()) })
}

// retire a replica, and remove it once no kernel has it any more.
func (m moving) retire(g Gomega, l *leg) {
	m.Helper()
	m.editMirror(func(r mirror.Record) (mirror.Record, error) { return mirror.Retire(r, l.name) })
	g.Eventually(func() bool {
		is, _ := mirror.Get(m.record(), l.name)
		return mirror.Free(m.record(), is)
	}).Should(BeTrue())
	m.editMirror(func(r mirror.Record) (mirror.Record, error) { return mirror.Remove(r, l.name) })
	m.editVolume(func(v *v1alpha1.NvmfVolume) { v.Spec.Members = v.Spec.Members[1:] })
}

// setUpPlain gives a suite with a volume of one replica, and the leg of another one that it does not have yet.
func setUpPlain(t testing.TB) (*mirrorSuite, moving) {
	t.Helper()
	s := newMirrorSuite(t)
	first := s.legs["pvc-1-r1"]
	first.identity = attachment
	s.keepIn(apiWith(t, attachedVolume(s.context.Connection, first), first.object(size)))
	s.serveLeg(first.name, true)
	editReplica(t, s.api, first.name, first.admitted(true))
	return s, moving{t, s.api, s.clock.Now, s.service.MirrorChanged}
}

// A volume with one replica is staged, gets a mirror while it is used, then another replica, and then loses the first.
func TestStagedVolumeMoves(t *testing.T) {
	for kind, c := range capabilities() {
		t.Run(kind, func(t *testing.T) {
			s, m := setUpPlain(t)
			first, second := s.legs["pvc-1-r1"], s.legs["pvc-1-r2"]
			must(t, s.stage(c))
			must(t, s.publish(c, "pod", false))
			must(t, s.service.MirrorChanged(t.Context(), vol))
			if all, err := s.kernel.Mirrors().All(); err != nil || len(all) != 0 {
				t.Fatalf("a volume without a mirror has arrays %v: %v", all, err)
			}
			before := s.mounts()

			m.mirrored(first)
			must(t, s.service.MirrorChanged(t.Context(), vol))
			if all, err := s.kernel.Mirrors().All(); err != nil || len(all) != 1 {
				t.Fatalf("the mirrored volume has arrays %v: %v", all, err)
			}
			must(t, s.service.MirrorChanged(t.Context(), vol))
			must(t, s.stage(c))
			s.wantMounts(before)

			m.add(second, size)
			s.admit(second.name, true)
			s.Eventually(m.stateOf(second)).Should(Equal(v1alpha1.MemberInSync))
			m.retire(s, first)
			s.Expect(s.controllers(first.name)).To(BeEmpty())
			s.wantMounts(before)
			must(t, s.unpublish("pod"))
			must(t, s.unstage())
			s.wantGone()
			if r := s.record(); r.Dirty || len(r.Members) != 1 || !mirror.Whole(r) {
				t.Errorf("unstaged, the record is %s", mirror.String(r))
			}
			s.wantEqualLegs()
		})
	}
}

// A replica whose device has larger blocks is kept out: the pod's writes could be smaller than they.
func TestReplicaWithLargerBlocksIsKeptOut(t *testing.T) {
	s, m := setUpPlain(t)
	first, second := s.legs["pvc-1-r1"], s.legs["pvc-1-r2"]
	must(t, s.stage(blockCapability()))
	m.mirrored(first)
	must(t, s.service.MirrorChanged(t.Context(), vol))
	m.add(second, size)
	slice := "weft-leg-" + second.uuid
	s.kernel.SetBlockBytes(slice, 4096)
	s.admit(second.name, true)
	s.Eventually(s.kernel.Mapped).Should(ContainElement(slice))
	s.Eventually(s.health).Should(ContainSubstring("logical blocks of 4096 bytes"))
	s.Expect(m.stateOf(second)()).To(Equal(v1alpha1.MemberFilling))
}

// Putting the mirror under the device is cut off: the device goes on as it was, nothing is copied, and it is done
// later.
func TestAdoptionThatFailsIsRepeated(t *testing.T) {
	s, m := setUpPlain(t)
	second := s.legs["pvc-1-r2"]
	must(t, s.stage(blockCapability()))
	before := s.mounts()
	m.mirrored(s.legs["pvc-1-r1"])
	loads := 0
	s.devices.fail = func(step string) error {
		if step != "Load" {
			return nil
		}
		if loads++; loads == 1 {
			return nil // of the slice
		}
		return syscall.ENOMEM
	}
	want(t, s.service.MirrorChanged(t.Context(), vol), codes.Internal, "put the mirror under")
	s.wantMounts(before)
	s.devices.fail = nil
	s.service.LeaveMirrors()
	must(t, s.service.MirrorChanged(t.Context(), vol)) // as after a restart
	m.add(second, size)
	s.admit(second.name, true)
	s.Eventually(m.stateOf(second)).Should(Equal(v1alpha1.MemberInSync))
	s.wantMounts(before)
	must(t, s.unstage())
	s.wantEqualLegs()
}
