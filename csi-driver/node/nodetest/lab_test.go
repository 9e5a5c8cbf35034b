// SPDX-License-Identifier: Apache-2.0

//go:build lab

package nodetest

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"google.golang.org/grpc"
)

var (
	controllerSocket = flag.String("controller", "", "socket of the installed driver's controller")
	nodeSocket       = flag.String("node", "", "socket of the installed driver's node plugin on this machine")
	folder           = flag.String("folder", "", "a folder for mounts, which the node plugin sees too")
	target           = flag.String("target", "", "NvmfTarget of the volumes")
)

// TestInstalled runs csi-sanity on a node of a cluster, against the driver that is installed there: volumes,
// connections, filesystems and mounts are real.
func TestInstalled(t *testing.T) {
	if *controllerSocket == "" || *nodeSocket == "" || *folder == "" || *target == "" {
		t.Fatal("needs -controller, -node, -folder and -target; in the lab, make e2e-storage gives them")
	}
	dir, err := os.MkdirTemp(*folder, "sanity-")
	if err != nil {
		t.Fatal(err)
	}
	// Only what is empty: a volume that a failed test left mounted is not emptied.
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	config := sanity.NewTestConfig()
	config.Address, config.ControllerAddress = "unix://"+*nodeSocket, "unix://"+*controllerSocket
	config.DialOptions = append(config.DialOptions, grpc.WithNoProxy())
	config.ControllerDialOptions = append(config.ControllerDialOptions, grpc.WithNoProxy())
	config.TargetPath, config.StagingPath = filepath.Join(dir, "target"), filepath.Join(dir, "staging")
	// Small: one of the tests makes five volumes with a snapshot of each, which all must find room at once.
	config.TestVolumeSize, config.TestVolumeExpandSize = 64<<20, 96<<20
	config.TestVolumeParameters = map[string]string{"target": *target}
	RunSanity(t, &config)
}
