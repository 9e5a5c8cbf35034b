// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/cli"
)

// A real API server notes when it gets a Lease that is renewed, so that it shows the clock of who renews it.
func TestCheckOfACluster(t *testing.T) {
	c := newCluster(t)
	for _, name := range []string{"checked-1", "checked-2", "checked-3"} {
		c.node(name, "checked", capableModules...)
	}
	c.create(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.DriverName, Labels: map[string]string{v1alpha1.VersionLabel: "1.2.0"}}})
	kubelets := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: "checked-1"}}
	kubelets.Spec.HolderIdentity = new("checked-1") // an object that is created empty has no managed fields
	c.create(kubelets)
	kubelets.Spec.RenewTime = new(metav1.NewMicroTime(time.Now().Add(time.Minute)))
	c.Expect(admin.Update(c.ctx, kubelets)).To(Succeed())
	agents := c.lease("checked-2", time.Now().Add(-time.Hour), 40)
	agents.Spec.RenewTime = new(metav1.NewMicroTime(time.Now().Add(-7 * time.Second)))
	c.Expect(admin.Update(c.ctx, agents)).To(Succeed())

	out, code := c.kubectlWeft(nil, "check", "checked-1", "checked-2", "checked-3", "-o", "json")
	c.Expect(code).To(Equal(cli.CodeUnwell), out)
	var got cli.CheckReport
	c.Expect(json.Unmarshal([]byte(out), &got)).To(Succeed())
	c.Expect(got.NotLookedAt).To(BeEmpty())
	c.Expect(got.InstalledVersion).To(Equal("1.2.0"))
	c.Expect(got.Nodes).To(HaveExactElements(
		HaveField("ClockAheadSeconds", HaveValue(BeNumerically("~", 60, 5))),
		HaveField("ClockAheadSeconds", HaveValue(BeNumerically("~", -7, 2))),
		HaveField("ClockAheadSeconds", BeNil())))
	c.Expect(got.Findings).To(ContainElements(
		And(HaveField("Node", "checked-1"), HaveField("Wrong", true), HaveField("Message", MatchRegexp("its clock is .* s ahead of the API server's"))),
		And(HaveField("Node", "checked-2"), HaveField("Wrong", false), HaveField("Message", MatchRegexp("its clock is up to .* s behind the API server's")))))
	c.Expect(got.NotKnown).To(ContainElement(HavePrefix("checked-3: the difference between its clock")))
}
