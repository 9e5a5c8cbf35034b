// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/uuid"
	. "github.com/onsi/gomega"
	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
	"github.com/weft-storage/weft/csi-driver/node"
	"github.com/weft-storage/weft/csi-driver/node/nodetest"
	"github.com/weft-storage/weft/internal/header"
)

const (
	// waiting for what a keeper does, on a machine that may be busy.
	mirrorTimeout = 60 * time.Second
	grace         = 6 * time.Second
)

// mirrorSuite is a suite with a volume of two replicas, on two nodes, as the API server has it.
type mirrorSuite struct {
	*suite
	Gomega
	api       client.Client
	legs      map[string]*leg
	processes *processes
}

// leg is a replica, with the identity by which this node may connect to it.
type leg struct {
	name, uuid, portal, identity string
	port                         int32
}

func (l *leg) nqn() string   { return v1alpha1.SubsystemNQN(l.name, l.identity) }
func (l *leg) nguid() string { return strings.ReplaceAll(l.uuid, "-", "") }

func setUpMirror(t testing.TB) *mirrorSuite {
	t.Helper()
	s := newMirrorSuite(t)
	s.keepIn(mirrorAPI(t, s.clock.Now(), s.context.Connection, size, s.legs["pvc-1-r1"], s.legs["pvc-1-r2"]))
	for name := range s.legs {
		s.admit(name, true)
	}
	return s
}

// newMirrorSuite without objects.
func newMirrorSuite(t testing.TB) *mirrorSuite {
	t.Helper()
	s := &mirrorSuite{suite: setUp(t), Gomega: NewWithT(t), processes: &processes{}, legs: map[string]*leg{
		"pvc-1-r1": {name: "pvc-1-r1", uuid: "0a0b0c0d-0e0f-4001-8203-000000000001", portal: "10.0.0.1"},
		"pvc-1-r2": {name: "pvc-1-r2", uuid: "0a0b0c0d-0e0f-4001-8203-000000000002", portal: "10.0.0.2"},
	}}
	s.SetDefaultEventuallyTimeout(mirrorTimeout)
	s.SetDefaultEventuallyPollingInterval(10 * time.Millisecond)
	return s
}

// keepIn makes the node plugin work with an API server.
func (s *mirrorSuite) keepIn(api client.Client) {
	s.api = api
	s.service.Volumes, s.service.MirrorRecords, s.service.Processes = s.api, s.api, s.processes
	s.keepWith(s.service)
}

// keepWith a node plugin, until the test ends.
func (s *mirrorSuite) keepWith(service *node.Service) {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	must(s, service.TakeUpMirrors(ctx))
	go func() { done <- service.KeepMirrors(ctx) }()
	s.Cleanup(func() {
		stop()
		must(s, <-done)
		s.kernel.Abandon() // a replica that the test left without a path would be waited for
		service.LeaveMirrors()
	})
}

// outAfterTheGrace wants a replica to be recorded as out once the grace has passed for the keeper.
func (s *mirrorSuite) outAfterTheGrace(name string) {
	s.Helper()
	s.Eventually(func() v1alpha1.MirrorMemberState {
		s.clock.Step(grace)
		return s.stateOf(name)()
	}).Should(Equal(v1alpha1.MemberOut))
}

// mirrorAPI has a volume with two replicas, which are in sync, that is attached to this node.
func mirrorAPI(t testing.TB, now time.Time, connection v1alpha1.Connection, sizeBytes int64, legs ...*leg) client.Client {
	t.Helper()
	v := attachedVolume(connection, legs...)
	m := &v1alpha1.NvmfMirror{}
	m.Name = vol
	objects := []client.Object{v, m}
	var all []mirror.Replica
	var confirmed []mirror.Confirmation
	for _, l := range legs {
		objects = append(objects, l.object(sizeBytes))
		all, confirmed = append(all, l.replica()), append(confirmed, mirror.Confirmation{Replica: l.replica()})
	}
	record, err := mirror.New("", all, nil, now)
	must(t, err)
	m.Spec, err = mirror.Admit(record, attachment, confirmed, now)
	must(t, err)
	return apiWith(t, objects...)
}

// attachedVolume of these replicas, which is attached to this node.
func attachedVolume(connection v1alpha1.Connection, legs ...*leg) *v1alpha1.NvmfVolume {
	v := &v1alpha1.NvmfVolume{}
	v.Name, v.Spec.UUID, v.Spec.Replicas, v.Spec.Connection = vol, volumeUUID, int32(len(legs)), connection
	v.Spec.Session, v.Spec.Trailer = attachment, true
	v.Spec.Attachments = []v1alpha1.VolumeHost{{NQN: v1alpha1.HostNQN(attachment), NodeUID: uid, Node: "n1"}}
	for _, l := range legs {
		v.Spec.Members = append(v.Spec.Members, l.member())
	}
	return v
}

func (l *leg) member() v1alpha1.VolumeMember {
	return v1alpha1.VolumeMember{Name: l.name, UUID: l.uuid, Node: "storage-" + l.name}
}

func (l *leg) replica() mirror.Replica { return mirror.Replica{Name: l.name, UID: "uid-" + l.name} }

// object of a replica, to which nobody is admitted yet.
func (l *leg) object(sizeBytes int64) *v1alpha1.NvmfReplica {
	r := &v1alpha1.NvmfReplica{}
	r.Name, r.UID = l.name, types.UID(l.replica().UID)
	r.Spec.Volume, r.Spec.UUID = v1alpha1.ReplicaOf{Name: vol, UUID: volumeUUID}, l.uuid
	r.Spec.Connection.Transports = []v1alpha1.TransportType{v1alpha1.TransportTCP}
	r.Spec.Size.Set(sizeBytes)
	r.Status.Portals = []v1alpha1.Portal{{Transport: v1alpha1.TransportTCP, Address: l.portal, Port: max(l.port, 4420)}}
	return r
}

// admit this node to a replica under a fresh identity, as the CSI controller and the replica's agent do.
func (s *mirrorSuite) admit(name string, blank bool) {
	s.Helper()
	l := s.legs[name]
	if l.identity != "" {
		must(s, s.kernel.Serve(nodetest.Subsystem{NQN: l.nqn()})) // the former one is off
	}
	l.identity = uuid.NewString()
	s.serveLeg(name, true)
	editReplica(s, s.api, name, l.admitted(blank))
}

// admitted changes a replica's object as the CSI controller and the replica's agent do that admit this node.
func (l *leg) admitted(blank bool) func(*v1alpha1.NvmfReplica) {
	return func(r *v1alpha1.NvmfReplica) {
		r.Spec.SubsystemNQN = l.nqn()
		r.Spec.Hosts = []v1alpha1.VolumeHost{{NQN: v1alpha1.HostNQN(l.identity), Attachment: attachment, Node: "n1", NodeUID: uid}}
		r.Status.Hosts = []v1alpha1.AdmittedHost{{NQN: v1alpha1.HostNQN(l.identity), Blank: blank}}
	}
}

// serveLeg makes the target of a replica answer, or not.
func (s *mirrorSuite) serveLeg(name string, answers bool) {
	s.Helper()
	l := s.legs[name]
	if !answers {
		must(s, s.kernel.Serve(nodetest.Subsystem{NQN: l.nqn()}))
		return
	}
	s.serveTo(l, size, l.identity)
}

// serveTo makes the target of a replica serve so many bytes of data to these hosts.
func (s *mirrorSuite) serveTo(l *leg, bytes int64, identities ...string) {
	s.Helper()
	served := nodetest.Subsystem{
		NQN: l.nqn(), Portals: []string{l.portal + ":4420"},
		Namespaces: []nodetest.Namespace{{NGUID: l.nguid(), SizeBytes: v1alpha1.WithOverhead(bytes)}},
	}
	for _, identity := range identities {
		served.Hosts = append(served.Hosts, v1alpha1.HostNQN(identity))
	}
	must(s, s.kernel.Serve(served))
}

func editReplica(t testing.TB, api client.Client, name string, edit func(*v1alpha1.NvmfReplica)) {
	t.Helper()
	must(t, retry.RetryOnConflict(retry.DefaultRetry, func() error {
		var r v1alpha1.NvmfReplica
		if err := api.Get(t.Context(), client.ObjectKey{Name: name}, &r); err != nil {
			return err
		}
		edit(&r)
		return api.Update(t.Context(), &r)
	}))
}

func (s *mirrorSuite) record() mirror.Record {
	s.Helper()
	var m v1alpha1.NvmfMirror
	must(s, s.api.Get(s.Context(), client.ObjectKey{Name: vol}, &m))
	return m.Spec
}

// change the record as the CSI controller does.
func (s *mirrorSuite) change(change func(mirror.Record) mirror.Record) {
	s.Helper()
	must(s, retry.OnError(retry.DefaultBackoff, func(error) bool { return true }, func() error {
		var m v1alpha1.NvmfMirror
		if err := s.api.Get(s.Context(), client.ObjectKey{Name: vol}, &m); err != nil {
			return err
		}
		m.Spec = change(m.Spec)
		return s.api.Update(s.Context(), &m)
	}))
}

// controllers of a replica.
func (s *mirrorSuite) controllers(name string) []string {
	s.Helper()
	var names []string
	states, err := s.service.Initiator.States()
	must(s, err)
	for controller, is := range states {
		if is.NQN == s.legs[name].nqn() {
			names = append(names, controller)
		}
	}
	return names
}

// hang a replica: its target is away.
func (s *mirrorSuite) hang(name string) {
	s.Helper()
	s.serveLeg(name, false)
	states, err := s.service.Initiator.States()
	must(s, err)
	for controller, is := range states {
		if is.NQN == s.legs[name].nqn() && is.State == "live" {
			must(s, s.kernel.SetState(controller, "connecting"))
		}
	}
}

// headerOf a replica, on its target.
func (s *mirrorSuite) headerOf(name string) header.Header {
	s.Helper()
	data, err := os.ReadFile(s.kernel.Header(s.legs[name].nguid()))
	must(s, err)
	h, err := header.Parse(data[:header.Bytes])
	must(s, err)
	return h
}

// dataOf a replica, on its target.
func (s *mirrorSuite) dataOf(name string) []byte {
	s.Helper()
	data, err := os.ReadFile(s.kernel.Backing(s.legs[name].nguid()))
	must(s, err)
	return data[:size]
}

func (s *mirrorSuite) wantEqualLegs() {
	s.Helper()
	if !slices.Equal(s.dataOf("pvc-1-r1"), s.dataOf("pvc-1-r2")) {
		s.Error("the replicas differ")
	}
}

func (s *mirrorSuite) stateOf(name string) func() v1alpha1.MirrorMemberState {
	return func() v1alpha1.MirrorMemberState { return mirror.StateOf(s.record(), name) }
}

// processes that use devices.
type processes struct {
	mu sync.Mutex
	// waiting have a device open, by its number, and end only when their I/O does.
	waiting map[string]bool
	killed  []string
}

// Kill implements node.Processes.
func (p *processes) Kill(devices ...string) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	left := 0
	for _, d := range devices {
		p.killed = append(p.killed, d)
		if p.waiting[d] {
			left++
		}
	}
	return left, nil
}

func (p *processes) wasKilled() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.killed) > 0
}

func TestMirroredVolumeIsStagedAndUnstaged(t *testing.T) {
	for kind, c := range capabilities() {
		t.Run(kind, func(t *testing.T) {
			s := setUpMirror(t)
			must(t, s.stage(c))
			must(t, s.stage(c))
			must(t, s.publish(c, "pod", false))
			if r := s.record(); !r.Dirty || !mirror.Whole(r) || r.Holder != attachment {
				t.Errorf("staged, the record is %s", mirror.String(r))
			}
			for name := range s.legs {
				h := s.headerOf(name)
				if h.State != header.Formatted || h.Volume != volumeUUID {
					t.Errorf("%s begins with %+v", name, h)
				}
				part, err := mirror.ParseHeader(h.Mirror)
				if err != nil || mirror.Check(s.record(), name, part) != nil {
					t.Errorf("%s has the mirror's part %+v: %v", name, part, err)
				}
			}
			must(t, s.unpublish("pod"))
			must(t, s.unstage())
			s.wantGone()
			if all, err := s.kernel.Mirrors().All(); err != nil || len(all) != 0 {
				t.Errorf("arrays %v are left: %v", all, err)
			}
			if r := s.record(); r.Dirty || !mirror.Whole(r) {
				t.Errorf("unstaged, the record is %s", mirror.String(r))
			}
			s.wantEqualLegs()
			must(t, s.unstage())
		})
	}
}

// A record that is older than the headers is left to a person: calls say so at once, nothing is started, what runs is
// not stopped, and the volume is let go of once the record is recovered.
func TestMirroredVolumeOfARestoredRecordWaitsForAPerson(t *testing.T) {
	for name, call := range map[string]func(context.Context, *mirrorSuite) error{
		"staged":   func(ctx context.Context, s *mirrorSuite) error { return s.unstageIn(ctx) },
		"unstaged": func(ctx context.Context, s *mirrorSuite) error { return s.stageIn(ctx, mountCapability("ext4")) },
	} {
		t.Run(name, func(t *testing.T) {
			s := setUpMirror(t)
			backup := s.record()
			must(t, s.stage(mountCapability("ext4")))
			if name == "unstaged" {
				must(t, s.unstage())
			}
			s.change(func(mirror.Record) mirror.Record { return backup })
			ctx, cancel := context.WithTimeout(t.Context(), mirrorTimeout)
			defer cancel()
			began := time.Now()
			for range 2 {
				err := call(ctx, s)
				for _, says := range []string{"the mirror's record is older than its headers", "run: kubectl weft recover nv/" + vol} {
					if err == nil || !strings.Contains(err.Error(), says) {
						t.Errorf("got %v", err)
					}
				}
			}
			if name == "staged" {
				s.Expect(s.health()).To(ContainSubstring("run: kubectl weft recover nv/" + vol))
			}
			if took := time.Since(began); took > mirrorTimeout/2 {
				t.Errorf("the calls waited for %s", took)
			}
			if r := s.record(); r.Epoch != backup.Epoch {
				t.Errorf("the record is %s", mirror.String(r))
			}
			if name == "unstaged" {
				// Nothing of it runs here: its pod can go, and the volume be detached.
				must(t, s.unstageIn(ctx))
				s.wantGone()
				return
			}
			for name := range s.legs {
				if len(s.controllers(name)) != 1 {
					t.Errorf("the controllers of %s are %v", name, s.controllers(name))
				}
			}

			headers := map[string]mirror.Header{}
			for name := range s.legs {
				part, err := mirror.ParseHeader(s.headerOf(name).Mirror)
				must(t, err)
				headers[name] = part
			}
			s.change(func(r mirror.Record) mirror.Record {
				next, err := mirror.Recover(r, headers, s.clock.Now())
				must(t, err)
				return next
			})
			must(t, s.unstageIn(ctx))
			s.wantGone()
			if r := s.record(); !mirror.Whole(r) || r.Holder != "" {
				t.Errorf("recovered, the record is %s", mirror.String(r))
			}
		})
	}
}

// A person recovers the record while this node has the volume staged by the record of before the restore: it lets go of
// it, although no header is one that the record knows.
func TestMirroredVolumeIsLeftToARecovery(t *testing.T) {
	s := setUpMirror(t)
	backup := s.record()
	must(t, s.stage(mountCapability("ext4")))
	s.change(func(mirror.Record) mirror.Record { return backup })
	before := s.headerOf("pvc-1-r1")
	s.change(mirror.Doubt)
	must(t, s.unstage())
	s.wantGone()
	if !s.processes.wasKilled() {
		t.Error("its users were not killed")
	}
	if after := s.headerOf("pvc-1-r1"); !after.Is(before.Record) {
		t.Errorf("the header is %+v", after)
	}
	if r := s.record(); !r.Recovering || r.Holder != "" {
		t.Errorf("the record is %s", mirror.String(r))
	}
}

// A target that is away holds up writes for the grace, and then its replica is recorded as out before they go on. It
// returns under a fresh identity, and gets what it has missed.
func TestMirroredVolumeLosesAReplicaAndTakesItBack(t *testing.T) {
	const lost = "pvc-1-r2"
	s := setUpMirror(t)
	must(t, s.stage(mountCapability("ext4")))
	former := s.legs[lost].identity
	s.hang(lost)
	s.outAfterTheGrace(lost)
	s.Eventually(func() []string { return s.controllers(lost) }).Should(BeEmpty())
	s.Eventually(s.kernel.Mapped).ShouldNot(ContainElement("weft-leg-" + s.legs[lost].uuid))
	if m, _ := mirror.Get(s.record(), lost); m.Identity != former || m.LastInSyncEpoch == 0 {
		t.Errorf("it is recorded as %+v", m)
	}
	s.Expect(s.service.MissingReplicas()).To(HaveKeyWithValue(vol, ContainSubstring("replica "+lost+" is Out since")))
	s.Expect(s.health()).To(ContainSubstring("replica " + lost + " is Out since"))

	s.serveLeg(lost, true)
	s.admit(lost, false)
	s.Eventually(s.stateOf(lost)).Should(Equal(v1alpha1.MemberInSync))
	if m, _ := mirror.Get(s.record(), lost); m.Identity != s.legs[lost].identity {
		t.Errorf("it returned as %+v", m)
	}
	s.Expect(s.headerOf(lost).State).To(Equal(header.Formatted))
	must(t, s.unstage())
	s.wantGone()
	s.wantEqualLegs()
}

// health of the volume, in words.
func (s *mirrorSuite) health() string {
	s.Helper()
	answer, err := s.NodeGetVolumeHealth(s.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: vol, StagingTargetPath: s.path("staging")})
	must(s, err)
	return answer.String()
}

// The last replica in sync is never given up: its writes wait.
func TestMirroredVolumeKeepsItsLastReplica(t *testing.T) {
	s := setUpMirror(t)
	must(t, s.stage(mountCapability("ext4")))
	s.hang("pvc-1-r2")
	s.hang("pvc-1-r1")
	s.Eventually(func() string {
		s.clock.Step(grace)
		return s.health()
	}).Should(ContainSubstring("the last replica in sync does not answer"))
	s.Expect(mirror.Whole(s.record())).To(BeTrue())
	for name := range s.legs {
		s.serveLeg(name, true)
		for _, controller := range s.controllers(name) {
			must(t, s.kernel.SetState(controller, "live"))
		}
	}
	must(t, s.unstage())
	s.wantGone()
}

// A node plugin that was restarted keeps what it finds.
func TestMirroredVolumeIsKeptAfterARestart(t *testing.T) {
	const lost = "pvc-1-r1"
	s := setUpMirror(t)
	must(t, s.stage(mountCapability("ext4")))
	s.service.LeaveMirrors()
	again := s.restarted()
	s.keepWith(again)
	s.hang(lost)
	s.outAfterTheGrace(lost)
	_, err := again.NodeUnstageVolume(t.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: vol, StagingTargetPath: s.path("staging")})
	must(t, err)
	s.wantGone()
}

// A node that does not hold the mirror any more kills who uses it, and takes it down.
func TestMirroredVolumeIsLeft(t *testing.T) {
	s := setUpMirror(t)
	must(t, s.stage(mountCapability("ext4")))
	s.hang("pvc-1-r1")
	s.hang("pvc-1-r2")
	s.change(mirror.Begin)
	must(t, s.unstage())
	s.Expect(s.processes.wasKilled()).To(BeTrue())
	s.wantGone()
	if r := s.record(); !r.Dirty {
		t.Errorf("a mirror that was not stopped is %s", mirror.String(r))
	}
}

// A stage begins without a replica that cannot be reached within the grace.
func TestMirroredVolumeIsStagedWithoutAReplica(t *testing.T) {
	const away = "pvc-1-r2"
	s := setUpMirror(t)
	s.serveLeg(away, false)
	done := make(chan error, 1)
	go func() { done <- s.stage(mountCapability("ext4")) }()
	s.Eventually(func() bool {
		s.clock.Step(grace)
		select {
		case err := <-done:
			must(t, err)
			return true
		default:
			return false
		}
	}).Should(BeTrue())
	s.Expect(s.stateOf(away)()).To(Equal(v1alpha1.MemberOut))
	s.serveLeg(away, true)
	s.admit(away, true)
	s.Eventually(s.stateOf(away)).Should(Equal(v1alpha1.MemberInSync))
	s.Expect(s.headerOf(away).State).To(Equal(header.Formatted))
	must(t, s.unstage())
	s.wantGone()
	s.wantEqualLegs()
}

// What was written to a replica before is not formatted.
func TestMirroredVolumeThatIsNotBlankIsRefused(t *testing.T) {
	s := setUpMirror(t)
	editReplica(s, s.api, "pvc-1-r2", func(r *v1alpha1.NvmfReplica) { r.Status.Written = true })
	want(t, s.stage(mountCapability("ext4")), codes.FailedPrecondition, "pvc-1-r2 was written to, but its volume has no header")
	s.wantGone()
	s.Expect(s.headerOf("pvc-1-r2").None()).To(BeTrue())
}

func TestMirroredVolumeIsExpanded(t *testing.T) {
	s := setUpMirror(t)
	must(t, s.stage(mountCapability("ext4")))
	const larger = 2 * size
	expand := func() error {
		_, err := s.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{
			VolumeId: vol, VolumePath: s.path("staging"), CapacityRange: &csi.CapacityRange{RequiredBytes: larger},
		})
		return err
	}
	for _, l := range s.legs {
		s.serveTo(l, larger, l.identity)
	}
	must(t, expand())
	a, err := s.kernel.Mirrors().Of(volumeUUID)
	must(t, err)
	s.Expect(a.DataBytes).To(BeEquivalentTo(larger + v1alpha1.TrailerBytes))
	must(t, expand())
	s.change(func(r mirror.Record) mirror.Record {
		r.Epoch++
		r.Members[1].State = v1alpha1.MemberFilling
		return r
	})
	_, err = s.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{
		VolumeId: vol, VolumePath: s.path("staging"), CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * larger},
	})
	want(t, err, codes.Unavailable, "not all replicas of the volume are in sync")
}
