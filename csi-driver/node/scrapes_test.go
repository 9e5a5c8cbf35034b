// SPDX-License-Identifier: Apache-2.0

//go:build !lab

package node_test

import (
	"errors"
	"fmt"
	"os"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/csi-driver/node/nodetest"
)

// The tests of kubectl weft top have two scrapes of a node plugin, 10 seconds apart. They are what a node plugin
// serves.
func TestScrapesForTheCommandLine(t *testing.T) {
	g, s := NewWithT(t), setUp(t)
	s.named()
	s.overBoth()
	must(t, s.stage(mountCapability("ext4")))
	m, log := s.metricsOf()
	for i, line := range []string{
		"1000 0  8000 1000 2000 0 16000  4000 3 2500  5000 0 0 0 0 0 0",
		"5000 0 40000 1800 4000 0 32000 10000 4 9000 11800 0 0 0 0 0 0",
	} {
		must(t, s.kernel.SetStatistics(s.top().Name, line))
		must(t, s.kernel.SetStatistics("nvme0c1n1", line))
		text, err := os.Open(fmt.Sprintf("../../operator/internal/cli/testdata/top/node-plugin-%d.prom", i+1))
		must(t, err)
		want, err := nodetest.SeriesIn(text)
		must(t, errors.Join(err, text.Close()))
		g.Expect(scrape(t, m, "")).To(Equal(want), text.Name())
	}
	g.Expect(log.String()).To(BeEmpty())
}
