// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
	"github.com/weft-storage/weft/csi-driver/node/nodetest"
)

// detachedWith is a volume that was formatted and written by a pod, detached, and is to have a second replica.
func detachedWith(t *testing.T) (*mirrorSuite, moving) {
	t.Helper()
	s, m := setUpPlain(t)
	m.mirrored(s.legs["pvc-1-r1"])
	must(t, s.stage(blockCapability()))
	must(t, s.unstage())
	s.wantGone()
	m.add(s.legs["pvc-1-r2"], size)
	return s, m
}

// give the mirror to an attachment of this node, as the CSI controller does: a mover's, or a pod's.
func (m moving) give(s *mirrorSuite, holder string, mover v1alpha1.MoverState) {
	m.Helper()
	m.editMirror(func(r mirror.Record) (mirror.Record, error) { return mirror.Begin(r), nil })
	m.editVolume(func(v *v1alpha1.NvmfVolume) {
		v.Spec.Attachments = []v1alpha1.VolumeHost{{NQN: v1alpha1.HostNQN(holder), NodeUID: uid, Node: "n1", Mover: mover != ""}}
	})
	var confirmed []mirror.Confirmation
	for name, l := range s.legs {
		must(m, s.kernel.Serve(nodetest.Subsystem{NQN: l.nqn()}))
		l.identity = uuid.NewString()
		s.serveLeg(name, true)
		editReplica(m, m.api, name, func(r *v1alpha1.NvmfReplica) {
			l.admitted(false)(r)
			r.Spec.Hosts[0].Attachment, r.Spec.Hosts[0].Mover = holder, mover != ""
		})
		if mirror.StateOf(m.record(), name) == v1alpha1.MemberInSync {
			confirmed = append(confirmed, mirror.Confirmation{Replica: l.replica()})
		}
	}
	m.editMirror(func(r mirror.Record) (mirror.Record, error) {
		if mover == v1alpha1.MoverRead {
			return mirror.AdmitReader(mirror.Doubt(r), holder, "n1")
		}
		next, err := mirror.Admit(r, holder, confirmed, m.now())
		next.HolderNode, next.Mover = "n1", mover
		return next, err
	})
}

func (m moving) ask() {
	m.Helper()
	m.editMirror(func(r mirror.Record) (mirror.Record, error) { r.Mover = v1alpha1.MoverStop; return r, nil })
}

// A node plugin copies to a replica of a volume that no pod uses, also after a restart, and stops when it is asked.
func TestMoverFillsADetachedVolume(t *testing.T) {
	s, m := detachedWith(t)
	mover := uuid.NewString()
	m.give(s, mover, v1alpha1.MoverCopy)
	s.service.LeaveMirrors() // as when it ends
	s.keepWith(s.service)
	s.Eventually(func() error { return m.changed(t.Context(), vol) }).Should(Succeed()) // or what goes on by itself is still busy
	s.Eventually(m.stateOf(s.legs["pvc-1-r2"])).Should(Equal(v1alpha1.MemberInSync))
	if mounts := s.mounts(); len(mounts) > 0 {
		t.Errorf("a mover has mounted %v", mounts)
	}
	// The kubelet may still ask to unstage what was staged before.
	must(t, s.unstage())
	if r := m.record(); r.Holder != mover || r.Dirty {
		t.Errorf("after a late unstage, the record is %s", mirror.String(r))
	}
	m.ask()
	r := m.record()
	if r.Mover != v1alpha1.MoverStopped || r.Dirty || !mirror.Whole(r) {
		t.Errorf("stopped (%s), the record is %s", r.Mover, mirror.String(r))
	}
	s.wantGone()
	must(t, m.changed(t.Context(), vol)) // nothing starts again
	s.wantGone()
	s.wantEqualLegs()
}

// A pod's attachment takes the mirror from a mover in the middle of a copy: what was half copied is copied again, under
// the pod.
func TestPodDisplacesAMover(t *testing.T) {
	for name, asked := range map[string]bool{"that is asked to stop": true, "that is revoked": false} {
		t.Run(name, func(t *testing.T) {
			s, m := detachedWith(t)
			m.give(s, uuid.NewString(), v1alpha1.MoverCopy)
			if asked {
				m.ask()
				if r := m.record(); r.Mover != v1alpha1.MoverStopped {
					t.Fatalf("asked to stop, the mover is %s", r.Mover)
				}
				s.wantGone()
			}
			m.give(s, attachment, "")
			must(t, s.stage(blockCapability()))
			s.Eventually(m.stateOf(s.legs["pvc-1-r2"])).Should(Equal(v1alpha1.MemberInSync))
			must(t, s.unstage())
			s.wantGone()
			s.wantEqualLegs()
		})
	}
}

// While the volume is staged for an earlier attachment, a mover does not begin: whoever unstages it would stop it.
func TestMoverWaitsUntilTheVolumeIsUnstaged(t *testing.T) {
	s, m := setUpPlain(t)
	m.mirrored(s.legs["pvc-1-r1"])
	must(t, s.stage(blockCapability()))
	m.add(s.legs["pvc-1-r2"], size)
	NewWithT(t).Expect(func() (err error) {
		m.changed = func(ctx context.Context, volume string) error { err = s.service.MirrorChanged(ctx, volume); return nil }
		m.give(s, uuid.NewString(), v1alpha1.MoverCopy)
		return err
	}()).To(MatchError(ContainSubstring("still staged here")))
	var is v1alpha1.NvmfMirror
	must(t, s.api.Get(t.Context(), client.ObjectKey{Name: vol}, &is))
	if why := is.Spec.MoverWaiting; !strings.Contains(why, "still staged here") {
		t.Errorf("the mirror says %q", why)
	}
	must(t, s.unstage())
	must(t, s.service.MirrorChanged(t.Context(), vol))
	s.Eventually(m.stateOf(s.legs["pvc-1-r2"])).Should(Equal(v1alpha1.MemberInSync))
	m.changed = s.service.MirrorChanged
	m.ask()
	s.wantGone()
}

// What becomes of the mirror while the node plugin is away is found when it is back: another attachment has it, or the
// volume is deleted. Nothing of the mover is left then.
func TestMoverThatIsOverLeavesAfterARestart(t *testing.T) {
	for name, deleted := range map[string]bool{"revoked": false, "deleted": true} {
		t.Run(name, func(t *testing.T) {
			s, m := detachedWith(t)
			m.give(s, uuid.NewString(), v1alpha1.MoverCopy)
			s.Eventually(m.stateOf(s.legs["pvc-1-r2"])).Should(Equal(v1alpha1.MemberInSync))
			s.service.LeaveMirrors()
			m.changed = func(context.Context, string) error { return nil }
			m.editVolume(func(v *v1alpha1.NvmfVolume) { v.Spec.Attachments = nil })
			m.editMirror(func(r mirror.Record) (mirror.Record, error) { return mirror.Begin(r), nil })
			if deleted {
				is, v := &v1alpha1.NvmfMirror{}, &v1alpha1.NvmfVolume{}
				is.Name, v.Name = vol, vol
				must(t, s.api.Delete(t.Context(), is))
				must(t, s.api.Delete(t.Context(), v))
			}
			s.keepWith(s.service)
			s.Eventually(func() ([]string, error) {
				left, err := filepath.Glob(filepath.Join(s.service.Records, "*.json"))
				return left, err
			}).Should(BeEmpty())
			s.wantGone()
		})
	}
}
