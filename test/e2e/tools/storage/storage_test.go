// SPDX-License-Identifier: Apache-2.0

// Package storage is Kubernetes' end-to-end suite for external storage drivers, without the rest of its suite: the specs
// come from the file that the flag -storage.testdriver names.
package storage

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	"k8s.io/component-base/logs"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/test/e2e/framework"
	"k8s.io/kubernetes/test/e2e/framework/config"
	e2enode "k8s.io/kubernetes/test/e2e/framework/node"
	"k8s.io/kubernetes/test/e2e/framework/testfiles"
	testingmanifests "k8s.io/kubernetes/test/e2e/testing-manifests"
	imageutils "k8s.io/kubernetes/test/utils/image"

	// The specs, and the parts of the framework that register themselves.
	_ "k8s.io/component-base/logs/testinit"
	_ "k8s.io/kubernetes/test/e2e/feature"
	_ "k8s.io/kubernetes/test/e2e/framework/debug/init"
	_ "k8s.io/kubernetes/test/e2e/framework/node/init"
	_ "k8s.io/kubernetes/test/e2e/storage/external"
	_ "k8s.io/kubernetes/test/utils/format"
)

func TestMain(m *testing.M) {
	images := flag.Bool("images", false, "print the names of the images that the specs use, and end")
	config.CopyFlags(config.Flags, flag.CommandLine)
	framework.RegisterCommonFlags(flag.CommandLine)
	framework.RegisterClusterFlags(flag.CommandLine)
	flag.Parse()
	if *images {
		for _, id := range []imageutils.ImageID{imageutils.Agnhost, imageutils.BusyBox, imageutils.Nginx, imageutils.GlibcDnsTesting} {
			fmt.Println(imageutils.GetE2EImage(id))
		}
		return
	}
	testfiles.AddFileSource(testingmanifests.GetE2ETestingManifestsFS())
	framework.AfterReadingAllFlags(&framework.TestContext)
	testfiles.AddFileSource(testfiles.RootFileSource{Root: framework.TestContext.RepoRoot})
	os.Exit(m.Run())
}

func TestStorage(t *testing.T) {
	logs.InitLogs()
	defer logs.FlushLogs()
	klog.EnableContextualLogging(true)
	gomega.RegisterFailHandler(framework.Fail)
	suiteConfig, reporterConfig := framework.CreateGinkgoConfig()
	suiteConfig.FocusStrings = external(suiteConfig.FocusStrings)
	ginkgo.RunSpecs(t, "Kubernetes storage", suiteConfig, reporterConfig)
}

// external narrows regular expressions to the specs of external drivers: some of the suite's other specs are linked in,
// because parts of them are used here.
func external(focus []string) []string {
	const prefix = "External Storage "
	if len(focus) == 0 {
		return []string{prefix}
	}
	var out []string
	for _, f := range focus {
		out = append(out, prefix+".*(?:"+f+")")
	}
	return out
}

var _ = ginkgo.BeforeSuite(func(ctx context.Context) {
	framework.TestContext.IPFamily = "ipv4"
	c, err := framework.LoadClientset()
	framework.ExpectNoError(err)
	framework.ExpectNoError(e2enode.WaitForAllNodesSchedulable(ctx, c, framework.NewTimeoutContext().NodeSchedulable))
	nodes, err := e2enode.GetReadySchedulableNodes(ctx, c)
	framework.ExpectNoError(err)
	framework.TestContext.CloudConfig.NumNodes = len(nodes.Items)
})
