// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
	"github.com/weft-storage/weft/csi-driver/node"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
)

// list hosts of this node's attachment in a replica's object, as whom its target admits this node.
func (s *mirrorSuite) list(name string, identities ...string) {
	s.Helper()
	editReplica(s, s.api, name, func(r *v1alpha1.NvmfReplica) {
		host := r.Spec.Hosts[0]
		r.Spec.Hosts, r.Status.Hosts = nil, nil
		for _, identity := range identities {
			host.NQN = v1alpha1.HostNQN(identity)
			r.Spec.Hosts, r.Status.Hosts = append(r.Spec.Hosts, host), append(r.Status.Hosts, v1alpha1.AdmittedHost{NQN: host.NQN})
		}
	})
	s.serveTo(s.legs[name], size, identities...)
}

// mend the paths some minutes later.
func (s *mirrorSuite) mend() {
	s.Helper()
	s.clock.Step(time.Hour)
	must(s, s.service.MendPaths(s.Context()))
}

// hosts as which a replica is connected, sorted.
func (s *mirrorSuite) hosts(name string) []string {
	s.Helper()
	controllers, err := s.service.Initiator.Controllers(s.legs[name].nqn())
	must(s, err)
	var identities []string
	for _, c := range controllers {
		identity, _ := v1alpha1.AttachmentOfHost(c.HostNQN)
		identities = append(identities, identity)
	}
	slices.Sort(identities)
	return identities
}

func (s *mirrorSuite) retired() []string {
	s.Helper()
	retired, err := s.service.RetiredIdentities()
	must(s, err)
	return retired
}

// mirrorRotation is a staged mirror, of which a replica's keys are rotated.
type mirrorRotation struct {
	*mirrorSuite
	leg    *leg
	former string
	before mirror.Record
	// taken lets the kernel take the former host's connections away, which it has not done so far.
	taken func()
}

func stagedMirror(t *testing.T) *mirrorRotation {
	t.Helper()
	return stageRotation(t, setUpMirror(t))
}

func stageRotation(t *testing.T, s *mirrorSuite) *mirrorRotation {
	t.Helper()
	must(t, s.stage(mountCapability("ext4")))
	l := s.legs["pvc-1-r1"]
	return &mirrorRotation{mirrorSuite: s, leg: l, former: l.identity, before: s.record(), taken: func() {}}
}

// undisturbed: neither the record nor the other replica has changed.
func (r *mirrorRotation) undisturbed() {
	r.Helper()
	r.Expect(r.record()).To(Equal(r.before))
	r.Expect(r.hosts("pvc-1-r2")).To(Equal([]string{r.legs["pvc-1-r2"].identity}))
}

// restart the node plugin. The one before must not write to the records any more.
func (r *mirrorRotation) restart() {
	r.Helper()
	r.service.LeaveMirrors()
	r.service = r.restarted()
	r.keepWith(r.service)
	r.NodeClient = csi.NewNodeClient(r.dial(nil))
}

// lose the replica, and take it back under another subsystem.
func (r *mirrorRotation) loseAndTakeBack() {
	r.Helper()
	r.serveLeg(r.leg.name, false)
	r.hang(r.leg.name)
	r.outAfterTheGrace(r.leg.name)
	r.taken()
	r.Eventually(func() []string { return r.controllers(r.leg.name) }).Should(BeEmpty())
	r.Eventually(func() bool { m, _ := mirror.Get(r.record(), r.leg.name); return m.Released }).Should(BeTrue())

	// The target is back before the CSI controller has dismissed the hosts.
	var is v1alpha1.NvmfReplica
	must(r, r.api.Get(r.Context(), client.ObjectKey{Name: r.leg.name}, &is))
	var listed []string
	for _, h := range is.Spec.Hosts {
		identity, _ := v1alpha1.AttachmentOfHost(h.NQN)
		listed = append(listed, identity)
	}
	r.list(r.leg.name, listed...)
	r.mend()
	for range 3 {
		must(r, r.service.MirrorChanged(r.Context(), vol))
	}
	r.Expect(r.controllers(r.leg.name)).To(BeEmpty(), "nothing of the subsystem that was given up is connected again")
	r.admit(r.leg.name, false)
	r.Eventually(r.stateOf(r.leg.name)).Should(Equal(v1alpha1.MemberInSync))
	r.Expect(r.hosts(r.leg.name)).To(Equal([]string{r.leg.identity}))
	r.Expect(r.retired()).To(BeEmpty())
}

func (r *mirrorRotation) unstaged() {
	r.Helper()
	must(r, r.unstage())
	r.wantGone()
	r.wantEqualLegs()
}

// The keys of a mirror's replica are rotated, twice: its record does not change, and knows the leg as before when it is
// lost afterwards.
func TestRotateKeysOfAMirror(t *testing.T) {
	r := stagedMirror(t)
	r.list(r.leg.name, r.former, secondIdentity)
	r.mend()
	r.Expect(r.hosts(r.leg.name)).To(Equal([]string{secondIdentity}))
	r.Expect(r.retired()).To(Equal([]string{r.former}))
	r.undisturbed()
	r.list(r.leg.name, secondIdentity)
	r.mend()
	r.Expect(r.retired()).To(BeEmpty())
	r.list(r.leg.name, r.former, secondIdentity) // as after a restore of the API
	r.mend()
	r.Expect(r.hosts(r.leg.name)).To(Equal([]string{secondIdentity}))
	r.Expect(r.retired()).To(Equal([]string{r.former}))
	r.list(r.leg.name, secondIdentity)
	r.mend()

	r.restart()
	r.list(r.leg.name, secondIdentity, thirdIdentity)
	r.mend()
	r.Expect(r.hosts(r.leg.name)).To(Equal([]string{thirdIdentity}))
	r.Expect(r.retired()).To(Equal([]string{secondIdentity}))
	r.undisturbed()
	must(t, r.stage(mountCapability("ext4")))
	r.Expect(r.hosts(r.leg.name)).To(Equal([]string{thirdIdentity}))
	r.Expect(strings.Contains(r.health(), "abnormal:true")).To(BeFalse(), r.health())
	r.loseAndTakeBack()
	r.unstaged()
}

// A leg answers, to its keeper, while one of its controllers does. So one that has no path does not stay, and nothing
// is connected beside a host whose connection does not answer.
func TestRotationDoesNotHideThatALegIsLost(t *testing.T) {
	for _, killed := range []bool{false, true} {
		t.Run(map[bool]string{false: "kept", true: "killed"}[killed], func(t *testing.T) { rotationHidesNothing(t, killed) })
	}
}

// killedInitiator gives nothing up while it is dead, like a process that was killed.
type killedInitiator struct {
	node.Initiator
	dead *atomic.Bool
}

func (k killedInitiator) GiveUp(ctx context.Context, nqn string, those func(fabrics.Controller) bool) error {
	if k.dead.Load() {
		return context.Canceled
	}
	return k.Initiator.GiveUp(ctx, nqn, those)
}

// rotationHidesNothing when the former host's connection stops answering while the next one has no path: neither to the
// node plugin that has connected it, nor to the next one, if that was killed.
func rotationHidesNothing(t *testing.T, killed bool) {
	s := setUpMirror(t)
	var dead atomic.Bool
	s.service.Initiator = killedInitiator{s.service.Initiator, &dead}
	r := stageRotation(t, s)
	r.kernel.ScanLate()
	r.list(r.leg.name, r.former, secondIdentity)
	former := r.controllers(r.leg.name)
	ctx, kill := context.WithCancel(t.Context())
	defer kill()
	mended := make(chan error)
	r.clock.Step(time.Hour)
	go func() { mended <- r.service.MendPaths(ctx) }()
	r.Eventually(func() []string { return r.hosts(r.leg.name) }).Should(Equal(sorted(r.former, secondIdentity)))
	if killed {
		dead.Store(true)
		kill()
		r.Expect(<-mended).To(HaveOccurred())
		dead.Store(false)
		r.Expect(r.hosts(r.leg.name)).To(Equal(sorted(r.former, secondIdentity)))
		r.restart()
	}
	must(t, r.kernel.SetState(former[0], "connecting"))
	if killed {
		r.mend()
	} else {
		must(t, <-mended)
	}
	r.Expect(r.hosts(r.leg.name)).To(Equal([]string{r.former}))
	r.Expect(r.retired()).To(BeEmpty())
	must(t, r.stage(mountCapability("ext4")))
	r.undisturbed()
	made := len(r.kernel.Creations())
	r.mend()
	r.Expect(r.kernel.Creations()).To(HaveLen(made))
	r.Expect(r.hosts(r.leg.name)).To(Equal([]string{r.former}))
	must(t, r.kernel.ScanNow())
	r.loseAndTakeBack()
	r.unstaged()
}

// Both hosts are connected when the target goes: the leg is given up with both.
func TestLegIsLostInTheMiddleOfARotation(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(map[bool]string{false: "kept", true: "restarted"}[restart], func(t *testing.T) {
			r := stagedMirror(t)
			r.turn()
			if restart {
				r.restart()
			}
			r.loseAndTakeBack()
			r.unstaged()
		})
	}
}

// turn to the next host. The kernel does not take the former one's connections away yet.
func (r *mirrorRotation) turn() {
	r.Helper()
	r.taken = sync.OnceFunc(r.kernel.Stick(r.controllers(r.leg.name)[0]))
	r.Cleanup(r.taken)
	r.list(r.leg.name, r.former, secondIdentity)
	r.clock.Step(time.Hour)
	if err := r.service.MendPaths(r.Context()); err == nil {
		r.Fatal("the kernel has taken the former connections away")
	}
	r.Expect(r.hosts(r.leg.name)).To(Equal(sorted(r.former, secondIdentity)))
	r.Expect(r.retired()).To(BeEmpty())
	r.undisturbed()
}

func sorted(all ...string) []string {
	slices.Sort(all)
	return all
}

// A machine that was restarted in the middle connects as the latest host that is admitted.
func TestStageAMirrorAnewWhileKeysAreRotated(t *testing.T) {
	r := stagedMirror(t)
	must(t, r.unstage())
	r.list(r.leg.name, r.former, secondIdentity)
	editReplica(t, r.api, r.leg.name, func(is *v1alpha1.NvmfReplica) { is.Status.Hosts = is.Status.Hosts[:1] })
	must(t, r.stage(mountCapability("ext4")))
	r.Expect(r.hosts(r.leg.name)).To(Equal([]string{r.former}))
	must(t, r.unstage())
	r.list(r.leg.name, r.former, secondIdentity)
	must(t, r.stage(mountCapability("ext4")))
	r.Expect(r.hosts(r.leg.name)).To(Equal([]string{secondIdentity}))
	r.Expect(r.retired()).To(Equal([]string{r.former}))
	m, _ := mirror.Get(r.record(), r.leg.name)
	r.Expect(m.Identity).To(Equal(r.leg.identity))
	r.unstaged()
}

// The holder is fenced in the middle of a rotation, and another attachment on the same node gets the volume: nothing of
// either host is left.
func TestMirrorIsLeftInTheMiddleOfARotation(t *testing.T) {
	r := stagedMirror(t)
	r.list(r.leg.name, r.former, secondIdentity)
	r.mend()
	r.change(mirror.Begin)
	must(t, r.service.MirrorChanged(t.Context(), vol))
	r.Eventually(func() []string { return r.controllers(r.leg.name) }).Should(BeEmpty())
	r.Eventually(r.processes.wasKilled).Should(BeTrue())
	must(t, r.unstage())
	r.wantGone()
}

// A replica was given up, and the CSI controller has dismissed its host, which its agent has not: staging the volume
// again does not take that host for one that may connect.
func TestStageAMirrorAgainWithoutAReplica(t *testing.T) {
	r := stagedMirror(t)
	r.serveLeg(r.leg.name, false)
	r.hang(r.leg.name)
	r.outAfterTheGrace(r.leg.name)
	r.Eventually(func() []string { return r.controllers(r.leg.name) }).Should(BeEmpty())
	editReplica(t, r.api, r.leg.name, func(is *v1alpha1.NvmfReplica) { is.Spec.Hosts = nil })
	must(t, r.stage(mountCapability("ext4")))
	r.mend()
	r.restart()
	r.serveLeg(r.leg.name, true)
	r.admit(r.leg.name, false)
	r.Eventually(r.stateOf(r.leg.name)).Should(Equal(v1alpha1.MemberInSync))
	r.unstaged()
}

// Both hosts are connected when the volume grows: the leg is one.
func TestMirrorGrowsInTheMiddleOfARotation(t *testing.T) {
	r := stagedMirror(t)
	r.turn()
	for name, l := range r.legs {
		hosts := []string{l.identity}
		if name == r.leg.name {
			hosts = append(hosts, secondIdentity)
		}
		r.serveTo(l, 2*size, hosts...)
	}
	must(t, r.expand())
	r.taken()
	r.unstaged()
}
