// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/test/agenttest"
	"github.com/weft-storage/weft/test/apiserver"
)

// One API server for all tests; each uses names of its own.
var (
	apiServer  *apiserver.Server
	restConfig *rest.Config
	api        client.Client
)

// agents of the storage nodes, by the node's name.
var agents = map[string]*agenttest.Memory{}

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	os.Exit(apiserver.Run(context.Background(), m, func(_ context.Context, s *apiserver.Server) error {
		apiServer, restConfig, api = s, s.Config, s.Admin
		return nil
	}))
}

// newService returns a replica of the service; stop ends it as a kill would.
func newService(t testing.TB) (s *Service, stop func()) {
	t.Helper()
	return newServiceOn(t, restConfig)
}

func newServiceOn(t testing.TB, config *rest.Config) (s *Service, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	c, err := NewCluster(config)
	if err != nil {
		t.Fatal(err)
	}
	if s, err = New(ctx, c); err != nil {
		t.Fatal(err)
	}
	s.delay, s.suffix = short, func() string { return "" }
	ended := make(chan error, 1)
	go func() { ended <- c.Start(ctx) }()
	if !toolscache.WaitForCacheSync(ctx.Done(), s.Synced) {
		t.Fatal("the cache does not fill")
	}
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	return s, stop
}

// runs numbers the tests, so that one that is run twice (-count) has names of its own each time.
var runs struct {
	sync.Mutex
	of map[testing.TB]int
	// test that runs, without its subtests.
	test string
}

// own returns a name for an object of this test.
func own(t testing.TB, name string) string {
	runs.Lock()
	defer runs.Unlock()
	if runs.of == nil {
		runs.of = map[testing.TB]int{}
	}
	if test, _, _ := strings.Cut(t.Name(), "/"); runs.test != test {
		runs.test = test
		sweep(t)
	}
	if runs.of[t] == 0 {
		runs.of[t] = len(runs.of) + 1
	}
	clean := strings.ToLower(strings.NewReplacer("/", "-", "_", "-", " ", "-").Replace(t.Name()))
	if len(clean) > 36 {
		clean = clean[:36]
	}
	return fmt.Sprintf("%s-%d-%s", strings.Trim(clean, "-"), runs.of[t], name)
}

// sweep away what earlier tests have left: a service looks after all that it finds.
func sweep(t testing.TB) {
	t.Helper()
	for list, kind := range map[client.ObjectList]client.Object{
		&v1alpha1.NvmfSnapshotList{}: &v1alpha1.NvmfSnapshot{}, &v1alpha1.NvmfReplicaList{}: &v1alpha1.NvmfReplica{},
		&v1alpha1.NvmfMirrorList{}: &v1alpha1.NvmfMirror{}, &v1alpha1.NvmfVolumeList{}: &v1alpha1.NvmfVolume{},
		&v1alpha1.NvmfNodeList{}: &v1alpha1.NvmfNode{}, &v1alpha1.NvmfTargetList{}: &v1alpha1.NvmfTarget{},
		&storagev1.VolumeAttachmentList{}: &storagev1.VolumeAttachment{}, &corev1.NodeList{}: &corev1.Node{},
	} {
		if err := api.List(t.Context(), list); err != nil {
			t.Fatal(err)
		}
		items, err := meta.ExtractList(list)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range items {
			obj := o.(client.Object)
			if len(obj.GetFinalizers()) == 0 {
				continue
			}
			unheld := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
			if err := client.IgnoreNotFound(api.Patch(t.Context(), obj, unheld)); err != nil {
				t.Fatal(err)
			}
		}
		if err := api.DeleteAllOf(t.Context(), kind); err != nil {
			t.Fatal(err)
		}
	}
}

const (
	gi = int64(1) << 30
	// header that each volume has in its pool besides its data.
	overhead = int64(v1alpha1.OverheadBytes)
)

// poolDevice is the file of each node's pool.
const poolDevice = "/var/lib/weft/pool.img"

// storage is a target with nodes, each with one pool.
type storage struct {
	target string
	nodes  []string
}

func newStorage(t testing.TB, nodes int, poolBytes int64, transports ...v1alpha1.TransportType) storage {
	t.Helper()
	return newStorageOf(t, func(*v1alpha1.NvmfTarget) {}, nodes, poolBytes, transports...)
}

// newStorageOf is newStorage for a target that is changed before it is made.
func newStorageOf(t testing.TB, change func(*v1alpha1.NvmfTarget), nodes int, poolBytes int64, transports ...v1alpha1.TransportType) storage {
	t.Helper()
	if len(transports) == 0 {
		transports = []v1alpha1.TransportType{v1alpha1.TransportTCP, v1alpha1.TransportRDMA}
	}
	st := storage{target: own(t, "target")}
	target := &v1alpha1.NvmfTarget{
		ObjectMeta: metav1.ObjectMeta{Name: st.target},
		Spec: v1alpha1.NvmfTargetSpec{
			Engine: v1alpha1.EngineNvmet, NodeSelector: metav1.LabelSelector{MatchLabels: map[string]string{"weft.storage/target": st.target}},
			Devices: v1alpha1.Devices{File: &v1alpha1.DeviceFile{Path: poolDevice, Size: resource.MustParse("1Gi")}},
		},
	}
	for i, tr := range transports {
		target.Spec.Transports = append(target.Spec.Transports, v1alpha1.Transport{Type: tr, Port: int32(4420 + i)})
	}
	change(target)
	create(t, target)
	st.addNodes(t, target, nodes, poolBytes)
	return st
}

// addNodes that serve the target as it is.
func (st *storage) addNodes(t testing.TB, target *v1alpha1.NvmfTarget, nodes int, poolBytes int64) {
	t.Helper()
	for i := range nodes {
		name := own(t, fmt.Sprintf("node-%d", i))
		st.nodes = append(st.nodes, name)
		node := &v1alpha1.NvmfNode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.NvmfNodeSpec{Target: st.target, Plan: &v1alpha1.Plan{
			Engine: v1alpha1.EngineNvmet, File: target.Spec.Devices.File,
		}}}
		for _, tr := range target.Spec.Transports {
			node.Spec.Plan.Portals = append(node.Spec.Plan.Portals, v1alpha1.PlannedPortal{
				Portal: v1alpha1.Portal{Transport: tr.Type, Address: "10.0.0.1", Port: tr.Port}, MaxIOQueues: 8, QueueDepth: 128,
			})
		}
		create(t, node)
		setNodeStatus(t, name, func(s *v1alpha1.NvmfNodeStatus) {
			s.Pools = []v1alpha1.PoolStatus{{Device: poolDevice, Ready: true, Total: resource.NewQuantity(poolBytes, resource.BinarySI)}}
			s.Conditions = []metav1.Condition{condition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonAsExpected, "")}
		})
		agents[name] = agenttest.NewMemory(restConfig, name, t.TempDir(), poolDevice, poolBytes)
		agents[name].Start(t.Context())
		t.Cleanup(func() { silence(t, name) })
	}
}

// silence a storage node's agent; what it made goes on.
func silence(t testing.TB, node string) {
	t.Helper()
	if err := agents[node].Stop(); err != nil {
		t.Error(err)
	}
}

// writtenBytes of a volume that markWritten was called for.
const writtenBytes = 1 << 20

// markWritten has a host write to a volume, by its UUID.
func markWritten(t testing.TB, node, uuid string) {
	t.Helper()
	if err := agents[node].MarkWritten(uuid, writtenBytes); err != nil {
		t.Fatal(err)
	}
}

// holds says which volumes and snapshots a node's engine has, by UUID.
func holds(t testing.TB, node string) (volumes, snapshots []string) {
	t.Helper()
	volumes, snapshots, err := agents[node].Holds(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return volumes, snapshots
}

func condition(kind string, s metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: s, Reason: reason, Message: message, LastTransitionTime: metav1.Now()}
}

// setPlan plays the operator. It tries again when another write came in between.
func setPlan(t testing.TB, name string, change func(*v1alpha1.Plan)) {
	t.Helper()
	NewWithT(t).Eventually(func() error {
		var node v1alpha1.NvmfNode
		if err := api.Get(t.Context(), types.NamespacedName{Name: name}, &node); err != nil {
			return err
		}
		change(node.Spec.Plan)
		return api.Update(t.Context(), &node)
	}).WithTimeout(enough).Should(Succeed())
}

// planSPDK has a node follow a plan for SPDK, with so many subsystems.
func planSPDK(t testing.TB, node string, subsystems int32) {
	t.Helper()
	agents[node].SPDK()
	setPlan(t, node, func(p *v1alpha1.Plan) {
		p.Engine, p.SPDK = v1alpha1.EngineSPDK, &v1alpha1.SPDKPlan{
			CoreMask: "0x2", Mode: v1alpha1.CoresStatic, Hugepages: v1alpha1.Hugepages2Mi, MemoryBytes: 1 << 30, PodMemoryBytes: 1 << 30,
			BdevIOPoolSize: 8192, SmallBuffers: 2048, LargeBuffers: 256, MaxSubsystems: subsystems, Driver: v1alpha1.DriverKernel,
			Transports: []v1alpha1.PlannedTransport{{
				Type: v1alpha1.TransportTCP, QueueDepth: 128, MaxIOQueues: 8, InCapsuleDataSize: 4096, MaxIOSize: 131072, SmallCache: 128, LargeCache: 16,
			}},
		}
	})
}

func setNodeStatus(t testing.TB, name string, change func(*v1alpha1.NvmfNodeStatus)) {
	t.Helper()
	var node v1alpha1.NvmfNode
	if err := api.Get(t.Context(), types.NamespacedName{Name: name}, &node); err != nil {
		t.Fatal(err)
	}
	change(&node.Status)
	if err := api.Status().Update(t.Context(), &node); err != nil {
		t.Fatal(err)
	}
}

func create(t testing.TB, obj client.Object) {
	t.Helper()
	if err := api.Create(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
}

// newHost makes a Kubernetes Node, and returns its name, which is its CSI node id.
func newHost(t testing.TB, name string) string {
	t.Helper()
	name = own(t, name)
	register(t, name)
	return name
}

func register(t testing.TB, name string) {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	create(t, node)
}

// askFor an attachment as Kubernetes does, by a VolumeAttachment.
func askFor(t testing.TB, volume, node string) *storagev1.VolumeAttachment {
	t.Helper()
	request := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: requestName(volume, node)},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: v1alpha1.DriverName, NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &volume}},
	}
	create(t, request)
	return request
}

func deleteNode(t testing.TB, name string) {
	t.Helper()
	if err := api.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
		t.Fatal(err)
	}
}

// seen waits until the replica's cache shows what a test has just written.
func seen(t testing.TB, s *Service, st storage) {
	t.Helper()
	NewWithT(t).Eventually(func(g Gomega) {
		var target v1alpha1.NvmfTarget
		g.Expect(s.client.Get(t.Context(), types.NamespacedName{Name: st.target}, &target)).To(Succeed())
		for _, n := range st.nodes {
			var cached, live v1alpha1.NvmfNode
			g.Expect(s.client.Get(t.Context(), types.NamespacedName{Name: n}, &cached)).To(Succeed())
			g.Expect(api.Get(t.Context(), types.NamespacedName{Name: n}, &live)).To(Succeed())
			g.Expect(cached.ResourceVersion).To(Equal(live.ResourceVersion))
		}
	}).WithTimeout(enough).WithPolling(10 * time.Millisecond).Should(Succeed())
}

func mount(fsType string) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: fsType, MountFlags: []string{"noatime"}}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
	}
}

func block(mode csi.VolumeCapability_AccessMode_Mode) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
	}
}

func createRequest(st storage, name string, size int64) *csi.CreateVolumeRequest {
	return &csi.CreateVolumeRequest{
		Name: name, Parameters: map[string]string{"target": st.target},
		CapacityRange:      &csi.CapacityRange{RequiredBytes: size},
		VolumeCapabilities: []*csi.VolumeCapability{mount("ext4")},
	}
}

func publishRequest(volume, nodeID string) *csi.ControllerPublishVolumeRequest {
	return &csi.ControllerPublishVolumeRequest{VolumeId: volume, NodeId: nodeID, VolumeCapability: mount("ext4")}
}

// within gives a call a deadline, as sidecars do.
func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// enough for any call that is to succeed; short for one that is to wait in vain.
const (
	enough = time.Minute
	short  = 500 * time.Millisecond
)

// inVain makes a call that waits for what does not come, and returns what it says of that when its deadline nears. On a
// busy machine the deadline may pass before the wait begins: then the call is repeated, as sidecars do, with twice the
// time, once the one before has ended at the server.
func inVain(t testing.TB, call func(context.Context) error) error {
	t.Helper()
	limit := short
	for {
		err := call(within(t, limit))
		switch code := status.Code(err); {
		case code == codes.DeadlineExceeded && limit <= 16*time.Second:
			limit *= 2
		case code == codes.Aborted && limit > short: // the one before goes on
		default:
			return err
		}
	}
}

func expectError(t testing.TB, err error, want codes.Code, says ...string) {
	t.Helper()
	if status.Code(err) != want {
		t.Errorf("got %v, want %s", err, want)
	}
	for _, w := range says {
		if !strings.Contains(fmt.Sprint(err), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
}

// volume as the API server has it; nil when it is not there.
func volume(t testing.TB, name string) *v1alpha1.NvmfVolume {
	t.Helper()
	vol, err := (&objects[v1alpha1.NvmfVolume, *v1alpha1.NvmfVolume]{}).get(t.Context(), api, name)
	if err != nil {
		t.Fatal(err)
	}
	return vol
}

// replica of a volume that has one, as the API server has it; nil when it is not there.
func replica(t testing.TB, volume string) *v1alpha1.NvmfReplica {
	t.Helper()
	rep, err := (&objects[v1alpha1.NvmfReplica, *v1alpha1.NvmfReplica]{}).get(t.Context(), api, volume+"-0")
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

// usersOf a volume, in words.
func usersOf(t testing.TB, name string) string {
	t.Helper()
	return users(&replicatedVolume{NvmfVolume: volume(t, name), replicas: []*v1alpha1.NvmfReplica{replica(t, name)}})
}

// newVolume makes a volume through the service.
func newVolume(t testing.TB, s *Service, st storage, name string) string {
	t.Helper()
	resp, err := s.CreateVolume(within(t, enough), createRequest(st, own(t, name), gi))
	if err != nil {
		t.Fatal(err)
	}
	return resp.Volume.VolumeId
}
