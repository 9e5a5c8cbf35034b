// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// cluster makes objects as users, kubelets, agents and the CSI controller would, and removes them at the end of
// the test. Names and labels are the test's own.
type cluster struct {
	*WithT
	t   *testing.T
	ctx context.Context
}

func newCluster(t *testing.T) *cluster {
	g := NewWithT(t)
	g.SetDefaultEventuallyTimeout(patience)
	g.SetDefaultEventuallyPollingInterval(interval)
	g.SetDefaultConsistentlyDuration(quiet)
	g.SetDefaultConsistentlyPollingInterval(interval)
	return &cluster{WithT: g, t: t, ctx: context.Background()}
}

func (c *cluster) create(o client.Object) {
	c.t.Helper()
	c.Expect(admin.Create(c.ctx, o)).To(Succeed())
	c.t.Cleanup(func() { c.remove(o) })
}

// remove takes an object away whatever its finalizers say.
func (c *cluster) remove(o client.Object) {
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))
	c.Expect(client.IgnoreNotFound(admin.Patch(c.ctx, o, patch))).To(Succeed())
	// No kubelet says that the containers of a pod have ended.
	c.Expect(client.IgnoreNotFound(admin.Delete(c.ctx, o, client.GracePeriodSeconds(0)))).To(Succeed())
	c.Eventually(func() bool {
		return apierrors.IsNotFound(admin.Get(c.ctx, client.ObjectKeyFromObject(o), o))
	}).Should(BeTrue(), "%T %s stays", o, o.GetName())
}

// capableModules are what a TCP target on a file needs.
var capableModules = []string{"loop", "nvmet", "nvmet_tcp", "xfs"}

// node makes a Kubernetes Node and what its agent would report; no modules: no agent.
func (c *cluster) node(name, pool string, modules ...string) {
	c.t.Helper()
	c.kubeNode(name, pool)
	if len(modules) > 0 {
		c.agent(name, modules...)
	}
}

func (c *cluster) kubeNode(name, pool string) {
	c.t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"pool": pool}}}
	c.create(node)
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}
	c.Expect(admin.Status().Update(c.ctx, node)).To(Succeed())
}

func (c *cluster) agent(name string, modules ...string) {
	c.t.Helper()
	c.create(&v1alpha1.NvmfNode{ObjectMeta: metav1.ObjectMeta{Name: name}})
	c.report(name, func(s *v1alpha1.NvmfNodeStatus) { s.Inventory = &v1alpha1.Inventory{Modules: modules} })
}

// report changes what the agent says. It retries when the operator wrote in between.
func (c *cluster) report(node string, change func(*v1alpha1.NvmfNodeStatus)) {
	c.t.Helper()
	c.Eventually(func() error {
		nn := c.nvmfNode(node)
		change(&nn.Status)
		return admin.Status().Update(c.ctx, nn)
	}).Should(Succeed())
}

// serve plays the agent that has taken up the plan.
func (c *cluster) serve(node string) {
	c.t.Helper()
	c.Eventually(func() error {
		nn := c.nvmfNode(node)
		nn.Status.ObservedGeneration = nn.Generation
		nn.Status.Capacity.Total = resource.NewQuantity(10<<30, resource.BinarySI)
		nn.Status.Capacity.Free = resource.NewQuantity(9<<30, resource.BinarySI)
		meta.SetStatusCondition(&nn.Status.Conditions, metav1.Condition{
			Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAsExpected,
			ObservedGeneration: nn.Generation, Message: "serving",
		})
		return admin.Status().Update(c.ctx, nn)
	}).Should(Succeed())
}

func (c *cluster) label(node, pool string) {
	c.t.Helper()
	patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"metadata":{"labels":{"pool":%q}}}`, pool))
	c.Expect(admin.Patch(c.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, patch)).To(Succeed())
}

func (c *cluster) target(name, pool string) *v1alpha1.NvmfTarget {
	c.t.Helper()
	target := newTarget(name, pool)
	c.create(target)
	return target
}

// newTarget is one that nodes with capableModules can hold.
func newTarget(name, pool string) *v1alpha1.NvmfTarget {
	return &v1alpha1.NvmfTarget{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.NvmfTargetSpec{
			Engine:       v1alpha1.EngineNvmet,
			NodeSelector: metav1.LabelSelector{MatchLabels: map[string]string{"pool": pool}},
			Transports:   []v1alpha1.Transport{{Type: v1alpha1.TransportTCP}},
			Devices:      v1alpha1.Devices{File: &v1alpha1.DeviceFile{Path: "/var/lib/weft/" + name, Size: resource.MustParse("10Gi")}},
		},
	}
}

var volumeCount int

// volume without the replica that it lists.
func (c *cluster) volume(name, target, node string) *v1alpha1.NvmfVolume {
	c.t.Helper()
	volume := c.newVolume(name, target, node)
	c.create(volume)
	return volume
}

// newVolume with a replica on each of the nodes, none of which exists.
func (c *cluster) newVolume(name, target string, nodes ...string) *v1alpha1.NvmfVolume {
	volume := &v1alpha1.NvmfVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{v1alpha1.ReplicasFinalizer}},
		Spec:       v1alpha1.NvmfVolumeSpec{Target: target, Size: resource.MustParse("1Gi"), Replicas: int32(len(nodes))},
	}
	for i, node := range nodes {
		volumeCount++
		uuid := fmt.Sprintf("00000000-0000-4000-8000-%012d", volumeCount)
		if i == 0 {
			volume.Spec.UUID = uuid
		}
		volume.Spec.Members = append(volume.Spec.Members, v1alpha1.VolumeMember{Name: fmt.Sprintf("%s-%d", name, i), UUID: uuid, Node: node})
	}
	return volume
}

// replica of a volume, without the volume.
func (c *cluster) replica(volume, target, node string) *v1alpha1.NvmfReplica {
	c.t.Helper()
	volumeCount++
	uuid := fmt.Sprintf("00000000-0000-4000-8000-%012d", volumeCount)
	replica := &v1alpha1.NvmfReplica{
		ObjectMeta: metav1.ObjectMeta{Name: volume + "-0", Finalizers: []string{v1alpha1.EngineFinalizer}},
		Spec: v1alpha1.NvmfReplicaSpec{
			Volume: v1alpha1.ReplicaOf{Name: volume, UUID: uuid}, UUID: uuid, Target: target, Node: node, Size: resource.MustParse("1Gi"),
		},
	}
	c.create(replica)
	return replica
}

func (c *cluster) lease(node string, renewed time.Time, seconds int32) *coordinationv1.Lease {
	c.t.Helper()
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.AgentLeasePrefix + node, Labels: map[string]string{v1alpha1.ComponentLabel: v1alpha1.ComponentAgent}},
		Spec:       coordinationv1.LeaseSpec{RenewTime: new(metav1.NewMicroTime(renewed)), LeaseDurationSeconds: &seconds},
	}
	c.create(lease)
	return lease
}

func (c *cluster) leaseOf(node string) *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.AgentLeasePrefix + node}}
}

func (c *cluster) nvmfNode(name string) *v1alpha1.NvmfNode {
	nn := &v1alpha1.NvmfNode{}
	c.Expect(admin.Get(c.ctx, client.ObjectKey{Name: name}, nn)).To(Succeed())
	return nn
}

func (c *cluster) nvmfTarget(name string) *v1alpha1.NvmfTarget {
	target := &v1alpha1.NvmfTarget{}
	c.Expect(admin.Get(c.ctx, client.ObjectKey{Name: name}, target)).To(Succeed())
	return target
}

// claimant returns a function for Eventually and Consistently.
func (c *cluster) claimant(node string) func() string {
	return func() string { return c.nvmfNode(node).Spec.Target }
}

// targetCondition returns a function that tells a condition as "True/AsExpected".
func (c *cluster) targetCondition(target, kind string) func() string {
	return func() string { return brief(c.nvmfTarget(target).Status.Conditions, kind) }
}

func (c *cluster) nodeCondition(node, kind string) func() string {
	return func() string { return brief(c.nvmfNode(node).Status.Conditions, kind) }
}

// judged returns a function that says whether each of these conditions is about the node's spec as it is now: the
// controllers that write them have seen it.
func (c *cluster) judged(node string, kinds ...string) func() bool {
	return func() bool {
		nn := c.nvmfNode(node)
		return !slices.ContainsFunc(kinds, func(kind string) bool {
			is := meta.FindStatusCondition(nn.Status.Conditions, kind)
			return is == nil || is.ObservedGeneration != nn.Generation
		})
	}
}

func brief(conditions []metav1.Condition, kind string) string {
	cond := meta.FindStatusCondition(conditions, kind)
	if cond == nil {
		return "absent"
	}
	return string(cond.Status) + "/" + cond.Reason
}

// events returns a function that lists "reason related-node note" of the Events about an object that exists now.
func (c *cluster) events(kind, name string) func() []string {
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind))
	c.Expect(admin.Get(c.ctx, client.ObjectKey{Name: name}, object)).To(Succeed())
	return func() []string {
		var list eventsv1.EventList
		c.Expect(admin.List(c.ctx, &list, client.InNamespace(metav1.NamespaceDefault))).To(Succeed())
		var out []string
		for _, e := range list.Items {
			if e.Regarding.UID != object.UID {
				continue
			}
			related := "-"
			if e.Related != nil {
				related = e.Related.Name
			}
			out = append(out, strings.Join([]string{e.Reason, related, e.Note}, " "))
		}
		return out
	}
}
