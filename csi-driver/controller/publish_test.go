// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node/nodetest"
	"github.com/weft-storage/weft/csi-driver/publishcontext"
)

func publish(t *testing.T, s *Service, volume, nodeID string) publishcontext.Context {
	t.Helper()
	return publishAs(t, s, publishRequest(volume, nodeID))
}

func publishAs(t *testing.T, s *Service, req *csi.ControllerPublishVolumeRequest) publishcontext.Context {
	t.Helper()
	resp, err := s.ControllerPublishVolume(within(t, enough), req)
	if err != nil {
		t.Fatal(err)
	}
	c, err := publishcontext.Decode(resp.PublishContext)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func unpublish(t *testing.T, s *Service, volume, nodeID string) {
	t.Helper()
	if _, err := s.ControllerUnpublishVolume(within(t, enough), &csi.ControllerUnpublishVolumeRequest{VolumeId: volume, NodeId: nodeID}); err != nil {
		t.Fatal(err)
	}
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
	_, nodeID := newHost(t, s, "host")
	id := newVolume(t, s, st, "v")
	vol := volume(t, id)
	want := publishcontext.Context{
		NQN: v1alpha1.SubsystemNQN(id), NGUID: strings.ReplaceAll(vol.Spec.UUID, "-", ""), SizeBytes: gi, Blank: true,
		Portals:    []v1alpha1.Portal{{Transport: v1alpha1.TransportTCP, Address: "10.0.0.1", Port: 4420}},
		Connection: v1alpha1.Connection{IOQueues: 2, QueueDepth: 128, CtrlLossTimeoutSeconds: -1},
	}
	for range 2 { // The second time, the host is admitted already.
		got := publish(t, s, id, nodeID)
		want.Attachment = volume(t, id).Generation
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	if hosts := volume(t, id).Spec.Hosts; len(hosts) != 1 || hosts[0].NQN != nodeID {
		t.Errorf("hosts: %v", hosts)
	}
	unpublish(t, s, id, nodeID)
	if again := publish(t, s, id, nodeID); again.Attachment == want.Attachment {
		t.Errorf("two attachments are both %d", again.Attachment)
	}
}

func TestPublishTellsWhetherAVolumeMayBeFormatted(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	_, nodeID := newHost(t, s, "host")
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
	_, nodeID := newHost(t, s, "host")
	_, other := newHost(t, s, "other")
	id := newVolume(t, s, st, "v")
	uuid := volume(t, id).Spec.UUID
	sharing := func(nodeID string) publishcontext.Context {
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
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"hosts":null}}`))
	if err := api.Patch(t.Context(), volume(t, id), patch); err != nil {
		t.Fatal(err)
	}
	if c := sharing(nodeID); c.AllowFormat {
		t.Error("a permission outlived an attachment that was ended by hand")
	}
}

// A copy of a volume that was never formatted can be: else nobody could ever mount it.
func TestPublishTellsWhetherACopyMayBeFormatted(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	_, nodeID := newHost(t, s, "host")
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
	_, nodeID := newHost(t, s, "host")
	id := newVolume(t, s, st, "v")
	stranger := v1alpha1.HostNQN("00000000-0000-4000-8000-000000000000")
	publish(t, s, id, nodeID)
	unpublish(t, s, id, nodeID)
	known := publishRequest(id, nodeID)
	known.VolumeContext = map[string]string{"target": st.target, "transport": "TCP", provisionerIdentity: "1", "csi.storage.k8s.io/pv/name": "pv"}
	if _, err := s.ControllerPublishVolume(within(t, enough), known); err != nil {
		t.Error(err)
	}
	unpublish(t, s, id, nodeID)
	for name, tc := range map[string]struct {
		change func(*csi.ControllerPublishVolumeRequest)
		code   codes.Code
		says   string
	}{
		"no volume":         {func(r *csi.ControllerPublishVolumeRequest) { r.VolumeId = "" }, codes.InvalidArgument, "no volume id"},
		"unknown volume":    {func(r *csi.ControllerPublishVolumeRequest) { r.VolumeId = "unknown" }, codes.NotFound, "there is no volume unknown"},
		"impossible volume": {func(r *csi.ControllerPublishVolumeRequest) { r.VolumeId = "../etc" }, codes.NotFound, "there is no volume ../etc"},
		"no node":           {func(r *csi.ControllerPublishVolumeRequest) { r.NodeId = "" }, codes.InvalidArgument, "no node id"},
		"a node's name":     {func(r *csi.ControllerPublishVolumeRequest) { r.NodeId = "worker-1" }, codes.NotFound, v1alpha1.HostNQNPrefix},
		"unknown node":      {func(r *csi.ControllerPublishVolumeRequest) { r.NodeId = stranger }, codes.NotFound, "no Node with UID 00000000"},
		"another volume's attributes": {func(r *csi.ControllerPublishVolumeRequest) { r.VolumeContext = map[string]string{"target": "other"} },
			codes.InvalidArgument, "target is other, and that of volume " + id + " is " + st.target},
		"unknown attributes": {func(r *csi.ControllerPublishVolumeRequest) { r.VolumeContext = map[string]string{"size": "1Gi"} },
			codes.InvalidArgument, `"size" is not known; known are target and transport`},
		"no capability": {func(r *csi.ControllerPublishVolumeRequest) { r.VolumeCapability = nil }, codes.InvalidArgument, "no volume capability"},
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
	if hosts := volume(t, id).Spec.Hosts; len(hosts) != 0 {
		t.Errorf("hosts: %v", hosts)
	}
}

func TestPublishToOneNodeAtATime(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	first, firstID := newHost(t, s, "first")
	_, secondID := newHost(t, s, "second")
	id := newVolume(t, s, st, "v")
	publish(t, s, id, firstID)
	other := newVolume(t, s, st, "w")
	publish(t, s, other, secondID)
	_, err := s.ControllerPublishVolume(within(t, enough), publishRequest(id, secondID))
	expectError(t, err, codes.FailedPrecondition, "attached to node "+first)

	// Taken off the spec, but still connected for all that is known.
	silence(t, st.nodes[0])
	err = inVain(t, func(ctx context.Context) error {
		_, err := s.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: id, NodeId: firstID})
		return err
	})
	expectError(t, err, codes.Unavailable, st.nodes[0], "Detached")
	_, err = s.ControllerPublishVolume(within(t, enough), publishRequest(id, secondID))
	expectError(t, err, codes.FailedPrecondition, "attached to node "+first)
	agents[st.nodes[0]].Start(t.Context())
	unpublish(t, s, id, firstID)
	publish(t, s, id, secondID)
}

func TestPublishToANodeThatIsStuck(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	name, nodeID := newHost(t, s, "host")
	attached, id := newVolume(t, s, st, "attached"), newVolume(t, s, st, "v")
	publish(t, s, attached, nodeID)

	uuid, ok := v1alpha1.UUIDOfHost(nodeID)
	if !ok {
		t.Fatalf("node id %s", nodeID)
	}
	uid := types.UID(uuid)
	report := func() *nodetest.StuckReport {
		return &nodetest.StuckReport{Client: api, Node: name, UID: uid, Clock: clock.RealClock{}}
	}
	r := report()
	expectStuck := func(want bool) {
		t.Helper()
		for _, reporter := range []*nodetest.StuckReport{r, report()} { // the second is that of a process that was restarted
			if was, err := reporter.Stuck(t.Context()); err != nil || was != want {
				t.Errorf("the Node says stuck %t, %v", was, err)
			}
		}
	}
	write := func(what *nodetest.StuckError) {
		t.Helper()
		for range 2 {
			if err := r.Write(t.Context(), what); err != nil {
				t.Fatal(err)
			}
		}
		expectStuck(what != nil)
	}
	expectStuck(false)
	write(nil)
	publish(t, s, newVolume(t, s, st, "before"), nodeID)

	write(&nodetest.StuckError{Reason: v1alpha1.ReasonControllerStuck, Message: "nvme3 is being deleted"})
	_, err := s.ControllerPublishVolume(within(t, enough), publishRequest(id, nodeID))
	expectError(t, err, codes.Unavailable, name, "WeftInitiatorStuck (ControllerStuck: nvme3 is being deleted)")
	if hosts := volume(t, id).Spec.Hosts; len(hosts) != 0 {
		t.Errorf("hosts: %v", hosts)
	}
	_, elsewhere := newHost(t, s, "elsewhere")
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
	if diff := cmp.Diff([]string{"Normal AsExpected", "Warning ControllerStuck"}, told); diff != "" {
		t.Error(diff)
	}

	// A Node that was made anew is another machine, for all that is known.
	r = report()
	r.UID = "00000000-0000-4000-8000-000000000000"
	if err := r.Write(t.Context(), &nodetest.StuckError{Reason: v1alpha1.ReasonControllerStuck, Message: "nvme3 is being deleted"}); err == nil {
		t.Error("the condition was written to a Node with another UID")
	}
}

func TestPublishFromASilentNode(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	_, nodeID := newHost(t, s, "host")
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

func TestPublishUnderConflicts(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	_, nodeID := newHost(t, s, "host")
	id := newVolume(t, s, st, "v")
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				annotate(t, id, "test/round", fmt.Sprint(i))
			}
		}
	})
	for range 10 {
		publish(t, s, id, nodeID)
		unpublish(t, s, id, nodeID)
	}
	close(stop)
	wg.Wait()
	if hosts := volume(t, id).Status.Hosts; len(hosts) != 0 {
		t.Errorf("hosts: %v", hosts)
	}
}

func TestPublishSurvivesARestart(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, kill := newService(t)
	seen(t, s, st)
	_, nodeID := newHost(t, s, "host")
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
	_, nodeID := newHost(t, s, "host")
	id := newVolume(t, s, st, "v")
	t.Run("what is not attached", func(t *testing.T) {
		unpublish(t, s, id, nodeID)
		unpublish(t, s, id, "worker-1")
		unpublish(t, s, "unknown", nodeID)
		unpublish(t, s, "../etc", nodeID)
	})
	t.Run("without a volume", func(t *testing.T) {
		_, err := s.ControllerUnpublishVolume(within(t, enough), &csi.ControllerUnpublishVolumeRequest{NodeId: nodeID})
		expectError(t, err, codes.InvalidArgument, "no volume id")
	})
	t.Run("another node leaves the attached one alone", func(t *testing.T) {
		publish(t, s, id, nodeID)
		unpublish(t, s, id, v1alpha1.HostNQN("00000000-0000-4000-8000-000000000000"))
		if len(volume(t, id).Status.Hosts) != 1 {
			t.Error("the attached node was dismissed")
		}
	})
	t.Run("twice", func(t *testing.T) {
		unpublish(t, s, id, nodeID)
		unpublish(t, s, id, nodeID)
		if len(admitted(volume(t, id))) != 0 {
			t.Error("still admitted")
		}
	})
	t.Run("from all nodes", func(t *testing.T) {
		publish(t, s, id, nodeID)
		unpublish(t, s, id, "")
		if len(admitted(volume(t, id))) != 0 {
			t.Error("still admitted")
		}
	})
	// Without a CSINode, csi-attacher takes the node id that it wrote into the VolumeAttachment.
	t.Run("from a node that is gone", func(t *testing.T) {
		name, goneID := newHost(t, s, "gone")
		publish(t, s, id, goneID)
		deleteNode(t, name)
		unpublish(t, s, id, goneID)
		publish(t, s, id, nodeID)
		unpublish(t, s, id, nodeID)
	})
}

// noNodes fails to list Nodes.
type noNodes struct{ client.Reader }

func (n noNodes) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if _, ok := list.(*metav1.PartialObjectMetadataList); ok {
		return apierrors.NewInternalError(errors.New("etcd"))
	}
	return n.Reader.List(ctx, list, opts...)
}

// csi-attacher takes the node id from CSINode: once a Node has registered anew, nobody names its old id.
func TestUnpublishFromANodeThatRegisteredAnew(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	name, oldID := newHost(t, s, "host")
	_, elsewhere := newHost(t, s, "elsewhere")
	id := newVolume(t, s, st, "v")
	publish(t, s, id, oldID)
	deleteNode(t, name)
	newID := register(t, s, name)

	s.live = noNodes{s.live}
	_, err := s.ControllerUnpublishVolume(within(t, enough), &csi.ControllerUnpublishVolumeRequest{VolumeId: id, NodeId: newID})
	expectError(t, err, codes.Unavailable, "etcd")
	s.live = s.live.(noNodes).Reader
	if hosts := volume(t, id).Spec.Hosts; len(hosts) != 1 {
		t.Errorf("dismissed without knowing that the Node is gone: %v", hosts)
	}

	silence(t, st.nodes[0])
	for range 2 { // The second time, the host is off the spec, and connected still for all that is known.
		err := inVain(t, func(ctx context.Context) error {
			_, err := s.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: id, NodeId: newID})
			return err
		})
		expectError(t, err, codes.Unavailable, st.nodes[0], "Detached")
	}
	agents[st.nodes[0]].Start(t.Context())
	unpublish(t, s, id, newID)
	if hosts := admitted(volume(t, id)); len(hosts) != 0 {
		t.Errorf("admitted: %v", hosts)
	}
	publish(t, s, id, elsewhere)
	unpublish(t, s, id, elsewhere)
	if _, err := s.DeleteVolume(within(t, enough), &csi.DeleteVolumeRequest{VolumeId: id}); err != nil {
		t.Error(err)
	}
}

func TestUnpublishOfASharedVolumeWhenANodeRegisteredAnew(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	name, oldID := newHost(t, s, "host")
	_, staying := newHost(t, s, "staying")
	id := newVolume(t, s, st, "v")
	share := func(nodeIDs ...string) {
		t.Helper()
		for _, nodeID := range nodeIDs {
			req := publishRequest(id, nodeID)
			req.VolumeCapability = block(csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER)
			publishAs(t, s, req)
		}
	}
	expect := func(when string, want ...string) {
		t.Helper()
		slices.Sort(want)
		vol := volume(t, id)
		if diff := cmp.Diff(want, admitted(vol)); diff != "" || len(vol.Status.Hosts) != len(want) {
			t.Errorf("%s: %s, status %v", when, diff, vol.Status.Hosts)
		}
	}
	share(oldID, staying)
	deleteNode(t, name)
	newID := register(t, s, name)
	unpublish(t, s, id, newID)
	expect("the id is not listed", staying)

	// csi-attacher attaches a volume again that is not listed as attached, before it detaches it.
	share(newID)
	deleteNode(t, name)
	newerID := register(t, s, name)
	share(newerID)
	expect("both are listed", newID, newerID, staying)
	unpublish(t, s, id, newerID)
	expect("the id is listed", staying)
}

func TestDelete(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	host, nodeID := newHost(t, s, "host")
	removeWithin := func(ctx context.Context, id string) error {
		_, err := s.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id})
		return err
	}
	remove := func(id string) error { return removeWithin(within(t, enough), id) }
	removeInVain := func(id string) error {
		return inVain(t, func(ctx context.Context) error { return removeWithin(ctx, id) })
	}
	expectError(t, remove(""), codes.InvalidArgument, "no volume id")
	for _, id := range []string{"unknown", "../etc", strings.Repeat("x", 300)} {
		if err := remove(id); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}

	id := newVolume(t, s, st, "v")
	uuid := volume(t, id).Spec.UUID
	publish(t, s, id, nodeID)
	expectError(t, remove(id), codes.FailedPrecondition, "attached to node "+host)
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
	st := newStorage(t, 1, gi)
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
	_, first := newHost(t, s, "first")
	_, second := newHost(t, s, "second")
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
	h := host{nqn: "nqn.2014-08.org.nvmexpress:uuid:a"}
	vol := &v1alpha1.NvmfVolume{Status: v1alpha1.NvmfVolumeStatus{Hosts: []v1alpha1.AdmittedHost{{NQN: "b"}}}}
	for _, how := range []v1alpha1.HostAccess{v1alpha1.AccessExclusive, v1alpha1.AccessSharedRead, v1alpha1.AccessSharedWrite} {
		if got := inTheWay(vol, h, how); len(got) != 1 {
			t.Errorf("%s: %v", how, got)
		}
	}
}
