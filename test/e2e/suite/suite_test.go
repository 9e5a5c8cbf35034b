// SPDX-License-Identifier: Apache-2.0

// Package suite is the end-to-end suite: weft, installed by its chart, on the
// lab's cluster. Every part but weft is somebody else's: kernel, kubelet,
// containerd, API server, sidecars.
//
// One cluster serves all tests, one after the other. Volumes of the target
// "fast" lie on the first node's drive; pods run on either node.
package suite

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/weft-storage/weft/test/e2e/harness"
	"github.com/weft-storage/weft/test/e2e/lab"
)

var (
	run      *harness.Run
	cluster  *harness.Cluster
	machines *lab.Lab
	nodes    []string
	// storageNode has the drive of target fast; clientNode does not.
	storageNode, clientNode string
)

func TestEndToEnd(t *testing.T) {
	logf.SetLogger(GinkgoLogr)
	RegisterFailHandler(Fail)
	suiteConfig, reporterConfig := GinkgoConfiguration()
	suiteConfig.Timeout = 85 * time.Minute
	reporterConfig.ShowNodeEvents = false
	RunSpecs(t, "weft end to end", suiteConfig, reporterConfig)
}

var _ = BeforeSuite(func(ctx SpecContext) {
	var err error
	run, err = harness.Start(ctx, GinkgoWriter)
	Expect(err).NotTo(HaveOccurred())
	cluster, machines = run.Cluster, run.Lab
	nodes = machines.Nodes()
	Expect(len(nodes)).To(BeNumerically(">=", 2))
	storageNode, clientNode = nodes[0], nodes[1]
	DeferCleanup(machines.Close)

	By("install the snapshot API")
	Expect(run.SnapshotAPI(ctx)).To(Succeed())
	for _, step := range run.Steps(storageNode) {
		By(step.Name)
		Expect(step.Do(ctx)).To(Succeed())
	}
	newClass(ctx, "weft-fast-xfs", map[string]string{"target": "fast", "csi.storage.k8s.io/fstype": "xfs"})
}, NodeTimeout(30*time.Minute))

// After a failure the logs of every component go to one folder.
var _ = JustAfterEach(func(ctx SpecContext) {
	if run == nil || !CurrentSpecReport().Failed() {
		return
	}
	GinkgoWriter.Println(run.Explain(ctx, nil))
}, NodeTimeout(5*time.Minute))

var _ = AfterSuite(func(ctx context.Context) {
	if cluster != nil {
		nothingLeft(ctx)
	}
})
