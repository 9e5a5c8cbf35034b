// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// Others wrote these to judge any storage driver. make e2e-storage runs all of them that apply, and csi-sanity.
var _ = Describe("Others' tests", func() {
	It("of Kubernetes' storage suite pass: data in a raw block volume, and in a filesystem's snapshot", full, func(ctx SpecContext) {
		results, err := run.StorageSpecs(ctx, GinkgoWriter, Specs{
			Focus: `Dynamic PV \(block volmode\)\] volumes should store data|` +
				`Dynamic PV \(default fs\)\] provisioning should provision storage with snapshot data source \[`,
			Procs: 2, Timeout: 15 * time.Minute,
		})
		Expect(err).NotTo(HaveOccurred())
		Expect(results.Passed).To(HaveLen(2))
		Expect(results.LeftOut).To(BeEmpty())
	}, SpecTimeout(25*time.Minute))
})
