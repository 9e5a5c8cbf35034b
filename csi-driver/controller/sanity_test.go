// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilexec "k8s.io/utils/exec"

	"github.com/weft-storage/weft/csi-driver/internal/server"
	"github.com/weft-storage/weft/csi-driver/node"
	"github.com/weft-storage/weft/csi-driver/node/nodetest"
)

var sanityRan sync.Once

// TestSanity runs csi-sanity on controller and node service together: a real API server, agents on engines in memory, a
// constructed kernel, and the machine's own filesystem programs.
func TestSanity(t *testing.T) {
	sanityRan.Do(func() { runSanity(t) }) // Ginkgo runs once in a process
}

func runSanity(t *testing.T) {
	st := newStorageOf(t, onSPDK, 2, 1000*gi)
	s, _ := newService(t)
	seen(t, s, st)
	host := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: own(t, "host")}}
	create(t, host)
	dir, err := os.MkdirTemp("", "weft") // a socket's path has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	nodeService := newNodeService(t, st, dir, host)
	endpoint := "unix://" + dir + "/csi.sock"
	serveAll(t, endpoint, s, nodeService)

	config := sanity.NewTestConfig()
	config.Address, config.DialOptions = endpoint, append(config.DialOptions, grpc.WithNoProxy())
	config.TargetPath, config.StagingPath = filepath.Join(dir, "target"), filepath.Join(dir, "staging")
	config.TestVolumeSize, config.TestVolumeExpandSize = gi, 2*gi
	config.TestVolumeParameters = map[string]string{"target": st.target}
	config.TestVolumeMutableParameters = map[string]string{"iops": "2000"}
	nodetest.RunSanity(t, &config)
}

// newNodeService on a kernel that sees what the storage nodes serve.
func newNodeService(t *testing.T, st storage, dir string, host *corev1.Node) *node.Service {
	t.Helper()
	kernel, err := nodetest.NewKernel(filepath.Join(dir, "root"))
	if err != nil {
		t.Fatal(err)
	}
	mounter, err := nodetest.NewMounter(kernel)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range st.nodes {
		agents[name].OnServe(func(served nodetest.Subsystem) {
			if err := kernel.Serve(served); err != nil {
				t.Error(err)
			}
		})
		t.Cleanup(func() { agents[name].OnServe(nil) })
	}
	return nodetest.NewService(nodetest.Config{
		Node: host.Name, UID: string(host.UID), Root: kernel.Root, Records: filepath.Join(dir, "staged"), Kernel: kernel, Mounter: mounter,
		DeviceMapper: kernel.DeviceMapper(), Mirrors: kernel.Mirrors(), Programs: nodetest.Programs{Interface: utilexec.New(), Kernel: kernel}, Volumes: api,
	})
}

// serveAll serves the driver's three services on one socket.
func serveAll(t *testing.T, endpoint string, s *Service, n *node.Service) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	listener, err := server.Listen(ctx, endpoint)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		ended <- server.Serve(ctx, listener, func(r grpc.ServiceRegistrar) {
			csi.RegisterIdentityServer(r, &server.Identity{Version: "1.2.3", Ready: s.Synced})
			csi.RegisterControllerServer(r, s)
			csi.RegisterNodeServer(r, n)
		})
	}()
	t.Cleanup(func() {
		stop()
		path, err := server.SocketPath(endpoint)
		if err := errors.Join(<-ended, n.Wait(context.Background()), err, os.RemoveAll(filepath.Dir(path))); err != nil {
			t.Error(err)
		}
	})
}
