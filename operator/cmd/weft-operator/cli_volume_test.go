// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/cli"
)

// The commands that show something ask a real API server for what it can answer.
func TestVolumesAreShown(t *testing.T) {
	c := newCluster(t)
	const session = "00000000-0000-4000-8000-0000000000c1"
	c.target("shown", "shown")
	c.readyNode("shown-1", "shown", "9Gi")
	volume := c.volume("shown-v", "shown", "shown-1")
	c.claimOf(volume.Name)
	volume.Spec.Session = session
	volume.Spec.Attachments = []v1alpha1.VolumeHost{{NQN: v1alpha1.HostNQN(session), Node: "worker", NodeUID: "1"}}
	c.Expect(admin.Update(c.ctx, volume)).To(Succeed())
	replica := c.replica("shown-v", "shown", "shown-1")
	replica.Status.Device = "eui.shown-1"
	c.Expect(admin.Status().Update(c.ctx, replica)).To(Succeed())
	c.create(&corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: "default", Name: "shown"},
		InvolvedObject: corev1.ObjectReference{Kind: "NvmfVolume", Name: volume.Name, Namespace: "default", UID: volume.UID}, Reason: "Shown", Message: "what happened", Type: corev1.EventTypeNormal,
	})
	shows := func(code int, args []string, want ...string) {
		t.Helper()
		out, got := c.kubectlWeft(nil, args...)
		c.Expect(got).To(Equal(code), out)
		for _, w := range want {
			c.Expect(out).To(ContainSubstring(w))
		}
	}
	// The agents, the Nodes and the pods are not there, which is told.
	whole := []string{"default/shown-v", "eui.shown-1", "NvmfVolume/shown-v   what happened", "node worker: the Kubernetes Node does not exist"}
	shows(cli.CodeUnwell, []string{"volume", "shown-v", "-n", "default"}, whole...)
	shows(cli.CodeUnwell, []string{"volume", v1alpha1.SubsystemNQN("shown-v-0", session)}, whole...)
	shows(cli.CodeUnwell, []string{"volume", "shown-v", "-n", "default", "-o", "json"}, `"name": "shown-v-0"`, `"reason": "Shown"`)
	shows(0, []string{"volumes", "shown-1"}, "default/shown-v   1.0Gi")
	shows(0, []string{"pools", "shown-1"}, "eui.shown-1", "90 %", "default/shown-v")
	shows(0, []string{"drives", "shown-1"}, "eui.shown-1", "Ready", "default/shown-v")
	shows(0, []string{"snapshots", "shown-1"}, "No snapshots found.")
	file := filepath.Join(t.TempDir(), "report.tar.gz")
	shows(0, []string{"report", "-o", file}, "wrote "+file+"\n3 parts could not be collected") // the check, the values and the logs: neither Nodes nor the chart nor pods of weft are there
}
