// SPDX-License-Identifier: Apache-2.0

package nodetest

import (
	"slices"
	"strings"
	"testing"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
	"github.com/onsi/gomega"
)

// notOffered are the only reasons for which a test may be left out: what the driver does not advertise.
var notOffered = []string{
	"GroupControllerService not supported", "Group Controller Service not provided", "GroupController Service not provided",
	"CreateVolumeGroupSnapshot not supported", "GetVolumeGroupSnapshot not supported", "DeleteVolumeGroupSnapshot not supported",
	"ControllerPublishVolume.readonly field not supported", "SNAPSHOT_ACCESSIBILITY_CONSTRAINTS not supported",
	"NodeGetStorageHealth not supported",
	// In Kubernetes it is the scheduler that counts a node's volumes.
	"testnodevolumeattachlimit not enabled",
}

// RunSanity runs all of csi-sanity, and fails where a test was left out for another reason than that the driver does
// not advertise what it tests. Ginkgo, which runs it, runs once in a process.
func RunSanity(t *testing.T, config *sanity.TestConfig) {
	t.Helper()
	suite := sanity.GinkgoTest(config)
	var report types.Report
	ginkgo.ReportAfterSuite("what was left out", func(r types.Report) { report = r })
	gomega.RegisterFailHandler(ginkgo.Fail)
	suiteConfig, reporter := ginkgo.GinkgoConfiguration()
	reporter.Succinct = !reporter.Verbose
	ginkgo.RunSpecs(t, "csi-sanity", suiteConfig, reporter)
	suite.Finalize()
	checkSkips(t, report)
}

func checkSkips(t *testing.T, r types.Report) {
	t.Helper()
	counts := map[types.SpecState]int{}
	for _, spec := range r.SpecReports {
		if spec.LeafNodeType != types.NodeTypeIt {
			continue
		}
		counts[spec.State]++
		fits := func(reason string) bool { return strings.Contains(spec.Failure.Message, reason) }
		// What is pending is so for all drivers.
		if spec.State == types.SpecStateSkipped && !slices.ContainsFunc(notOffered, fits) {
			t.Errorf("left out: %s: %s", spec.FullText(), spec.Failure.Message)
		}
	}
	t.Logf("csi-sanity: %d passed, %d failed, %d not offered", counts[types.SpecStatePassed], counts[types.SpecStateFailed], counts[types.SpecStateSkipped])
}
