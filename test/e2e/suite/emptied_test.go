// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// kubectlWeft builds the plugin, and returns what runs it and gives what it prints.
func kubectlWeft(ctx context.Context) func(ctx context.Context, args ...string) (string, error) {
	GinkgoHelper()
	program := filepath.Join(GinkgoT().TempDir(), "kubectl-weft")
	build := exec.CommandContext(ctx, "go", "build", "-o", program, "./operator/cmd/kubectl-weft")
	build.Dir = run.repo
	out, err := build.CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), "%s", out)
	return func(ctx context.Context, args ...string) (string, error) {
		out, err := exec.CommandContext(ctx, program, append(args, "--kubeconfig="+machines.Kubeconfig())...).CombinedOutput()
		return string(out), err
	}
}

// storedOn are the replicas of which a node has the data.
func storedOn(ctx context.Context, node string) []string {
	GinkgoHelper()
	var all v1alpha1.NvmfReplicaList
	Expect(cluster.List(ctx, &all)).To(Succeed())
	var names []string
	for _, r := range all.Items {
		if r.Spec.Node == node {
			names = append(names, r.Name)
		}
	}
	return names
}

var _ = Describe("A storage node with twenty volumes", func() {
	It("is drained while a pod uses ten of them and nobody the other ten, by a command that was interrupted", full, func(ctx SpecContext) {
		const each = 10
		weft := kubectlWeft(ctx)
		target := everywhere(ctx, "emptied")
		newClass(ctx, "weft-emptied", map[string]string{"target": target.Name})
		for _, node := range nodes {
			DeferCleanup(func(ctx context.Context) { Expect(weft(ctx, "uncordon", node)).Error().NotTo(HaveOccurred()) })
		}
		Expect(weft(ctx, "cordon", clientNode)).Error().NotTo(HaveOccurred())
		ns := newNamespace(ctx)
		var claims []*corev1.PersistentVolumeClaim
		var paths []string
		for i := range 2 * each {
			claims = append(claims, newClaim(ctx, ns, fmt.Sprintf("claim-%d", i), "weft-emptied", withSize("32Mi")))
		}
		for i := range each {
			paths = append(paths, pathOf(mountPath, i))
		}
		all, written := strings.Join(paths, " "), strings.Join(paths[:each-1], " ") // nobody writes to the last one
		bound(ctx, claims[2*each-1])
		const write, read = `for d in %s; do echo %s $d >$d/name; done; sync`, `for d in %s; do cat $d/name; done`
		idle := runningWithin(ctx, newPodOf(ctx, "idle", clientNode, claims[each:2*each-1]...), 3*podTime)
		sh(ctx, idle, write, written, "idle")
		names := sh(ctx, idle, read, written)
		remove(ctx, idle)
		writing := runningWithin(ctx, newPodOf(ctx, "writing", clientNode, claims[:each]...), 3*podTime)
		sh(ctx, writing, write, all, "writing")
		acks := startWriter(ctx, writing)
		acks.goOn(ctx, 10, time.Minute)
		Expect(storedOn(ctx, storageNode)).To(HaveLen(2 * each))

		By("draining the node")
		Expect(weft(ctx, "uncordon", clientNode)).Error().NotTo(HaveOccurred())
		out, err := weft(ctx, "drain", storageNode) // requests the first moves and ends, as one that is interrupted
		Expect(err).To(HaveOccurred(), out)
		began := time.Now()
		out, err = weft(ctx, "drain", storageNode, "--wait")
		Expect(err).NotTo(HaveOccurred(), out)
		AddReportEntry("time of the drain", time.Since(began).String())
		Expect(out).To(ContainSubstring("switched off"))
		Expect(storedOn(ctx, storageNode)).To(BeEmpty())
		Expect(storedOn(ctx, clientNode)).To(HaveLen(2 * each))

		By("reading everything")
		acks.goOnNow(ctx)
		acks.nothingLost(ctx, writing)
		on(ctx, clientNode, `sync; echo 3 >/proc/sys/vm/drop_caches`)
		Expect(sh(ctx, writing, read, written)).To(Equal(strings.ReplaceAll(names, "idle", "writing")))
		again := runningWithin(ctx, newPodOf(ctx, "again", storageNode, claims[each:]...), 3*podTime)
		Expect(sh(ctx, again, read, written)).To(Equal(names))
		sh(ctx, again, write, all, "again")
	}, SpecTimeout(40*time.Minute))
})
