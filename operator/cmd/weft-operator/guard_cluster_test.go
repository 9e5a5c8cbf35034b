// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/manifest"
)

const guardImage = "registry.example/weft:v1"

// withGuards starts an operator that makes guard pods.
func withGuards(o *settings) { o.GuardImage = guardImage }

// storageNode that lives, and whose guard goes with it at the end of the test.
func (c *cluster) storageNode(name string) {
	c.t.Helper()
	c.t.Cleanup(func() { // after the NvmfNode was removed
		for _, o := range []client.Object{&corev1.Pod{}, &policyv1.PodDisruptionBudget{}} {
			o.SetNamespace(namespace)
			o.SetName(manifest.GuardName(name))
			c.Expect(client.IgnoreNotFound(admin.Delete(c.ctx, o, client.GracePeriodSeconds(0)))).To(Succeed())
		}
	})
	c.kubeNode(name, name)
	c.lease(name, time.Now(), 3600)
	c.create(&v1alpha1.NvmfNode{ObjectMeta: metav1.ObjectMeta{Name: name}})
}

// stored makes a volume and its replicas, one on each of the nodes, all in sync and ready. Volumes with several have a
// mirror.
func (c *cluster) stored(name string, nodes ...string) []*v1alpha1.NvmfReplica {
	c.t.Helper()
	volume := c.newVolume(name, "guarded", nodes...)
	c.create(volume)
	var replicas []*v1alpha1.NvmfReplica
	var members []v1alpha1.MirrorMember
	for _, m := range volume.Spec.Members {
		replica := &v1alpha1.NvmfReplica{
			ObjectMeta: metav1.ObjectMeta{Name: m.Name, Finalizers: []string{v1alpha1.EngineFinalizer}},
			Spec: v1alpha1.NvmfReplicaSpec{
				Volume: v1alpha1.ReplicaOf{Name: name, UUID: volume.Spec.UUID}, UUID: m.UUID, Target: volume.Spec.Target, Node: m.Node, Size: volume.Spec.Size,
			},
		}
		c.create(replica)
		c.settled(replica.Name, metav1.ConditionTrue)
		replicas = append(replicas, replica)
		members = append(members, v1alpha1.MirrorMember{Replica: replica.Name, ReplicaUID: string(replica.UID), State: v1alpha1.MemberInSync})
	}
	if len(nodes) > 1 {
		c.create(&v1alpha1.NvmfMirror{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.NvmfMirrorSpec{Epoch: 1, Members: members}})
	}
	return replicas
}

// recorded plays the keeper of a mirror: a member gets into each of these states, one after the other.
func (c *cluster) recorded(volume string, member int, states ...v1alpha1.MirrorMemberState) {
	c.t.Helper()
	for _, state := range states {
		mirror := &v1alpha1.NvmfMirror{}
		c.Expect(admin.Get(c.ctx, client.ObjectKey{Name: volume}, mirror)).To(Succeed())
		mirror.Spec.Epoch++
		mirror.Spec.Members[member].State = state
		c.Expect(admin.Update(c.ctx, mirror)).To(Succeed())
	}
}

func (c *cluster) cordon(node string, yes bool) {
	c.t.Helper()
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, yes))
	c.Expect(admin.Patch(c.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, patch)).To(Succeed())
}

// allowEviction as a person does; no reason: no more.
func (c *cluster) allowEviction(node, reason string) {
	c.t.Helper()
	value := "null"
	if reason != "" {
		value = fmt.Sprintf("%q", reason)
	}
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%s}}}`, v1alpha1.AllowEvictionAnnotation, value))
	c.Expect(admin.Patch(c.ctx, &v1alpha1.NvmfNode{ObjectMeta: metav1.ObjectMeta{Name: node}}, patch)).To(Succeed())
}

// exists returns a function that tells whether there is such an object in weft's namespace.
func (c *cluster) exists(o client.Object, name string) func() bool {
	return func() bool {
		err := admin.Get(c.ctx, client.ObjectKey{Namespace: namespace, Name: name}, o)
		c.Expect(client.IgnoreNotFound(err)).To(Succeed())
		return err == nil && o.GetDeletionTimestamp().IsZero()
	}
}

// guards returns a function that tells whether a node has a guard pod and a budget.
func (c *cluster) guards(node string) func() [2]bool {
	pod, budget := c.exists(&corev1.Pod{}, manifest.GuardName(node)), c.exists(&policyv1.PodDisruptionBudget{}, manifest.GuardName(node))
	return func() [2]bool { return [2]bool{pod(), budget()} }
}

// guard waits for the node's guard pod, and plays scheduler and kubelet: it runs.
func (c *cluster) guard(node string) *corev1.Pod {
	c.t.Helper()
	pod := &corev1.Pod{}
	c.Eventually(c.exists(pod, manifest.GuardName(node))).Should(BeTrue(), "node %s gets no guard", node)
	if pod.Spec.NodeName == "" {
		binding := &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: node}}
		c.Expect(admin.SubResource("binding").Create(c.ctx, pod, binding)).To(Succeed())
	}
	c.phase(pod, corev1.PodRunning)
	return pod
}

// phase plays the kubelet: the pod runs and is ready, or has ended.
func (c *cluster) phase(pod *corev1.Pod, phase corev1.PodPhase) {
	c.t.Helper()
	ready := corev1.ConditionFalse
	if phase == corev1.PodRunning {
		ready = corev1.ConditionTrue
	}
	c.Expect(admin.Get(c.ctx, client.ObjectKeyFromObject(pod), pod)).To(Succeed())
	pod.Status.Phase = phase
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: ready, LastTransitionTime: metav1.Now()}}
	c.Expect(admin.Status().Update(c.ctx, pod)).To(Succeed())
}

// evict returns a function that asks the eviction API as a drain does, and tells its answer: Evicted, or why not.
func (c *cluster) evict(pod *corev1.Pod) func() string {
	return func() string {
		eviction := &policyv1.Eviction{DeleteOptions: &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))}}
		err := admin.SubResource("eviction").Create(c.ctx, pod, eviction)
		if err == nil {
			return "Evicted"
		}
		cause, _ := apierrors.StatusCause(err, policyv1.DisruptionBudgetCause)
		return string(apierrors.ReasonForError(err)) + ": " + err.Error() + " " + cause.Message
	}
}

// refused is the answer of the eviction API that makes drains try again.
func refused() OmegaMatcher {
	return And(HavePrefix(string(metav1.StatusReasonTooManyRequests)), ContainSubstring("Cannot evict pod as it would violate the pod's disruption budget"),
		ContainSubstring("needs 2 healthy pods and has "))
}

// closed waits until the budget of a node allows nothing, and Kubernetes has seen that: until then evictions are
// refused for another reason.
func (c *cluster) closed(node string, pods int32) {
	c.t.Helper()
	budget := &policyv1.PodDisruptionBudget{}
	c.Eventually(func() bool {
		return c.exists(budget, manifest.GuardName(node))() && !manifest.BudgetOpen(budget) &&
			budget.Status.ObservedGeneration == budget.Generation && budget.Status.CurrentHealthy == pods
	}).Should(BeTrue(), "the budget of node %s: %+v, %+v", node, budget.Spec, budget.Status)
	c.Expect(budget.Status.DisruptionsAllowed).To(BeZero())
}

func (c *cluster) evictable(node string) func() string {
	return c.message(node, v1alpha1.ConditionEvictable)
}

// kubectl is Kubernetes' own.
func (c *cluster) kubectl(args ...string) *exec.Cmd {
	c.t.Helper()
	program := filepath.Join(server.Environment.BinaryAssetsDirectory, "kubectl")
	return exec.CommandContext(c.t.Context(), program, append(args, "--kubeconfig", c.kubeconfig(adminConfig))...)
}
