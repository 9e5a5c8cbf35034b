// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node/nodetest"
	"github.com/weft-storage/weft/csi-driver/publishcontext"
)

// attachedTo is an attachment as the node finds it in the volume's object.
type attachedTo struct {
	Attachment, NodeUID, NQN string
	Blank, AllowFormat       bool
}

func publish(t *testing.T, s *Service, volume, nodeID string) attachedTo {
	t.Helper()
	return publishAs(t, s, publishRequest(volume, nodeID))
}

func publishAs(t *testing.T, s *Service, req *csi.ControllerPublishVolumeRequest) attachedTo {
	t.Helper()
	resp, err := s.ControllerPublishVolume(within(t, enough), req)
	if err != nil {
		t.Fatal(err)
	}
	c, err := publishcontext.Decode(resp.PublishContext)
	if err != nil {
		t.Fatal(err)
	}
	vol, rep, host := volume(t, req.VolumeId), replica(t, req.VolumeId), v1alpha1.HostNQN(c.Attachment)
	listed, reached := vol.Listed(host), rep.HostOf(c.Attachment)
	if listed == nil || reached == nil || rep.Admitted(reached.NQN) == nil || listed.Node != req.NodeId || listed.NodeUID != uidOf(t, req.NodeId) || len(rep.Paths()) == 0 {
		t.Fatalf("%s is not attached to %s: %+v, %+v", c.Attachment, req.NodeId, vol.Spec, rep.Status)
	}
	if c.Encrypted != (vol.Spec.Encryption != "") {
		t.Errorf("volume %s has encryption %q, and its publish context %v", vol.Name, vol.Spec.Encryption, resp.PublishContext)
	}
	return attachedTo{
		Attachment: c.Attachment, NodeUID: listed.NodeUID, NQN: rep.CurrentSubsystem(), Blank: rep.Admitted(reached.NQN).Blank,
		AllowFormat: vol.Annotations[v1alpha1.AllowFormatAnnotation] == vol.FormatPermission(host),
	}
}

func unpublish(t *testing.T, s *Service, volume, nodeID string) {
	t.Helper()
	if _, err := s.ControllerUnpublishVolume(within(t, enough), &csi.ControllerUnpublishVolumeRequest{VolumeId: volume, NodeId: nodeID}); err != nil {
		t.Fatal(err)
	}
}

func uidOf(t *testing.T, node string) string {
	t.Helper()
	var n corev1.Node
	if err := api.Get(t.Context(), types.NamespacedName{Name: node}, &n); err != nil {
		t.Fatal(err)
	}
	return string(n.UID)
}

func annotate(t *testing.T, name, key, value string) {
	t.Helper()
	vol := volume(t, name)
	patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, key, value))
	if err := api.Patch(t.Context(), vol, patch); err != nil {
		t.Fatal(err)
	}
}

func TestPublishAnswersWhatTheNodeMustKnow(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	nodeID := newHost(t, "host")
	id := newVolume(t, s, st, "v")
	want := attachedTo{NodeUID: uidOf(t, nodeID), Blank: true}
	for range 2 { // The second time, the host is admitted already.
		got := publish(t, s, id, nodeID)
		hosts := volume(t, id).Spec.Attachments
		if len(hosts) != 1 || hosts[0].Node != nodeID || want.Attachment != "" && hosts[0].NQN != v1alpha1.HostNQN(want.Attachment) {
			t.Fatalf("hosts: %v", hosts)
		}
		want.Attachment, _ = v1alpha1.AttachmentOfHost(hosts[0].NQN)
		want.NQN = v1alpha1.SubsystemNQN(id+"-0", want.Attachment)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
}

// What a node has queued for an attachment that has ended does not reach the volume through the next.
func TestEachAttachmentIsAnIdentityOfItsOwn(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	first, second := newHost(t, "first"), newHost(t, "second")
	id := newVolume(t, s, st, "v")
	attachments, subsystems := map[string]bool{}, map[string]bool{}
	for _, node := range []string{first, second, first, first} {
		c := publish(t, s, id, node)
		if attachments[c.Attachment] || subsystems[c.NQN] || c.NQN != replica(t, id).Status.NQN {
			t.Errorf("%+v is used again, or not served: %v", c, replica(t, id).Status)
		}
		attachments[c.Attachment], subsystems[c.NQN] = true, true
		unpublish(t, s, id, node)
	}
	t.Run("shared", func(t *testing.T) {
		share := func(node string) attachedTo {
			t.Helper()
			req := publishRequest(id, node)
			req.VolumeCapability = block(csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER)
			return publishAs(t, s, req)
		}
		was, other := share(first), share(second)
		unpublish(t, s, id, first)
		is := share(first)
		if was.NQN != other.NQN || is.NQN != other.NQN || is.Attachment == was.Attachment || is.Attachment == other.Attachment {
			t.Errorf("those who share a volume keep its subsystem, each with attachments of its own: %+v, %+v, %+v", was, other, is)
		}
	})
}

func TestPublishThatComesLate(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	node, other := newHost(t, "node"), newHost(t, "other")
	id := newVolume(t, s, st, "v")
	attach := func(node string) error {
		req := publishRequest(id, node)
		req.VolumeContext = map[string]string{provisionerIdentity: "1"}
		_, err := s.ControllerPublishVolume(within(t, enough), req)
		return err
	}
	// attachSoon waits until the target has let go of whoever was taken back.
	attachSoon := func(node string) {
		t.Helper()
		NewWithT(t).Eventually(func() error { return attach(node) }).WithTimeout(enough).Should(Succeed())
	}
	end := func(request *storagev1.VolumeAttachment) {
		t.Helper()
		request.Finalizers = nil
		if err := errors.Join(api.Update(t.Context(), request), client.IgnoreNotFound(api.Delete(t.Context(), request))); err != nil {
			t.Fatal(err)
		}
	}
	expectError(t, attach(node), codes.Aborted, "no VolumeAttachment requests volume "+id)

	request := askFor(t, id, node)
	request.Finalizers = []string{"test/attached"}
	if err := errors.Join(api.Update(t.Context(), request), attach(node), api.Delete(t.Context(), request)); err != nil {
		t.Fatal(err)
	}
	unpublish(t, s, id, node)
	if err := api.Get(t.Context(), client.ObjectKeyFromObject(request), request); err != nil {
		t.Fatal(err)
	}
	expectError(t, attach(node), codes.Aborted, "is being deleted")
	end(request)

	// The volume was admitted by a call that came after the detachment. Whoever needs the volume, the same node by
	// another VolumeAttachment too, takes the attachment back; until then it stays.
	for _, next := range []string{node, other} {
		request := askFor(t, id, node)
		attachSoon(node)
		was := volume(t, id).Spec.Attachments[0].NQN
		end(request)
		asked := askFor(t, id, next)
		attachSoon(next)
		if hosts := volume(t, id).Spec.Attachments; len(hosts) != 1 || hosts[0].Node != next || hosts[0].NQN == was {
			t.Errorf("hosts: %v", hosts)
		}
		end(asked)
		unpublish(t, s, id, next)
	}
	t.Run("nobody else needs it", func(t *testing.T) {
		request := askFor(t, id, node)
		attachSoon(node)
		take := func() []v1alpha1.VolumeHost {
			if err := s.takeBackAll(t.Context()); err != nil {
				t.Fatal(err)
			}
			return volume(t, id).Spec.Attachments
		}
		if hosts := take(); len(hosts) != 1 {
			t.Errorf("an attachment that is asked for was taken back: %v", hosts)
		}
		end(request)
		NewWithT(t).Eventually(take).WithTimeout(enough).Should(BeEmpty())
		// One that nobody asked Kubernetes for is not Kubernetes' to end.
		NewWithT(t).Eventually(func() string { return usersOf(t, id) }).WithTimeout(enough).Should(BeEmpty())
		publish(t, s, id, node)
		if hosts := take(); len(hosts) != 1 {
			t.Errorf("hosts: %v", hosts)
		}
	})
}

// pausing holds the first write back, as a process does that was suspended between reading and writing.
type pausing struct {
	client.Client
	once             sync.Once
	reached, resumed chan struct{}
}

func (p *pausing) Patch(ctx context.Context, o client.Object, patch client.Patch, options ...client.PatchOption) error {
	p.once.Do(func() {
		close(p.reached)
		<-p.resumed
	})
	return p.Client.Patch(ctx, o, patch, options...)
}

// A controller has read all that a publish needs, and writes when it has lost its leadership long since: the volume was
// attached and detached by another meanwhile, and its VolumeAttachment is gone.
func TestPublishThatWritesWhatItReadLongAgo(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	leader, _ := newService(t)
	seen(t, leader, st)
	node, other := newHost(t, "node"), newHost(t, "other")
	for name, meanwhile := range map[string]func(id string){
		"detached":           func(string) {},
		"attached elsewhere": func(id string) { publish(t, leader, id, other) },
	} {
		t.Run(name, func(t *testing.T) {
			id := newVolume(t, leader, st, strings.ReplaceAll(name, " ", "-"))
			request := askFor(t, id, node)
			former, _ := newService(t)
			paused := &pausing{Client: former.client, reached: make(chan struct{}), resumed: make(chan struct{})}
			former.client = paused
			late := make(chan error, 1)
			go func() {
				req := publishRequest(id, node)
				req.VolumeContext = map[string]string{provisionerIdentity: "1"}
				_, err := former.ControllerPublishVolume(within(t, enough), req)
				late <- err
			}()
			<-paused.reached
			was := publish(t, leader, id, node)
			deleteByHand(t, request)
			unpublish(t, leader, id, node)
			meanwhile(id)
			hosts := volume(t, id).Spec.Attachments
			close(paused.resumed)
			expectError(t, <-late, codes.Aborted, "no VolumeAttachment requests volume "+id)
			if diff := cmp.Diff(hosts, volume(t, id).Spec.Attachments); diff != "" {
				t.Errorf("it was attached as %+v, and now: %s", was, diff)
			}
		})
	}
}

// An attacher that lost its leadership detaches a volume that was detached, and attached to the same node again, since.
func TestUnpublishThatComesLate(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	node := newHost(t, "node")
	id := newVolume(t, s, st, "v")
	detach := func(node string) error {
		_, err := s.ControllerUnpublishVolume(within(t, enough), &csi.ControllerUnpublishVolumeRequest{VolumeId: id, NodeId: node})
		return err
	}
	was := askFor(t, id, node)
	first := publish(t, s, id, node)
	deleteByHand(t, was)
	unpublish(t, s, id, node)
	request := askFor(t, id, node)
	request.Finalizers = []string{"test/attached"}
	if err := api.Update(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	second := publish(t, s, id, node)
	for _, node := range []string{node, ""} {
		expectError(t, detach(node), codes.Aborted, "VolumeAttachment "+request.Name+" requests volume "+id)
	}
	if hosts := volume(t, id).Spec.Attachments; len(hosts) != 1 || hosts[0].NQN != v1alpha1.HostNQN(second.Attachment) || second.Attachment == first.Attachment {
		t.Errorf("hosts: %v", hosts)
	}
	deleteByHand(t, request)
	unpublish(t, s, id, node)
	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
	if hosts, err := volume(t, id).Spec.Attachments, api.Patch(t.Context(), request, patch); len(hosts) != 0 || err != nil {
		t.Errorf("hosts: %v, %v", hosts, err)
	}
}

func TestPublishTellsWhetherAVolumeMayBeFormatted(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	nodeID := newHost(t, "host")
	id := newVolume(t, s, st, "v")
	uuid := volume(t, id).Spec.UUID
	if c := publish(t, s, id, nodeID); !c.Blank || c.AllowFormat {
		t.Errorf("a new volume: %+v", c)
	}
	markWritten(t, st.nodes[0], uuid)
	unpublish(t, s, id, nodeID)
	if c := publish(t, s, id, nodeID); c.Blank || c.AllowFormat {
		t.Errorf("a written volume: %+v", c)
	}
	unpublish(t, s, id, nodeID)
	annotate(t, id, v1alpha1.AllowFormatAnnotation, "true")
	if c := publish(t, s, id, nodeID); c.AllowFormat {
		t.Error("an annotation that does not name the volume's UUID allows formatting")
	}
}

// A permission that was forgotten does not let a volume be formatted that lost its data later.
func TestPermissionToFormatIsForOneAttachment(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	nodeID := newHost(t, "host")
	other := newHost(t, "other")
	id := newVolume(t, s, st, "v")
	uuid := volume(t, id).Spec.UUID
	sharing := func(nodeID string) attachedTo {
		t.Helper()
		req := publishRequest(id, nodeID)
		req.VolumeCapability = block(csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER)
		return publishAs(t, s, req)
	}

	sharing(other)
	annotate(t, id, v1alpha1.AllowFormatAnnotation, uuid)
	if c := sharing(other); c.AllowFormat {
		t.Error("a host that was admitted before may format")
	}
	for range 2 { // The second time, the host is admitted already.
		if c := sharing(nodeID); !c.AllowFormat {
			t.Error("the host that was admitted next may not format")
		}
	}
	unpublish(t, s, id, other)
	if c := sharing(other); c.AllowFormat {
		t.Error("two hosts may format")
	}
	unpublish(t, s, id, nodeID)
	if word, left := volume(t, id).Annotations[v1alpha1.AllowFormatAnnotation]; left {
		t.Errorf("the annotation is left: %q", word)
	}
	if c := sharing(nodeID); c.AllowFormat {
		t.Error("a permission is good for two attachments")
	}

	unpublish(t, s, id, "")
	annotate(t, id, v1alpha1.AllowFormatAnnotation, uuid)
	if c := sharing(nodeID); !c.AllowFormat {
		t.Error("a new permission was not given")
	}
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"attachments":null}}`))
	if err := api.Patch(t.Context(), volume(t, id), patch); err != nil {
		t.Fatal(err)
	}
	if _, err := s.follow(t.Context(), volume(t, id)); err != nil {
		t.Fatal(err)
	}
	NewWithT(t).Eventually(func() string { return usersOf(t, id) }).WithTimeout(enough).Should(BeEmpty())
	if c := sharing(nodeID); c.AllowFormat {
		t.Error("a permission outlived an attachment that was ended by hand")
	}
}

// A copy of a volume that was never formatted can be: else nobody could ever mount it.
func TestPublishTellsWhetherACopyMayBeFormatted(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	nodeID := newHost(t, "host")
	id := newVolume(t, s, st, "v")
	uuid := volume(t, id).Spec.UUID
	for _, written := range []bool{false, true} {
		if written {
			markWritten(t, st.nodes[0], uuid)
		}
		req := createRequest(st, own(t, fmt.Sprintf("copy-%t", written)), gi)
		req.VolumeContentSource = ofVolume(id)
		made, err := s.CreateVolume(within(t, enough), req)
		if err != nil {
			t.Fatal(err)
		}
		if c := publish(t, s, made.Volume.VolumeId, nodeID); c.Blank == written {
			t.Errorf("a copy of a volume with written %t: %+v", written, c)
		}
	}
}

func TestPublishRefusesBadInput(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	nodeID := newHost(t, "host")
	id := newVolume(t, s, st, "v")
	publish(t, s, id, nodeID)
	unpublish(t, s, id, nodeID)
	known := publishRequest(id, nodeID)
	known.VolumeContext = map[string]string{"target": st.target, "transport": "TCP", provisionerIdentity: "1", "csi.storage.k8s.io/pv/name": "pv"}
	request := askFor(t, id, nodeID)
	if _, err := s.ControllerPublishVolume(within(t, enough), known); err != nil {
		t.Error(err)
	}
	deleteByHand(t, request)
	unpublish(t, s, id, nodeID)
	for name, tc := range map[string]struct {
		change func(*csi.ControllerPublishVolumeRequest)
		code   codes.Code
		says   string
	}{
		"no volume":         {func(r *csi.ControllerPublishVolumeRequest) { r.VolumeId = "" }, codes.InvalidArgument, "volume_id"},
		"unknown volume":    {func(r *csi.ControllerPublishVolumeRequest) { r.VolumeId = "unknown" }, codes.NotFound, "volume unknown not found"},
		"impossible volume": {func(r *csi.ControllerPublishVolumeRequest) { r.VolumeId = "../etc" }, codes.NotFound, "volume ../etc not found"},
		"no node":           {func(r *csi.ControllerPublishVolumeRequest) { r.NodeId = "" }, codes.InvalidArgument, "node_id"},
		"impossible node":   {func(r *csi.ControllerPublishVolumeRequest) { r.NodeId = "Worker 1" }, codes.NotFound, "not the name of a Node"},
		"unknown node":      {func(r *csi.ControllerPublishVolumeRequest) { r.NodeId = "worker-1" }, codes.NotFound, "Node worker-1 not found"},
		"another volume's attributes": {func(r *csi.ControllerPublishVolumeRequest) { r.VolumeContext = map[string]string{"target": "other"} },
			codes.InvalidArgument, "target is other, but that of volume " + id + " is " + st.target},
		"unknown attributes": {func(r *csi.ControllerPublishVolumeRequest) { r.VolumeContext = map[string]string{"size": "1Gi"} },
			codes.InvalidArgument, `"size" is unknown; supported attributes (all optional): target, transport, uuid`},
		"data of another volume of this name": {func(r *csi.ControllerPublishVolumeRequest) {
			r.VolumeContext = map[string]string{"uuid": "00000000-0000-4000-8000-000000000000"}
		}, codes.InvalidArgument, "uuid is 00000000-0000-4000-8000-000000000000, but that of volume " + id + " is "},
		"no capability": {func(r *csi.ControllerPublishVolumeRequest) { r.VolumeCapability = nil }, codes.InvalidArgument, "is required"},
		"read-only":     {func(r *csi.ControllerPublishVolumeRequest) { r.Readonly = true }, codes.InvalidArgument, "read-only"},
		"ReadWriteMany": {func(r *csi.ControllerPublishVolumeRequest) {
			r.VolumeCapability.AccessMode.Mode = csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
		}, codes.InvalidArgument, "ReadWriteMany"},
	} {
		t.Run(name, func(t *testing.T) {
			req := publishRequest(id, nodeID)
			tc.change(req)
			_, err := s.ControllerPublishVolume(within(t, enough), req)
			expectError(t, err, tc.code, tc.says)
		})
	}
	if hosts := volume(t, id).Spec.Attachments; len(hosts) != 0 {
		t.Errorf("hosts: %v", hosts)
	}
}

func TestPublishToOneNodeAtATime(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	first := newHost(t, "first")
	second := newHost(t, "second")
	id := newVolume(t, s, st, "v")
	publish(t, s, id, first)
	other := newVolume(t, s, st, "w")
	publish(t, s, other, second)
	_, err := s.ControllerPublishVolume(within(t, enough), publishRequest(id, second))
	expectError(t, err, codes.FailedPrecondition, "attached to node "+first)

	// Taken off the spec, but still connected for all that is known.
	silence(t, st.nodes[0])
	err = inVain(t, func(ctx context.Context) error {
		_, err := s.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: id, NodeId: first})
		return err
	})
	expectError(t, err, codes.Unavailable, st.nodes[0], "Detached")
	_, err = s.ControllerPublishVolume(within(t, enough), publishRequest(id, second))
	expectError(t, err, codes.FailedPrecondition, "detached, still disconnecting")
	agents[st.nodes[0]].Start(t.Context())
	unpublish(t, s, id, first)
	publish(t, s, id, second)
}

func TestPublishToANodeThatIsStuck(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	nodeID := newHost(t, "host")
	attached, id := newVolume(t, s, st, "attached"), newVolume(t, s, st, "v")
	publish(t, s, attached, nodeID)

	uid := types.UID(uidOf(t, nodeID))
	report := func() *nodetest.StuckReporter {
		return &nodetest.StuckReporter{Client: api, Node: nodeID, UID: uid, Clock: clock.RealClock{}}
	}
	r := report()
	write := func(held *nodetest.HeldUpError) {
		t.Helper()
		for _, reporter := range []*nodetest.StuckReporter{r, r, report()} { // the last is that of a process that was restarted
			if err := reporter.Write(t.Context(), held); err != nil {
				t.Fatal(err)
			}
		}
		r = report()
	}
	write(nil)
	publish(t, s, newVolume(t, s, st, "before"), nodeID)

	held := &nodetest.HeldUpError{Step: nodetest.Step{What: "connecting to a", Since: time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)}}
	write(held)
	_, err := s.ControllerPublishVolume(within(t, enough), publishRequest(id, nodeID))
	expectError(t, err, codes.Unavailable, nodeID, "WeftInitiatorStuck (ConnectStuck: connecting to a has not returned since 2026-11-22T10:00:00Z)")
	if hosts := volume(t, id).Spec.Attachments; len(hosts) != 0 {
		t.Errorf("hosts: %v", hosts)
	}
	elsewhere := newHost(t, "elsewhere")
	publish(t, s, id, elsewhere)
	unpublish(t, s, id, elsewhere)
	publish(t, s, attached, nodeID) // again, as the attacher does when it restarts

	write(nil)
	publish(t, s, id, nodeID)

	var events eventsv1.EventList
	if err := api.List(t.Context(), &events, client.InNamespace(metav1.NamespaceDefault)); err != nil {
		t.Fatal(err)
	}
	var told []string
	for _, e := range events.Items {
		if e.Regarding.UID == uid {
			told = append(told, e.Type+" "+e.Reason)
		}
	}
	slices.Sort(told)
	if diff := cmp.Diff([]string{"Normal AsExpected", "Warning ConnectStuck"}, told); diff != "" {
		t.Error(diff)
	}

	// A Node that was made anew is another machine, for all that is known.
	r = report()
	r.UID = "00000000-0000-4000-8000-000000000000"
	if err := r.Write(t.Context(), held); err == nil {
		t.Error("the condition was written to a Node with another UID")
	}
}

func TestPublishFromASilentNode(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	nodeID := newHost(t, "host")
	id := newVolume(t, s, st, "v")
	publish(t, s, id, nodeID)
	unpublish(t, s, id, nodeID)
	silence(t, st.nodes[0])
	err := inVain(t, func(ctx context.Context) error {
		_, err := s.ControllerPublishVolume(ctx, publishRequest(id, nodeID))
		return err
	})
	expectError(t, err, codes.Unavailable, id, st.nodes[0], "Exported", "has not seen the last change")
	// The status, older than the admission, lists no host; that must not be taken for a detachment.
	err = inVain(t, func(ctx context.Context) error {
		_, err := s.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: id, NodeId: nodeID})
		return err
	})
	expectError(t, err, codes.Unavailable, st.nodes[0])
	err = inVain(t, func(ctx context.Context) error {
		_, err := s.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: id, NodeId: nodeID})
		return err
	})
	expectError(t, err, codes.Unavailable, st.nodes[0])
	agents[st.nodes[0]].Start(t.Context())
	unpublish(t, s, id, nodeID)
	publish(t, s, id, nodeID)
}

// conflicting counts the writes that the API server refuses, since another came in between.
type conflicting struct {
	http.RoundTripper
	conflicts *atomic.Int64
}

func (c conflicting) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := c.RoundTripper.RoundTrip(req)
	if err == nil && resp.StatusCode == http.StatusConflict {
		c.conflicts.Add(1)
	}
	return resp, err
}

func TestPublishUnderConflicts(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	var conflicts atomic.Int64
	config := rest.CopyConfig(restConfig)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return conflicting{next, &conflicts} })
	s, _ := newServiceOn(t, config)
	seen(t, s, st)
	nodeID := newHost(t, "host")
	id := newVolume(t, s, st, "v")
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond): // which leaves the API server time for others
				annotate(t, id, "test/round", fmt.Sprint(i))
			}
		}
	})
	defer func() { close(stop); wg.Wait() }()
	for round := 0; round < 10 || conflicts.Load() < 10; round++ {
		if round == 100 {
			t.Fatalf("in %d rounds there were %d conflicts", round, conflicts.Load())
		}
		publish(t, s, id, nodeID)
		unpublish(t, s, id, nodeID)
	}
	if hosts := replica(t, id).Status.Hosts; len(hosts) != 0 {
		t.Errorf("hosts: %v", hosts)
	}
}

func TestPublishSurvivesARestart(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, kill := newService(t)
	seen(t, s, st)
	nodeID := newHost(t, "host")
	id := newVolume(t, s, st, "v")
	publish(t, s, id, nodeID)
	unpublish(t, s, id, nodeID)
	silence(t, st.nodes[0])
	err := inVain(t, func(ctx context.Context) error {
		_, err := s.ControllerPublishVolume(ctx, publishRequest(id, nodeID))
		return err
	})
	expectError(t, err, codes.Unavailable)
	kill()
	s, _ = newService(t)
	agents[st.nodes[0]].Start(t.Context())
	if c := publish(t, s, id, nodeID); !c.Blank {
		t.Errorf("got %+v", c)
	}
}

func TestUnpublish(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	nodeID := newHost(t, "host")
	id := newVolume(t, s, st, "v")
	t.Run("what is not attached", func(t *testing.T) {
		unpublish(t, s, id, nodeID)
		unpublish(t, s, id, "worker-1")
		unpublish(t, s, "unknown", nodeID)
		unpublish(t, s, "../etc", nodeID)
	})
	t.Run("without a volume", func(t *testing.T) {
		_, err := s.ControllerUnpublishVolume(within(t, enough), &csi.ControllerUnpublishVolumeRequest{NodeId: nodeID})
		expectError(t, err, codes.InvalidArgument, "volume_id")
	})
	t.Run("another node leaves the attached one alone", func(t *testing.T) {
		publish(t, s, id, nodeID)
		unpublish(t, s, id, "worker-1")
		if len(replica(t, id).Status.Hosts) != 1 {
			t.Error("the attached node was dismissed")
		}
	})
	t.Run("twice", func(t *testing.T) {
		unpublish(t, s, id, nodeID)
		unpublish(t, s, id, nodeID)
		if usersOf(t, id) != "" {
			t.Error("still admitted")
		}
	})
	t.Run("from all nodes", func(t *testing.T) {
		publish(t, s, id, nodeID)
		unpublish(t, s, id, "")
		if usersOf(t, id) != "" {
			t.Error("still admitted")
		}
	})
	t.Run("from a node that is gone", func(t *testing.T) {
		gone := newHost(t, "gone")
		publish(t, s, id, gone)
		deleteNode(t, gone)
		unpublish(t, s, id, gone)
		publish(t, s, id, nodeID)
		unpublish(t, s, id, nodeID)
	})
}

// A machine that takes over the name of another does not get the other's attachment, which may still be in use.
func TestNodeRegisteredAgain(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	node := newHost(t, "host")
	id := newVolume(t, s, st, "v")
	before := publish(t, s, id, node)
	deleteNode(t, node)
	register(t, node)
	_, err := s.ControllerPublishVolume(within(t, enough), publishRequest(id, node))
	expectError(t, err, codes.FailedPrecondition, "an earlier attachment to node "+node+", which is not detached yet")
	unpublish(t, s, id, node)
	if after := publish(t, s, id, node); after.Attachment == before.Attachment || after.NodeUID == before.NodeUID || after.NQN == before.NQN {
		t.Errorf("before %+v, after %+v", before, after)
	}
}

func TestDelete(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	nodeID := newHost(t, "host")
	removeWithin := func(ctx context.Context, id string) error {
		_, err := s.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id})
		return err
	}
	remove := func(id string) error { return removeWithin(within(t, enough), id) }
	removeInVain := func(id string) error {
		return inVain(t, func(ctx context.Context) error { return removeWithin(ctx, id) })
	}
	expectError(t, remove(""), codes.InvalidArgument, "volume_id")
	for _, id := range []string{"unknown", "../etc", strings.Repeat("x", 300)} {
		if err := remove(id); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}

	id := newVolume(t, s, st, "v")
	uuid := volume(t, id).Spec.UUID
	publish(t, s, id, nodeID)
	expectError(t, remove(id), codes.FailedPrecondition, "attached to node "+nodeID)
	if volume(t, id).DeletionTimestamp != nil {
		t.Error("an attached volume is being deleted")
	}
	unpublish(t, s, id, nodeID)

	silence(t, st.nodes[0])
	expectError(t, removeInVain(id), codes.Unavailable, id, st.nodes[0], "Deleted")
	if v := volume(t, id); v == nil || v.DeletionTimestamp == nil {
		t.Errorf("the object is not being deleted: %+v", v)
	}
	err := inVain(t, func(ctx context.Context) error {
		_, err := s.ControllerPublishVolume(ctx, publishRequest(id, nodeID))
		return err
	})
	expectError(t, err, codes.FailedPrecondition, "being deleted")
	expectError(t, removeInVain(id), codes.Unavailable, st.nodes[0])
	agents[st.nodes[0]].Start(t.Context())
	for range 2 {
		if err := remove(id); err != nil {
			t.Error(err)
		}
	}
	if volume(t, id) != nil {
		t.Error("answered before the object was gone")
	}
	if volumes, _ := holds(t, st.nodes[0]); slices.Contains(volumes, uuid) {
		t.Error("the engine still has the volume")
	}
}

func TestDeleteMakesRoom(t *testing.T) {
	st := newStorage(t, 1, gi+overhead)
	s, _ := newService(t)
	seen(t, s, st)
	for range 3 {
		id := newVolume(t, s, st, "v")
		_, err := s.CreateVolume(within(t, enough), createRequest(st, own(t, "w"), gi))
		expectError(t, err, codes.ResourceExhausted)
		if _, err := s.DeleteVolume(within(t, enough), &csi.DeleteVolumeRequest{VolumeId: id}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSharing(t *testing.T) {
	const (
		one   = csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
		write = csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
		read  = csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	)
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	first := newHost(t, "first")
	second := newHost(t, "second")
	for _, tc := range []struct {
		name                     string
		theirs, ours             csi.VolumeCapability_AccessMode_Mode
		want, wantOnTheSameAgain codes.Code
	}{
		{"writers", write, write, codes.OK, codes.OK},
		{"readers", read, read, codes.OK, codes.OK},
		{"one", one, one, codes.FailedPrecondition, codes.OK},
		{"a writer among readers", read, write, codes.FailedPrecondition, codes.AlreadyExists},
		{"one among writers", write, one, codes.FailedPrecondition, codes.AlreadyExists},
		{"a writer beside one", one, write, codes.FailedPrecondition, codes.AlreadyExists},
	} {
		id := newVolume(t, s, st, strings.ReplaceAll(tc.name, " ", "-"))
		to := func(nodeID string, mode csi.VolumeCapability_AccessMode_Mode) error {
			req := publishRequest(id, nodeID)
			req.VolumeCapability = block(mode)
			_, err := s.ControllerPublishVolume(within(t, enough), req)
			return err
		}
		if err := to(first, tc.theirs); err != nil {
			t.Fatal(err)
		}
		if err := to(second, tc.ours); status.Code(err) != tc.want {
			t.Errorf("%s: %v", tc.name, err)
		}
		if err := to(first, tc.ours); status.Code(err) != tc.wantOnTheSameAgain {
			t.Errorf("%s, on the same node: %v", tc.name, err)
		}
		unpublish(t, s, id, first)
		unpublish(t, s, id, second)
	}
}

// A host that is being dismissed may still write, in a way that is not known any more.
func TestNobodySharesWithAHostThatIsLeaving(t *testing.T) {
	vol := &replicatedVolume{NvmfVolume: &v1alpha1.NvmfVolume{}, replicas: []*v1alpha1.NvmfReplica{
		{Status: v1alpha1.NvmfReplicaStatus{Hosts: []v1alpha1.AdmittedHost{{NQN: "b"}}}},
	}}
	for _, how := range []v1alpha1.HostAccess{v1alpha1.AccessExclusive, v1alpha1.AccessSharedRead, v1alpha1.AccessSharedWrite} {
		if err := (attachment{node: "n", access: how}).allowed(vol); err == nil {
			t.Errorf("%s is allowed", how)
		}
	}
}

// planAttachments has a node's plan for SPDK say how many attachments its memory is for.
func planAttachments(t *testing.T, node string, expected int32) {
	t.Helper()
	setPlan(t, node, func(p *v1alpha1.Plan) { p.SPDK.Attachments = &v1alpha1.Attachments{Expected: expected, IOQueues: 2} })
}

// An attachment for which the target has no memory is refused, with the field to change, until there is a place.
func TestPublishCountsAttachments(t *testing.T) {
	st := newStorage(t, 1, 100*gi)
	s, _ := newService(t)
	planSPDK(t, st.nodes[0], 100)
	planAttachments(t, st.nodes[0], 1)
	seen(t, s, st)
	host := newHost(t, "host")
	ids := make([]string, 2)
	for i := range ids {
		resp, err := s.CreateVolume(within(t, enough), createRequest(st, own(t, fmt.Sprint(i)), gi))
		if err != nil {
			t.Fatal(err)
		}
		ids[i] = resp.Volume.VolumeId
	}
	publish(t, s, ids[0], host)
	publish(t, s, ids[0], host) // again: it has its place
	_, err := s.ControllerPublishVolume(within(t, enough), publishRequest(ids[1], host))
	expectError(t, err, codes.ResourceExhausted, "has 1 of 1 planned attachments", "raise attachments.expected of NvmfTarget "+st.target)
	if hosts := volume(t, ids[1]).Spec.Attachments; len(hosts) > 0 {
		t.Errorf("refused, and listed all the same: %+v", hosts)
	}
	unpublishRequest := &csi.ControllerUnpublishVolumeRequest{VolumeId: ids[0], NodeId: host}
	if _, err := s.ControllerUnpublishVolume(within(t, enough), unpublishRequest); err != nil {
		t.Fatal(err)
	}
	publish(t, s, ids[1], host)
}

// Two controllers that attach at the same moment count alike; the node's agent admits no more than there are places.
func TestPublishRaceExceedsNoPlaces(t *testing.T) {
	const volumes, places = 8, 3
	st := newStorage(t, 1, 100*gi)
	one, _ := newService(t)
	other, _ := newService(t)
	planSPDK(t, st.nodes[0], 100)
	planAttachments(t, st.nodes[0], places)
	seen(t, one, st)
	seen(t, other, st)
	host := newHost(t, "host")
	errs := make([]error, volumes)
	for i := range errs {
		if _, err := one.CreateVolume(within(t, enough), createRequest(st, own(t, fmt.Sprint(i)), gi)); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	for i, s := range []*Service{one, other, one, other, one, other, one, other} {
		wg.Go(func() {
			_, errs[i] = s.ControllerPublishVolume(within(t, enough), publishRequest(own(t, fmt.Sprint(i)), host))
		})
	}
	wg.Wait()
	attached, admitted := 0, 0
	for i, err := range errs {
		if err == nil {
			attached++
		} else {
			expectError(t, err, codes.ResourceExhausted, "attachments.expected of NvmfTarget "+st.target)
		}
		admitted += len(replica(t, own(t, fmt.Sprint(i))).Status.Hosts)
	}
	if attached != places || admitted != places {
		t.Errorf("%d attached and %d admitted, want %d", attached, admitted, places)
	}
}
