// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
	. "github.com/onsi/gomega"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/weft-storage/weft/test/e2e/lab"
)

// One cluster serves all specs, one after the other. Volumes of the target "fast" lie on the first node's drive; pods
// run on either node.
var (
	run      *Run
	cluster  *Cluster
	machines *lab.Lab
	nodes    []string
	// storageNode has the drive of target fast; clientNode does not.
	storageNode, clientNode string
)

// full marks the specs that make test leaves out, because a cheaper test shows most of what they show; make test-all
// runs them. specs.md and faults.md have the tables.
var full = Label("full")

// thirdNode marks the specs that need a lab of three nodes, which make test-e2e-third starts.
var thirdNode = Label("third-node")

// secondCluster marks the specs that end the suite's cluster and go on in another one, so that no others run with them:
// make test-second-cluster does.
var secondCluster = Label("second-cluster")

func TestEndToEnd(t *testing.T) {
	logf.SetLogger(GinkgoLogr)
	RegisterFailHandler(Fail)
	suiteConfig, reporterConfig := GinkgoConfiguration()
	suiteConfig.Timeout = 350 * time.Minute // all specs of the full tier take three to four hours
	reporterConfig.ShowNodeEvents = false
	RunSpecs(t, "weft end to end", suiteConfig, reporterConfig)
}

// Each spec is told once more as go test tells of a subtest, which weft-lab parts counts.
var _ = ReportAfterSuite("times", func(report Report) {
	if report.SuiteConfig.DryRun {
		return
	}
	for _, spec := range report.SpecReports.WithLeafNodeType(types.NodeTypeIt | types.NodeTypeBeforeSuite) {
		outcome := "FAIL"
		switch spec.State { //nolint:exhaustive // all others are failures
		case types.SpecStatePassed:
			outcome = "PASS"
		case types.SpecStateSkipped:
			continue // not chosen
		}
		name := cmp.Or(spec.FullText(), spec.LeafNodeType.String())
		_, _ = fmt.Fprintf(os.Stdout, "    --- %s: TestEndToEnd/%s (%.2fs)\n", outcome, name, spec.RunTime.Seconds())
	}
})

// TestTheTablesHaveEverySpec holds specs.md and faults.md against the specs: each has a row, with the tier that it is
// in.
func TestTheTablesHaveEverySpec(t *testing.T) {
	rows := map[string]string{}
	for _, page := range []string{"specs.md", "faults.md"} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if cells := strings.Split(line, " | "); len(cells) == 4 && strings.HasPrefix(cells[0], "| ") {
				rows[strings.TrimPrefix(cells[0], "| ")] = strings.TrimSpace(cells[2])
			}
		}
	}
	delete(rows, "Spec") // the names of the columns
	delete(rows, "---")
	for _, spec := range PreviewSpecs("weft end to end").SpecReports.WithLeafNodeType(types.NodeTypeIt) {
		tier := "fast"
		if slices.Contains(spec.Labels(), "full") {
			tier = "full"
		}
		if slices.Contains(spec.Labels(), "third-node") {
			tier += ", third node"
		}
		if slices.Contains(spec.Labels(), "second-cluster") {
			tier += ", second cluster"
		}
		if have := rows[spec.FullText()]; have != tier {
			t.Errorf("specs.md and faults.md have tier %q for the spec %q; it is %s", have, spec.FullText(), tier)
		}
		delete(rows, spec.FullText())
	}
	for row := range rows {
		t.Errorf("there is no spec %q", row)
	}
}

// use a lab that was started, from now on.
func use(started *Run) {
	GinkgoHelper()
	run, cluster, machines = started, started.Cluster, started.Lab
	DeferCleanup(machines.Close)
	nodes = machines.Nodes()
	Expect(len(nodes)).To(BeNumerically(">=", 2))
	storageNode, clientNode = nodes[0], nodes[1]
}

var _ = BeforeSuite(func(ctx SpecContext) {
	started, err := Start(ctx, GinkgoWriter)
	Expect(err).NotTo(HaveOccurred())
	use(started)

	By("install the snapshot API")
	Expect(run.SnapshotAPI(ctx)).To(Succeed())
	for _, step := range run.Steps(storageNode) {
		By(step.Name)
		Expect(step.Do(ctx)).To(Succeed())
	}
	Expect(run.TellStarts(ctx)).To(Succeed())
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
		noSecrets(ctx)
		nothingLeft(ctx)
	}
})
