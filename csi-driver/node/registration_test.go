// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// register does what the kubelet does with a socket that it sees.
func register(ctx context.Context, path string, ok bool) (*registerapi.PluginInfo, error) {
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	client := registerapi.NewRegistrationClient(conn)
	info, err := client.GetInfo(ctx, &registerapi.InfoRequest{})
	if err != nil {
		return nil, err
	}
	_, err = client.NotifyRegistrationStatus(ctx, &registerapi.RegistrationStatus{PluginRegistered: ok, Error: "no room"})
	return info, err
}

func TestRegistration(t *testing.T) {
	g := NewWithT(t)
	g.SetDefaultEventuallyTimeout(time.Minute)
	dir, err := os.MkdirTemp("", "weft")
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = os.RemoveAll(dir) }()
	path := registrationPath(dir)
	g.Expect(path).To(Equal(filepath.Join(dir, "plugins_registry/csi.weft.storage-reg.sock")))

	s := newRegistrar("/kubelet/csi.sock")
	g.Expect(s.registered()).To(MatchError(ContainSubstring("has not requested")))
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.run(ctx, path) }()

	g.Eventually(func() error { _, err := register(ctx, path, false); return err }).Should(Succeed())
	g.Expect(s.registered()).To(MatchError(ContainSubstring("no room")))
	info, err := register(ctx, path, true)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(s.registered()).To(Succeed())
	g.Expect(info.GetType()).To(Equal("CSIPlugin"))
	g.Expect(info.GetName()).To(Equal("csi.weft.storage"))
	g.Expect(info.GetEndpoint()).To(Equal("/kubelet/csi.sock"))
	g.Expect(info.GetSupportedVersions()).To(Equal([]string{"1.0.0"}))

	for range 2 {
		g.Expect(os.Remove(path)).To(Succeed())
		g.Eventually(func() error { _, err := register(ctx, path, true); return err }).Should(Succeed())
	}
	stop()
	g.Expect(<-done).To(Succeed())
	_, err = os.Stat(path)
	g.Expect(err).To(MatchError(os.ErrNotExist))
}
