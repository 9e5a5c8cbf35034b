// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/gomega"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/weft-storage/weft/csi-driver/internal/server"
	"github.com/weft-storage/weft/csi-driver/node/nodetest"
)

// shortDir is for sockets, whose paths have at most 107 bytes.
func shortDir(t *testing.T) string {
	dir, err := os.MkdirTemp("", "weft")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func TestListenRefuses(t *testing.T) {
	file := filepath.Join(shortDir(t), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for endpoint, words := range map[string]string{
		"tcp://127.0.0.1:1": "unix:// and an absolute path", "unix://csi.sock": "absolute path", "/csi.sock": "unix://",
		"unix://" + file: "not a socket", "unix:///" + strings.Repeat("x", 107): "not be longer than 107 bytes, but has 108",
	} {
		if l, err := server.Listen(t.Context(), endpoint); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v, %v", endpoint, l, err)
		}
	}
}

func TestListenReplacesAStaleSocket(t *testing.T) {
	g := NewWithT(t)
	path := filepath.Join(shortDir(t), "sub", "csi.sock")
	first, err := server.Listen(t.Context(), "unix://"+path)
	g.Expect(err).NotTo(HaveOccurred())
	first.(*net.UnixListener).SetUnlinkOnClose(false) // as a process that was killed
	g.Expect(first.Close()).To(Succeed())
	second, err := server.Listen(t.Context(), "unix://"+path)
	g.Expect(err).NotTo(HaveOccurred())
	info, err := os.Stat(path)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(info.Mode().Perm()).To(Equal(os.FileMode(0o600)))
	g.Expect(second.Close()).To(Succeed())
}

type fake struct {
	csi.UnimplementedNodeServer
	csi.UnimplementedSnapshotMetadataServer
}

func (fake) GetMetadataAllocated(*csi.GetMetadataAllocatedRequest, csi.SnapshotMetadata_GetMetadataAllocatedServer) error {
	panic("in a stream")
}

func (fake) NodeStageVolume(context.Context, *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	return nil, status.Error(codes.Unavailable, "nothing listens")
}

func (fake) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	panic("at the disco")
}

func TestServeLogsFailuresWithoutSecretsAndSurvivesPanics(t *testing.T) {
	g := NewWithT(t)
	calls := server.NewCalls()
	path := filepath.Join(shortDir(t), "csi.sock")
	log := make(chan string, 100)
	logger := funcr.New(func(_, args string) { log <- args }, funcr.Options{Verbosity: 4})
	ctx, stop := context.WithCancel(logr.NewContext(t.Context(), logger))
	listener, err := server.Listen(ctx, "unix://"+path)
	g.Expect(err).NotTo(HaveOccurred())
	done := make(chan error, 1)
	go func() {
		done <- server.Serve(ctx, listener, func(r grpc.ServiceRegistrar) {
			csi.RegisterNodeServer(r, fake{})
			csi.RegisterSnapshotMetadataServer(r, fake{})
		}, calls.Intercept)
	}()
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	g.Expect(err).NotTo(HaveOccurred())
	client := csi.NewNodeClient(conn)

	_, err = client.NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{VolumeId: "pvc-1", Secrets: map[string]string{"key": "hunter2"}})
	g.Expect(status.Code(err)).To(Equal(codes.Unavailable))
	_, err = client.NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{})
	g.Expect(status.Code(err)).To(Equal(codes.Internal))
	g.Expect(err.Error()).NotTo(ContainSubstring("disco"))
	stream, err := csi.NewSnapshotMetadataClient(conn).GetMetadataAllocated(t.Context(), &csi.GetMetadataAllocatedRequest{})
	g.Expect(err).NotTo(HaveOccurred())
	_, err = stream.Recv()
	g.Expect(status.Code(err)).To(Equal(codes.Internal))
	// What is counted is what callers got, also of a call that panicked.
	g.Expect(nodetest.Series(calls)).To(Equal(map[string]float64{
		`weft_csi_call_seconds{code="Unavailable",method="NodeStageVolume"}`: 1, `weft_csi_calls_in_flight{method="NodeStageVolume"}`: 0,
		`weft_csi_call_seconds{code="Internal",method="NodeGetInfo"}`: 1, `weft_csi_calls_in_flight{method="NodeGetInfo"}`: 0,
	}))

	g.Expect(conn.Close()).To(Succeed())
	stop()
	g.Expect(<-done).To(Succeed())
	close(log)
	var all strings.Builder
	for line := range log {
		all.WriteString(line + "\n")
	}
	g.Expect(all.String()).To(ContainSubstring(`"volume"="pvc-1"`))
	g.Expect(all.String()).To(ContainSubstring("nothing listens"))
	g.Expect(all.String()).To(ContainSubstring("stripped"))
	g.Expect(all.String()).NotTo(ContainSubstring("hunter2"))
	g.Expect(all.String()).To(And(ContainSubstring("disco"), ContainSubstring("in a stream")))
	_, err = os.Stat(path)
	g.Expect(err).To(MatchError(os.ErrNotExist))
}

func TestServeHealth(t *testing.T) {
	g := NewWithT(t)
	free, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	g.Expect(err).NotTo(HaveOccurred())
	address := free.Addr().String()
	g.Expect(free.Close()).To(Succeed())
	ctx, stop := context.WithCancel(t.Context())
	ready := make(chan error, 2)
	ready <- errors.New("not yet")
	ready <- nil
	done := make(chan error, 1)
	go func() { done <- server.ServeHealth(ctx, address, func() error { return <-ready }, nil) }()

	get := func(path string) (int, string, error) {
		resp, err := http.Get("http://" + address + path)
		if err != nil {
			return 0, "", err
		}
		body, err := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body), errors.Join(err, resp.Body.Close())
	}
	g.Eventually(func() (int, error) { code, _, err := get("/healthz"); return code, err }).Should(Equal(200))
	code, body, err := get("/readyz")
	g.Expect([]any{code, body, err}).To(Equal([]any{503, "not yet\n", nil}))
	code, _, err = get("/readyz")
	g.Expect([]any{code, err}).To(Equal([]any{200, nil}))
	stop()
	g.Expect(<-done).To(Succeed())
	g.Expect(server.ServeHealth(t.Context(), "0", nil, nil)).To(Succeed())
}
