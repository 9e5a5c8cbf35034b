// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/manifest"
)

// spdkTarget makes an NvmfTarget with target pods.
func (c *cluster) spdkTarget(name string, strategy *v1alpha1.UpdateStrategy) *v1alpha1.NvmfTarget {
	c.t.Helper()
	target := &v1alpha1.NvmfTarget{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.NvmfTargetSpec{
			Engine:         v1alpha1.EngineSPDK,
			NodeSelector:   metav1.LabelSelector{MatchLabels: map[string]string{"pool": name}},
			Transports:     []v1alpha1.Transport{{Type: v1alpha1.TransportTCP}},
			Devices:        v1alpha1.Devices{File: &v1alpha1.DeviceFile{Path: "/var/lib/weft/" + name, Size: resource.MustParse("10Gi")}},
			Cores:          &v1alpha1.Cores{Count: new(int32(2))},
			UpdateStrategy: strategy,
		},
	}
	c.create(target)
	return target
}

// spdkNode makes a node that the target claims with a plan of the test's own: it has no inventory, so
// that the operator leaves the plan alone. Its agent is alive.
func (c *cluster) spdkNode(name, target string) {
	c.t.Helper()
	c.kubeNode(name, target)
	c.lease(name, time.Now(), 3600)
	c.create(&v1alpha1.NvmfNode{ObjectMeta: metav1.ObjectMeta{Name: name}})
	c.claim(name, func(spec *v1alpha1.NvmfNodeSpec) { spec.Target, spec.Plan = target, spdkPlan(target) })
	c.removesPod(name)
}

// removesPod plays the garbage collector at the end of the test.
func (c *cluster) removesPod(name string) {
	c.t.Cleanup(func() {
		for _, pod := range []*corev1.Pod{c.findPod(name), c.findPull(name)} {
			if pod != nil {
				c.Expect(client.IgnoreNotFound(admin.Delete(c.ctx, pod, client.GracePeriodSeconds(0)))).To(Succeed())
			}
		}
	})
}

// spdkInventory is of a node that can serve with SPDK.
func spdkInventory() *v1alpha1.Inventory {
	return &v1alpha1.Inventory{
		Modules: []string{"loop"},
		NUMANodes: []v1alpha1.NUMANode{{
			ID: 0, CPUs: "0-7", MemoryBytes: 16 << 30, LLCBytes: 32 << 20,
			Hugepages: []v1alpha1.HugepagePool{{SizeBytes: 2 << 20, Total: 4096, Free: 4096}},
		}},
		NICs: []v1alpha1.NIC{{Name: "eth0", SpeedMbps: 25000, MTU: 1500, Up: true, Addresses: []string{"192.0.2.1/24"}}},
	}
}

func spdkPlan(target string) *v1alpha1.Plan {
	return &v1alpha1.Plan{
		Engine: v1alpha1.EngineSPDK,
		Portals: []v1alpha1.PlannedPortal{{
			Portal:      v1alpha1.Portal{Transport: v1alpha1.TransportTCP, Address: "192.0.2.1", Port: 4420},
			MaxIOQueues: 8, QueueDepth: 128, InCapsuleDataSize: 4096,
		}},
		File: &v1alpha1.DeviceFile{Path: "/var/lib/weft/" + target, Size: resource.MustParse("10Gi")},
		SPDK: &v1alpha1.SPDKPlan{
			CoreMask: "0x6", Mode: v1alpha1.CoresDynamic, Hugepages: v1alpha1.Hugepages2Mi,
			Scheduler:   &v1alpha1.PlannedScheduler{PeriodMicroseconds: 1000000, LoadLimit: 20, CoreLimit: 80, CoreBusy: 95},
			MemoryBytes: 512 << 20, PodMemoryBytes: 300 << 20, BdevIOPoolSize: 8192, SmallBuffers: 2048, LargeBuffers: 256, MaxSubsystems: 1024,
			Transports: []v1alpha1.PlannedTransport{{
				Type: v1alpha1.TransportTCP, QueueDepth: 128, MaxIOQueues: 8, InCapsuleDataSize: 4096, MaxIOSize: 131072, SmallCache: 64, LargeCache: 16,
			}},
			Placement: v1alpha1.PlacementNone, Driver: v1alpha1.DriverKernel,
		},
	}
}

// plan changes what the target of a node is started with.
func (c *cluster) plan(node string, change func(*v1alpha1.SPDKPlan)) {
	c.t.Helper()
	c.claim(node, func(spec *v1alpha1.NvmfNodeSpec) { change(spec.Plan.SPDK) })
}

// claim writes as the operator does, so that the operator can take it back.
func (c *cluster) claim(node string, change func(*v1alpha1.NvmfNodeSpec)) {
	c.t.Helper()
	c.Eventually(func() error {
		nn := c.nvmfNode(node)
		spec := nn.Spec.DeepCopy()
		change(spec)
		return admin.Apply(c.ctx, manifest.ForNodeSpec(nn, *spec), client.FieldOwner(v1alpha1.OperatorFieldManager), client.ForceOwnership)
	}).Should(Succeed())
}

func (c *cluster) findPod(node string) *corev1.Pod {
	pod := &corev1.Pod{}
	err := admin.Get(c.ctx, client.ObjectKey{Namespace: namespace, Name: v1alpha1.TargetPodPrefix + node}, pod)
	if apierrors.IsNotFound(err) {
		return nil
	}
	c.Expect(err).NotTo(HaveOccurred())
	return pod
}

// pod waits for the node's target pod, one with another UID than those given.
func (c *cluster) pod(node string, not ...types.UID) *corev1.Pod {
	c.t.Helper()
	var pod *corev1.Pod
	c.Eventually(func() bool {
		pod = c.findPod(node)
		if pod == nil || !pod.DeletionTimestamp.IsZero() {
			return false
		}
		for _, uid := range not {
			if pod.UID == uid {
				return false
			}
		}
		return true
	}).Should(BeTrue(), "node %s gets no target pod", node)
	return pod
}

// podUID returns a function that tells which pod a node has; "ending" counts as none.
func (c *cluster) podUID(node string) func() types.UID {
	return func() types.UID {
		pod := c.findPod(node)
		if pod == nil || !pod.DeletionTimestamp.IsZero() {
			return ""
		}
		return pod.UID
	}
}

// runs plays scheduler and kubelet: the pod is on its node, and its target has been answering for a minute.
func (c *cluster) runs(node string) *corev1.Pod {
	c.t.Helper()
	c.bind(node)
	return c.kubelet(node, func(s *corev1.PodStatus) {
		s.Phase = corev1.PodRunning
		s.Conditions = []corev1.PodCondition{{
			Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(time.Now().Add(-time.Minute)),
		}}
		s.ContainerStatuses = []corev1.ContainerStatus{{
			Name: manifest.TargetContainer, Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
		}}
	})
}

func (c *cluster) bind(node string) {
	c.t.Helper()
	pod := c.pod(node)
	if pod.Spec.NodeName == "" {
		binding := &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: node}}
		c.Expect(admin.SubResource("binding").Create(c.ctx, pod, binding)).To(Succeed())
	}
}

func (c *cluster) kubelet(node string, change func(*corev1.PodStatus)) *corev1.Pod {
	c.t.Helper()
	pod := c.pod(node)
	c.Eventually(func() error {
		pod = c.pod(node)
		change(&pod.Status)
		return admin.Status().Update(c.ctx, pod)
	}).Should(Succeed())
	return pod
}

// ends plays the kubelet that has ended a pod which is being deleted.
func (c *cluster) ends(pod *corev1.Pod) {
	c.t.Helper()
	c.Eventually(func() bool {
		now := &corev1.Pod{}
		err := admin.Get(c.ctx, client.ObjectKeyFromObject(pod), now)
		return apierrors.IsNotFound(err) || err == nil && (now.UID != pod.UID || !now.DeletionTimestamp.IsZero())
	}).Should(BeTrue(), "nobody deletes pod %s", pod.Name)
	// The API server waits for no kubelet when the pod had ended before: then it is gone, or is another already.
	err := admin.Delete(c.ctx, pod, client.GracePeriodSeconds(0), client.Preconditions{UID: &pod.UID})
	c.Expect(apierrors.IsNotFound(err) || apierrors.IsConflict(err) || err == nil).To(BeTrue(), "%v", err)
}

// podCondition returns a function that tells TargetPodReady as "True/AsExpected".
func (c *cluster) podCondition(node string) func() string {
	return c.nodeCondition(node, v1alpha1.ConditionTargetPodReady)
}

func (c *cluster) podMessage(node string) func() string {
	return c.message(node, v1alpha1.ConditionTargetPodReady)
}

// message returns a function that tells a node's condition with its message.
func (c *cluster) message(node, kind string) func() string {
	return func() string {
		cond := meta.FindStatusCondition(c.nvmfNode(node).Status.Conditions, kind)
		if cond == nil {
			return ""
		}
		return fmt.Sprintf("%s/%s: %s", cond.Status, cond.Reason, cond.Message)
	}
}

// targetMessage returns a function that tells a target's condition with its message.
func (c *cluster) targetMessage(target, kind string) func() string {
	return func() string {
		cond := meta.FindStatusCondition(c.nvmfTarget(target).Status.Conditions, kind)
		if cond == nil {
			return ""
		}
		return fmt.Sprintf("%s/%s: %s", cond.Status, cond.Reason, cond.Message)
	}
}

// settled plays the agent of a replica that is as its spec says, or in the midst of something.
func (c *cluster) settled(replica string, ready metav1.ConditionStatus) {
	c.t.Helper()
	c.Eventually(func() error {
		v := &v1alpha1.NvmfReplica{}
		if err := admin.Get(c.ctx, client.ObjectKey{Name: replica}, v); err != nil {
			return err
		}
		v.Status.ObservedGeneration = v.Generation
		for kind, status := range map[string]metav1.ConditionStatus{v1alpha1.ConditionReady: ready, v1alpha1.ConditionDegraded: metav1.ConditionFalse} {
			meta.SetStatusCondition(&v.Status.Conditions, metav1.Condition{Type: kind, Status: status, Reason: v1alpha1.ReasonAsExpected})
		}
		return admin.Status().Update(c.ctx, v)
	}).Should(Succeed())
}
