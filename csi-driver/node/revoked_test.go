// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"testing"

	"google.golang.org/grpc/codes"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
)

// silentAPI does not answer.
type silentAPI struct{ client.Reader }

func (silentAPI) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return errors.New("connection refused")
}

// onlyVolume can be read, and no other object.
type onlyVolume struct {
	client.Reader
	name string
}

func (o onlyVolume) Get(ctx context.Context, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
	if key.Name != o.name {
		return errors.New("connection refused")
	}
	return o.Reader.Get(ctx, key, into, options...)
}

// apiWith volumes.
func apiWith(t testing.TB, volumes ...client.Object) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	must(t, v1alpha1.AddToScheme(scheme))
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(volumes...).Build()
}

// volumeOf hosts, as the API server has it.
func volumeOf(uuid string, hosts ...string) *v1alpha1.NvmfVolume {
	v := &v1alpha1.NvmfVolume{ObjectMeta: metav1.ObjectMeta{Name: vol}}
	v.Spec.UUID = uuid
	for _, h := range hosts {
		v.Spec.Attachments = append(v.Spec.Attachments, v1alpha1.VolumeHost{NQN: h})
	}
	return v
}

// going is an object that is being deleted.
func going(v *v1alpha1.NvmfVolume) *v1alpha1.NvmfVolume {
	now := metav1.Now()
	v.DeletionTimestamp, v.Finalizers = &now, []string{"weft.storage/controller"}
	return v
}

// withoutCRD is an API server from which somebody has removed the CRDs: it knows no such path.
type withoutCRD struct{ client.Reader }

func (withoutCRD) Get(_ context.Context, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	resource := schema.GroupResource{Group: v1alpha1.GroupVersion.Group, Resource: "nvmfvolumes"}
	return apierrors.NewGenericServerResponse(http.StatusNotFound, "GET", resource, key.Name, "404 page not found", 0, true)
}

const anotherHost = v1alpha1.HostNQNPrefix + "22222222-2222-4333-8444-555555555555"

// givingUp counts how often connections were given up.
type givingUp struct {
	node.Initiator
	times int
}

func (g *givingUp) GiveUp(ctx context.Context, nqn string, those func(fabrics.Controller) bool) error {
	g.times++
	return g.Initiator.GiveUp(ctx, nqn, those)
}

// A volume that is not attached to this node any more, and whose target is away, is unstaged all the same: what was not
// written is lost, as after a power failure.
func TestUnstageAfterTheAttachmentWasRevoked(t *testing.T) {
	for name, api := range map[string]func(*suite) client.Reader{
		"attached to none":    func(s *suite) client.Reader { return apiWith(s, volumeOf(volumeUUID)) },
		"attached to another": func(s *suite) client.Reader { return apiWith(s, volumeOf(volumeUUID, anotherHost)) },
		"the volume is gone":  func(s *suite) client.Reader { return apiWith(s) },
		"only its replica is left": func(s *suite) client.Reader {
			left := s.context.NvmfReplica(vol)
			left.Spec.Hosts = nil
			return apiWith(s, left)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := setUp(t)
			s.listen(firstPortal, secondPortal)
			must(t, s.stage(mountCapability("ext4")))
			for _, c := range []string{"nvme0", "nvme1"} {
				must(t, s.kernel.SetState(c, "connecting"))
			}
			s.service.Volumes = api(s)
			must(t, s.unstage())
			s.wantGone()
		})
	}
}

// An NvmfVolume that was lost in use does not end what its replica still admits.
func TestALostVolumeIsNotRevokedWhileItsReplicaAdmitsTheHost(t *testing.T) {
	s := setUp(t)
	must(t, s.stage(mountCapability("ext4")))
	must(t, s.kernel.SetState("nvme0", "connecting"))
	s.service.Volumes = apiWith(t, s.context.NvmfReplica(vol))
	must(t, s.service.GiveUpRevoked(t.Context()))
	if left := s.kernel.Controllers(); len(left) != 1 {
		t.Errorf("controllers %v are left", left)
	}
}

// An unmount that hangs already ends, too.
func TestUnmountThatHangsEndsWhenTheAttachmentIsRevoked(t *testing.T) {
	s := setUp(t)
	must(t, s.stage(mountCapability("ext4")))
	must(t, s.kernel.SetState("nvme0", "connecting"))
	s.service.Volumes = apiWith(t, volumeOf(volumeUUID, s.context.HostNQN()))
	ended := make(chan error, 1)
	go func() { ended <- s.unstage() }()
	<-s.kernel.Hanging
	must(t, s.service.GiveUpRevoked(t.Context()))
	if left := s.kernel.Controllers(); len(left) != 1 || len(ended) != 0 {
		t.Fatalf("controllers %v are left of a volume that is attached", left)
	}
	s.service.Volumes = apiWith(t, volumeOf(volumeUUID))
	must(t, s.service.GiveUpRevoked(t.Context()))
	must(t, <-ended)
	s.wantGone()
}

// What could still be written is not given up: the unmount waits for the target.
func TestConnectionsThatMayBeOfUseAreKept(t *testing.T) {
	for name, volumes := range map[string]func(*suite) client.Reader{
		"the target is away": func(s *suite) client.Reader {
			return apiWith(s, volumeOf(volumeUUID, anotherHost, s.context.HostNQN()))
		},
		"the volume is going": func(s *suite) client.Reader {
			return apiWith(s, going(volumeOf(volumeUUID, s.context.HostNQN())))
		},
		"the API server does not answer": func(*suite) client.Reader { return silentAPI{} },
		"the CRD is gone":                func(*suite) client.Reader { return withoutCRD{} },
		"the object is another's":        func(s *suite) client.Reader { return apiWith(s, volumeOf("ffffffff-0e0f-4001-8203-040506070809")) },
	} {
		t.Run(name, func(t *testing.T) {
			s := setUp(t)
			must(t, s.stage(mountCapability("ext4")))
			must(t, s.kernel.SetState("nvme0", "connecting"))
			s.service.Volumes = volumes(s)
			ended := make(chan error, 1)
			go func() { ended <- s.unstage() }()
			<-s.kernel.Hanging
			must(t, s.service.GiveUpRevoked(t.Context()))
			if left := s.kernel.Controllers(); len(left) != 1 || len(ended) != 0 {
				t.Fatalf("controllers %v are left", left)
			}
			must(t, s.kernel.SetState("nvme0", "live"))
			must(t, <-ended)
			s.wantGone()
		})
	}
}

// overtaken is an API server whose first answer is overtaken by what happens next.
type overtaken struct {
	client.Reader
	next func()
}

func (o *overtaken) Get(ctx context.Context, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
	err := o.Reader.Get(ctx, key, into, options...)
	if next := o.next; next != nil {
		o.next = nil
		next()
	}
	return err
}

// Those who share a volume keep its subsystem: the next attachment's connections are in the one that is given up, and
// not in the list of hosts that was read before it began.
func TestTheNextAttachmentIsNotGivenUpWithTheLast(t *testing.T) {
	s := setUp(t)
	must(t, s.stage(blockCapability()))
	must(t, s.kernel.SetState("nvme0", "connecting"))
	api := &overtaken{Reader: apiWith(t, volumeOf(volumeUUID, anotherHost)), next: func() {
		s.context.Attachment = "b2b2b2b2-2222-4333-8444-555555555555"
		s.serve(size)
		s.service.Volumes = s.objects
		must(t, s.stage(blockCapability()))
	}}
	s.service.Volumes = api
	must(t, s.service.GiveUpRevoked(t.Context()))
	s.wantPaths(1, "")
	if made := s.kernel.Creations(); api.next != nil || len(made) != 2 {
		t.Errorf("created %q", made)
	}
}

// As long as a path is live, what is left can be written, and is.
func TestLivePathsAreNotGivenUp(t *testing.T) {
	s := setUp(t)
	s.listen(firstPortal, secondPortal)
	must(t, s.stage(mountCapability("ext4")))
	must(t, s.kernel.SetState("nvme0", "connecting"))
	given := &givingUp{Initiator: s.service.Initiator}
	s.service.Initiator, s.service.Volumes = given, apiWith(t, volumeOf(volumeUUID))
	must(t, s.service.GiveUpRevoked(t.Context()))
	must(t, s.unstage())
	s.wantGone()
	if given.times != 0 {
		t.Error("the connections were given up before the volume was unmounted")
	}
}

// While its controllers are not gone, the volume stays mounted: an unmount would wait for them.
func TestRevokedVolumeStaysMountedUntilItsControllersAreGone(t *testing.T) {
	s := setUp(t)
	must(t, s.stage(mountCapability("ext4")))
	must(t, s.kernel.SetState("nvme0", "connecting"))
	s.service.Volumes = apiWith(t, volumeOf(volumeUUID))
	release := s.kernel.Stick("nvme0")
	// The call returns, so that other volumes get their turn.
	if err := s.service.GiveUpRevoked(t.Context()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	s.wantMounts("staging ext4 rw")
	release()
	must(t, s.unstage())
	s.wantGone()
}

// A device that was given to a pod is not unmounted, and not flushed: it is disconnected as always.
func TestUnstageOfARevokedBlockVolume(t *testing.T) {
	s := setUp(t)
	must(t, s.stage(blockCapability()))
	must(t, s.publish(blockCapability(), "pod", false))
	must(t, s.kernel.SetState("nvme0", "connecting"))
	s.service.Volumes = apiWith(t, volumeOf(volumeUUID))
	must(t, s.service.GiveUpRevoked(t.Context()))
	if got := s.health(); got != "INACCESSIBLE PathDown; INACCESSIBLE DeviceGone" {
		t.Errorf("health is %s", got)
	}
	want(t, s.publish(blockCapability(), "pod2", false), codes.FailedPrecondition, "has ended")
	must(t, s.unpublish("pod"))
	must(t, s.unstage())
	s.wantGone()
	if _, err := os.Stat(s.path("pod")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the pod's path: %v", err)
	}
}
