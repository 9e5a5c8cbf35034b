// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/manifest"
)

const nextImage = "registry.example/weft-target:v2"

// findPull returns the pod that pulls the target image on a node, or nil.
func (c *cluster) findPull(node string) *corev1.Pod {
	pod := &corev1.Pod{}
	err := admin.Get(c.ctx, client.ObjectKey{Namespace: namespace, Name: manifest.PullPodName(node)}, pod)
	if apierrors.IsNotFound(err) || err == nil && !pod.DeletionTimestamp.IsZero() {
		return nil
	}
	c.Expect(err).NotTo(HaveOccurred())
	return pod
}

// pulls plays the kubelet with the pod that pulls an image, and returns the pod.
func (c *cluster) pulls(node, image string, change func(*corev1.PodStatus)) *corev1.Pod {
	c.t.Helper()
	var pod *corev1.Pod
	c.Eventually(func() string {
		if pod = c.findPull(node); pod == nil {
			return "none"
		}
		return pod.Spec.Containers[0].Image
	}).Should(Equal(image), "what is pulled on node %s", node)
	c.Eventually(func() error {
		pod = c.findPull(node)
		if pod == nil {
			return nil
		}
		change(&pod.Status)
		return admin.Status().Update(c.ctx, pod)
	}).Should(Succeed())
	return pod
}

func pulled(s *corev1.PodStatus) {
	s.Phase, s.ContainerStatuses = corev1.PodSucceeded, nil
}

func pullWaits(reason, message string) func(*corev1.PodStatus) {
	return func(s *corev1.PodStatus) {
		s.Phase = corev1.PodPending
		s.ContainerStatuses = []corev1.ContainerStatus{{
			Name: manifest.PullContainer, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}},
		}}
	}
}

// An image that no node can pull used to cost the first node its target.
func TestAnImageThatCannotBePulledDisturbsNothing(t *testing.T) {
	c := newCluster(t)
	_, stop := startOperator(t, nil)
	c.spdkTarget("nopull", &v1alpha1.UpdateStrategy{Type: v1alpha1.UpdateRollingUpdate})
	nodes := []string{"nopull-1", "nopull-2"}
	old := map[string]*corev1.Pod{}
	for _, node := range nodes {
		c.spdkNode(node, "nopull")
		old[node] = c.runs(node)
		c.serve(node)
		c.Eventually(c.nodeCondition(node, v1alpha1.ConditionTargetImageReady)).Should(Equal("True/AsExpected"))
		c.Expect(c.findPull(node)).To(BeNil())
	}
	stop()
	_, stop = startOperator(t, func(o *settings) { o.TargetImage = nextImage })
	for _, node := range nodes {
		c.Eventually(c.nodeCondition(node, v1alpha1.ConditionTargetImageReady)).Should(Equal("Unknown/Pending"))
		c.pulls(node, nextImage, pullWaits("ErrImagePull", `failed to resolve reference "`+nextImage+`": not found`))
		c.Eventually(c.message(node, v1alpha1.ConditionTargetImageReady)).Should(Equal(`False/ImagePullFailed: the target pod is not replaced, because image ` + nextImage +
			` cannot be pulled on the node (ErrImagePull): failed to resolve reference "` + nextImage + `": not found`))
		pull := c.pulls(node, nextImage, pullWaits("ImagePullBackOff", `Back-off pulling image`))
		c.Expect(metav1.IsControlledBy(pull, c.nvmfNode(node))).To(BeTrue())
	}
	c.Consistently(c.message("nopull-1", v1alpha1.ConditionTargetImageReady)).Should(ContainSubstring("not found"), "the cause stays")
	c.Eventually(c.events("NvmfNode", "nopull-1")).Should(ContainElement(HavePrefix("ImagePullFailed - the target pod is not replaced, because image " + nextImage)))
	c.Consistently(func() bool {
		return c.podUID("nopull-1")() == old["nopull-1"].UID && c.podUID("nopull-2")() == old["nopull-2"].UID
	}).Should(BeTrue(), "a pod that serves went before the next one's image was there")

	// The name was wrong; the right one is pulled instead, and then the pods are replaced in turn.
	stop()
	startOperator(t, func(o *settings) { o.TargetImage = "registry.example/weft-target:v3" })
	for _, node := range nodes {
		c.pulls(node, "registry.example/weft-target:v3", pulled)
	}
	c.Eventually(func() int {
		replaced := 0
		for _, node := range nodes {
			if c.podUID(node)() != old[node].UID {
				replaced++
			}
		}
		return replaced
	}).Should(Equal(1))
	for _, node := range nodes {
		c.ends(old[node])
		c.Expect(c.pod(node, old[node].UID).Spec.Containers[0].Image).To(Equal("registry.example/weft-target:v3"))
		c.Expect(c.findPull(node)).NotTo(BeNil(), "the kubelet may drop an image that no pod has")
		c.runs(node)
		c.serve(node)
		c.Eventually(func() *corev1.Pod { return c.findPull(node) }).Should(BeNil())
	}
}

// OnDelete leaves the deletion to the user, who can see that it will do.
func TestWithOnDeleteTheImageIsPulledToo(t *testing.T) {
	c := newCluster(t)
	_, stop := startOperator(t, nil)
	c.spdkTarget("pullondelete", nil)
	c.spdkNode("pullondelete-1", "pullondelete")
	pod := c.runs("pullondelete-1")
	stop()
	startOperator(t, func(o *settings) { o.TargetImage = nextImage })
	failed := c.pulls("pullondelete-1", nextImage, func(s *corev1.PodStatus) {
		s.Phase = corev1.PodFailed
		s.ContainerStatuses = []corev1.ContainerStatus{{Name: manifest.PullContainer, State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ExitCode: 128, Reason: "StartError", Message: "exec format error"},
		}}}
	})
	c.Eventually(c.message("pullondelete-1", v1alpha1.ConditionTargetImageReady)).Should(And(HavePrefix("False/ImageUnusable: the target pod is not replaced, because image "+nextImage+" does not work"), HaveSuffix("(StartError) exec format error")))
	c.Eventually(func() bool {
		next := c.findPull("pullondelete-1")
		return next != nil && next.UID != failed.UID
	}).Should(BeTrue(), "it is tried again")
	c.pulls("pullondelete-1", nextImage, pulled)
	c.Eventually(c.message("pullondelete-1", v1alpha1.ConditionTargetImageReady)).Should(Equal("True/AsExpected: image " + nextImage + " is present on the node"))
	c.Consistently(c.podUID("pullondelete-1")).Should(Equal(pod.UID))
}

// The pod that pulls has no rights on its node: the API server's strictest profile admits it.
func TestThePodThatPullsIsRestricted(t *testing.T) {
	c := newCluster(t)
	restricted := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		GenerateName: "restricted-", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
	}}
	c.Expect(admin.Create(c.ctx, restricted)).To(Succeed()) // it stays: nobody here ends namespaces
	node := &v1alpha1.NvmfNode{ObjectMeta: metav1.ObjectMeta{Name: "restricted-1", UID: "u1"}}
	node.Spec = v1alpha1.NvmfNodeSpec{Target: "restricted", Plan: spdkPlan("restricted")}
	pods := manifest.TargetPods{Namespace: restricted.Name, Image: nextImage}
	c.Expect(admin.Apply(c.ctx, pods.PullPod(node), client.FieldOwner("test"))).To(Succeed())
	target, err := pods.Pod(node)
	c.Expect(err).NotTo(HaveOccurred())
	c.Expect(admin.Apply(c.ctx, target, client.FieldOwner("test"))).To(MatchError(ContainSubstring("violates PodSecurity")), "the profile is in force")
}
