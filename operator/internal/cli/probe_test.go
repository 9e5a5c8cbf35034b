// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// probeRig is a cluster in which weft is not installed, with three nodes, and their kubelets.
type probeRig struct {
	*rig
	*prober
	s *survey
	// kubelets do with a pod what its node does, once, after the command has looked at it for the first time.
	kubelets map[string]func(*corev1.Pod)
	// found is what the pod of a node prints.
	found map[string]string
	// pods as they were created, and deleted, in order of their nodes.
	created []corev1.Pod
}

// fit is what a node prints that lacks nothing.
const fit = `{"modules":["dm_crypt","dm_mod","md_mod","nvme_tcp","nvmet","nvmet_tcp","raid1"],"nics":[{"name":"eth0","mtu":1500,"up":true,"addresses":["192.0.2.1/24"]}]}` + "\n"

// admitting is an API server that admits pods as Pod Security does, and makes their UIDs.
type admitting struct {
	client.Client
	*probeRig
	// namespaces may not be made.
	noNamespaces bool
}

func (a *admitting) Create(ctx context.Context, o client.Object, options ...client.CreateOption) error {
	pod, is := o.(*corev1.Pod)
	if !is {
		if _, is := o.(*corev1.Namespace); is && a.noNamespaces {
			return apierrors.NewForbidden(schema.GroupResource{Resource: "namespaces"}, o.GetName(), errors.New("you may not"))
		}
		return a.Client.Create(ctx, o, options...)
	}
	var space corev1.Namespace
	if err := a.Get(ctx, client.ObjectKey{Name: pod.Namespace}, &space); err != nil {
		return err
	}
	if err := a.Get(ctx, client.ObjectKey{Namespace: pod.Namespace, Name: "default"}, &corev1.ServiceAccount{}); err != nil {
		return err
	}
	if space.Labels[enforceLabel] != privileged {
		return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, pod.GenerateName+"x", errors.New(`violates PodSecurity "restricted:latest": host namespaces (hostNetwork=true)`))
	}
	pod.UID = types.UID("uid-" + pod.Spec.NodeName)
	return a.Client.Create(ctx, pod, options...)
}

func newProbeRig(t *testing.T, namespace string, objects ...client.Object) *probeRig {
	t.Helper()
	r := &probeRig{rig: newRig(t, objects...), kubelets: map[string]func(*corev1.Pod){}, found: map[string]string{}, s: &survey{}}
	for _, name := range []string{"n1", "n2", "n3"} {
		n := debian(nil)
		n.Name = name
		r.s.nodes, r.s.all = append(r.s.nodes, n), append(r.s.all, n)
		r.kubelets[name], r.found[name] = succeeded, fit
	}
	r.prober = newProber(&probeOptions{wanted: true, image: "registry.example/weft:1", pullPolicy: "IfNotPresent", namespace: namespace, timeout: time.Minute},
		&admitting{Client: r.rig.api, probeRig: r}, io.Discard)
	r.prober.now = func() time.Time { return r.rig.now }
	r.logs = func(_ context.Context, pod *corev1.Pod) (string, error) {
		if pod.Status.Phase != corev1.PodSucceeded {
			return "", errors.New("the pod has not ended")
		}
		return r.found[pod.Spec.NodeName], nil
	}
	r.pause = func(ctx context.Context) error {
		r.rig.now = r.rig.now.Add(10 * time.Second)
		pods := r.pods()
		if r.created == nil {
			r.created = r.pods()
		}
		for i := range pods {
			if act := r.kubelets[pods[i].Spec.NodeName]; act != nil {
				act(&pods[i])
				r.do(r.rig.api.Status().Update(ctx, &pods[i]))
			}
		}
		return ctx.Err()
	}
	return r
}

// pods that there are, by node.
func (r *probeRig) pods() []corev1.Pod {
	r.t.Helper()
	var all corev1.PodList
	r.do(r.rig.api.List(r.ctx, &all, client.MatchingLabels{"app.kubernetes.io/name": probeName}))
	slices.SortFunc(all.Items, func(a, b corev1.Pod) int { return strings.Compare(a.Spec.NodeName, b.Spec.NodeName) })
	return all.Items
}

func succeeded(pod *corev1.Pod) { pod.Status.Phase = corev1.PodSucceeded }

// waiting for something, in the words of a kubelet.
func waiting(reason, message string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Status.Phase = corev1.PodPending
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: probeName, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}}
	}
}

// gone: nothing of the probe is in the cluster.
func (r *probeRig) gone() {
	r.t.Helper()
	if pods := r.pods(); len(pods) > 0 {
		r.t.Errorf("%d pods are left", len(pods))
	}
	if r.temporary {
		r.absent(&corev1.Namespace{}, r.namespace)
	}
}

// What a node lacks is known before weft is installed, with the words of afterwards.
func TestProbeFindsWhatNodesLack(t *testing.T) {
	r := newProbeRig(t, "")
	r.found["n2"] = `{"modules":["nvme_tcp","dm_mod","md_mod"],"rdmaDevices":[{"name":"mlx5_0"}],"nics":[{"name":"ens1","mtu":9000,"up":true,"addresses":["192.0.2.2/24","198.51.100.1/24"]}]}`
	r.found["n3"] = `{"modules":[],"numaNodes":[{"id":0,"hugepages":[{"sizeBytes":2097152,"total":512}]}]}`
	r.do(r.probe(r.ctx, r.s))
	r.gone()
	wrong, advice := found(r.s)
	same(t, "wrong", wrong, []string{"no dm_mod, so its pods cannot use volumes", "no nvme_tcp"})
	same(t, "advice", advice, []string{
		"no md_mod or no raid1, so its pods cannot use volumes with two replicas", "no dm_crypt, so its pods cannot use encrypted volumes", "no nvmet_tcp", "but no nvme_rdma",
		"no md_mod or no raid1", "no dm_crypt", "no nvmet_tcp",
		"the interfaces in network 192.0.2.0/24 have different MTUs: 9000 on n2 (ens1); 1500 on n1 (eth0)"})
	if known := strings.Join(r.s.notKnown(), "\n"); strings.Contains(known, "modules") || len(r.s.unread) > 0 {
		t.Errorf("not known: %s; not read: %q", known, r.s.unread)
	}
	var out bytes.Buffer
	if err := r.s.show(&out, &output{format: outputWide}); exitCode(err) != CodeUnwell || !strings.Contains(out.String(), "9000 (ens1)") || strings.Contains(out.String(), "198.51.100.0") {
		t.Errorf("%v:\n%s", err, out.String())
	}
	// A node plugin that has said what it could load is right.
	r.s.nodes[2].Status.Conditions = []corev1.NodeCondition{{Type: v1alpha1.ConditionMirrorsUnavailable, Status: corev1.ConditionFalse}, {Type: v1alpha1.ConditionEncryptionUnavailable, Status: corev1.ConditionFalse}}
	wrong, _ = found(r.s)
	same(t, "wrong", wrong, []string{"no nvme_tcp"})
}

// The pods run on tainted nodes, and may nothing; a namespace that enforces less than privileged refuses no more of
// them than what they mount, and that they are in the network of their nodes.
func TestProbePods(t *testing.T) {
	r := newProbeRig(t, "")
	r.do(r.probe(r.ctx, r.s))
	if len(r.created) != 3 {
		t.Fatalf("%d pods were created", len(r.created))
	}
	r.created[0].ResourceVersion, r.created[0].Name, r.created[0].Namespace, r.created[0].Labels = "", "", "", nil
	text, err := yaml.Marshal(r.created[0])
	r.do(err)
	golden(t, "probe-pod.txt", string(text))
	for i, node := range []string{"n1", "n2", "n3"} {
		if r.created[i].Spec.NodeName != node {
			t.Errorf("pod %d is for node %s", i, r.created[i].Spec.NodeName)
		}
	}
}

// A node whose pod did not run is unknown, with the reason, and the others are known.
func TestProbeSaysWhyAPodDidNotRun(t *testing.T) {
	fails := func(status corev1.PodStatus) func(*corev1.Pod) {
		return func(pod *corev1.Pod) { status.Phase = corev1.PodFailed; pod.Status = status }
	}
	ended := func(message string) func(*corev1.Pod) {
		return fails(corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error", Message: message}}}}})
	}
	mount := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "weft-check-x", Name: "e"}, InvolvedObject: corev1.ObjectReference{Kind: "Pod", UID: "uid-n2"},
		Type: corev1.EventTypeWarning, Reason: "FailedMount", Message: "hostPath type check failed: /lib/modules is not a directory"}
	for name, c := range map[string]struct {
		kubelet func(*corev1.Pod)
		prints  string
		objects []client.Object
		want    string
	}{
		"no image": {kubelet: waiting("ImagePullBackOff", `Back-off pulling image "registry.example/weft:1": not found`),
			want: `its pod cannot pull the image registry.example/weft:1: Back-off pulling image "registry.example/weft:1": not found`},
		"no room": {kubelet: fails(corev1.PodStatus{Reason: "OutOfpods", Message: "Node didn't have enough resource: pods"}),
			want: "its pod failed: OutOfpods: Node didn't have enough resource: pods"},
		"a program that fails":        {kubelet: ended("weft-agent: taking the inventory of drives: permission denied\n"), want: "its pod failed: weft-agent: taking the inventory of drives: permission denied"},
		"a program that says nothing": {kubelet: ended(""), want: "its pod failed: Error, exit code 1"},
		"an image of something else":  {prints: "hello", want: "read the log of its pod: invalid character 'h'"},
		"a mount that fails":          {kubelet: waiting("ContainerCreating", ""), objects: []client.Object{mount}, want: "its pod did not end within 1m0s: FailedMount: hostPath type check failed"},
		"a container that waits":      {kubelet: waiting("ContainerCreating", ""), want: "its pod did not end within 1m0s: ContainerCreating"},
		"a node that does nothing":    {kubelet: func(*corev1.Pod) {}, want: "its pod did not end within 1m0s: it is Pending"},
		"no scheduler was asked": {kubelet: func(pod *corev1.Pod) {
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "no node"}}
		}, want: "its pod did not end within 1m0s: Unschedulable: no node"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newProbeRig(t, "", c.objects...)
			r.run = "x"
			if c.kubelet != nil {
				r.kubelets["n2"] = c.kubelet
			}
			if c.prints != "" {
				r.found["n2"] = c.prints
			}
			r.do(r.probe(r.ctx, r.s))
			r.gone()
			if len(r.s.unread) != 1 || !strings.HasPrefix(r.s.unread[0], "n2: "+whatProbesTell+": "+c.want) {
				t.Errorf("got %q, want %q", r.s.unread, c.want)
			}
			if known := strings.Join(r.s.notKnown(), "\n"); strings.Contains(known, "modules") {
				t.Errorf("n2 is told twice: %s", known)
			}
			var out bytes.Buffer
			if err := r.s.show(&out, &output{format: outputTable}); exitCode(err) != CodeUnknown {
				t.Errorf("got %v", err)
			}
		})
	}
}

// Of a node that is not Ready, no pod would say anything; one that is deleted says no more.
func TestProbeOfNodesThatAreAway(t *testing.T) {
	r := newProbeRig(t, "")
	r.s.nodes[0].Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: "NodeStatusUnknown", Message: "Kubelet stopped posting"}}
	for _, name := range []string{"n2", "n3"} {
		r.kubelets[name] = func(*corev1.Pod) {}
	}
	pause := r.pause
	r.pause = func(ctx context.Context) error {
		err := pause(ctx)
		r.do(r.rig.api.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(r.namespace)))
		return err
	}
	r.do(r.probe(r.ctx, r.s))
	want := []string{"n2, n3: " + whatProbesTell + ": its pod was deleted", "n1: " + whatProbesTell + ": the Kubernetes Node is not Ready: NodeStatusUnknown: Kubelet stopped posting"}
	if !slices.Equal(r.s.unread, want) || len(r.created) != 2 {
		t.Errorf("%d pods; got %q", len(r.created), r.s.unread)
	}
}

// A namespace of the person's own is used as it is, and stays.
func TestProbeInANamespace(t *testing.T) {
	space := func(enforce string) []client.Object {
		return []client.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "mine", Labels: map[string]string{enforceLabel: enforce}}},
			&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "mine", Name: "default"}},
			&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "mine", Name: "other"}}}
	}
	r := newProbeRig(t, "mine", space(privileged)...)
	r.do(r.probe(r.ctx, r.s))
	r.gone()
	for _, o := range space(privileged) {
		r.do(r.rig.api.Get(r.ctx, client.ObjectKeyFromObject(o), o))
	}
	if len(r.s.unread) > 0 || len(r.created) != 3 || r.created[0].Namespace != "mine" {
		t.Errorf("not read: %q; pods: %+v", r.s.unread, r.created)
	}

	r = newProbeRig(t, "mine", space("restricted")...)
	r.do(r.probe(r.ctx, r.s))
	want := "n1, n2, n3: " + whatProbesTell + `: namespace mine does not admit its pod: violates PodSecurity "restricted:latest": host namespaces (hostNetwork=true); ` +
		"set --probe-namespace to one with the label pod-security.kubernetes.io/enforce=privileged, or leave the flag out, so that a temporary one is made"
	if len(r.s.unread) != 1 || r.s.unread[0] != want {
		t.Errorf("got %q", r.s.unread)
	}
}

func TestProbeWithoutTheRightToMakeNamespaces(t *testing.T) {
	r := newProbeRig(t, "")
	r.prober.api.(*admitting).noNamespaces = true
	if err := r.probe(r.ctx, r.s); err == nil || !strings.Contains(err.Error(), "you may not; to use an existing one, set --probe-namespace") {
		t.Errorf("got %v", err)
	}
}

// The person interrupts, or the API server fails, and nothing stays.
func TestProbeDeletesItsPodsWhateverHappens(t *testing.T) {
	for name, c := range map[string]struct {
		pause func(r *probeRig, ctx context.Context) error
		want  error
	}{
		"interrupted": {func(r *probeRig, ctx context.Context) error { r.interrupt(); return ctx.Err() }, context.Canceled},
		"an error":    {func(*probeRig, context.Context) error { return io.ErrUnexpectedEOF }, io.ErrUnexpectedEOF},
	} {
		t.Run(name, func(t *testing.T) {
			r := newProbeRig(t, "")
			there := 0
			r.pause = func(ctx context.Context) error {
				there = len(r.pods())
				return c.pause(r, ctx)
			}
			if err := r.probe(r.ctx, r.s); !errors.Is(err, c.want) {
				t.Errorf("got %v", err)
			}
			if there != 3 {
				t.Errorf("there were %d pods", there)
			}
			r.ctx = t.Context()
			r.gone()
		})
	}
	r := newProbeRig(t, "")
	r.interrupt()
	if err := r.probe(r.ctx, r.s); !errors.Is(err, context.Canceled) || len(r.created) > 0 {
		t.Errorf("got %v, and %d pods", err, len(r.created))
	}
	r.ctx = t.Context()
	r.gone()
}

// undeletable is an API server that deletes nothing.
type undeletable struct{ client.Client }

func (undeletable) DeleteAllOf(context.Context, client.Object, ...client.DeleteAllOfOption) error {
	return io.ErrUnexpectedEOF
}

func (undeletable) Delete(context.Context, client.Object, ...client.DeleteOption) error {
	return io.ErrUnexpectedEOF
}

// What could not be deleted is told, with what deletes it.
func TestProbeSaysWhatItLeaves(t *testing.T) {
	r := newProbeRig(t, "")
	r.run, r.prober.api = "x", undeletable{r.prober.api}
	if err := r.probe(r.ctx, r.s); err == nil || !strings.Contains(err.Error(), "run: kubectl delete namespace weft-check-x") {
		t.Errorf("got %v", err)
	}
}

// On a terminal, a bar counts the nodes that have answered.
func TestProbeShowsProgress(t *testing.T) {
	r := newProbeRig(t, "")
	v := &terminal{t: t, width: 80, height: 20}
	r.bars = v.screen()
	var seen []string
	pause := r.pause
	r.kubelets["n3"] = func(pod *corev1.Pod) {
		if len(seen) > 1 {
			succeeded(pod)
		}
	}
	r.pause = func(ctx context.Context) error {
		seen = append(seen, strings.Join(v.lines, "\n"))
		return pause(ctx)
	}
	r.do(r.probe(r.ctx, r.s))
	if got := fmt.Sprint(seen); !strings.Contains(got, "0 of 3 nodes") || !strings.Contains(got, "2 of 3 nodes") {
		t.Errorf("seen: %s", got)
	}
	if left := strings.Join(v.lines, ""); left != "" {
		t.Errorf("left: %s", left)
	}
}

func TestProbeFlags(t *testing.T) {
	nodes := apiServer(t, map[string]any{"/api/v1/nodes": corev1.NodeList{TypeMeta: metav1.TypeMeta{Kind: "NodeList", APIVersion: "v1"}, Items: []corev1.Node{debian(nil)}}}, nil)
	for args, want := range map[string]string{
		"--image=a":                     "--image is about the pods of --probe; set --probe too",
		"--timeout=1m":                  "--timeout is about the pods of --probe",
		"--probe --image=a --timeout=0": "must be more than 0",
		"--probe":                       "this kubectl weft has no version, and so names no image; set --image",
		"-l x=y a":                      "name nodes, or select them with --selector, but not both",
		"-l x=y":                        "no Linux node has the labels x=y",
		"-l x=,=":                       "--selector: ",
		"--probe --image=a -l x=y ":     "no Linux node has the labels x=y",
	} {
		cmd := Command(unversioned)
		cmd.SetArgs(append([]string{"check", "--kubeconfig", nodes}, strings.Fields(args)...))
		cmd.SetOut(io.Discard)
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", args, err, want)
		}
	}
}

// The default image is the chart's.
func TestProbeRunsTheImageOfTheChart(t *testing.T) {
	var values struct {
		Image struct{ Repository, Tag, PullPolicy string }
	}
	text, err := os.ReadFile("../../../charts/weft/values.yaml")
	if err := errors.Join(err, yaml.Unmarshal(text, &values)); err != nil {
		t.Fatal(err)
	}
	cmd, _, err := Command("1.2.3").Find([]string{"check"})
	if err != nil {
		t.Fatal(err)
	}
	got := []string{cmd.Flag("image").DefValue, cmd.Flag("image-pull-policy").DefValue}
	if want := []string{values.Image.Repository + ":1.2.3", values.Image.PullPolicy}; values.Image.Tag != "" || !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	var is v1alpha1.Inventory
	if err := json.Unmarshal([]byte(fit), &is); err != nil || len(is.NICs) != 1 {
		t.Errorf("%v: %+v", err, is)
	}
}
