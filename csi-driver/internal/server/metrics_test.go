// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"net"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// Another process of the host can have the port: volumes go on without metrics. What is no address is an error at once.
func TestMetricsWhoseAddressIsTaken(t *testing.T) {
	taken, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var said string
	ctx = klog.NewContext(ctx, funcr.New(func(_, args string) {
		said += args
		cancel() // it would be tried again
	}, funcr.Options{}))
	if err := ServeMetrics(ctx, &rest.Config{Host: "127.0.0.1:1"}, taken.Addr().String()); err != nil {
		t.Errorf("it ends with %v", err)
	}
	if !strings.Contains(said, "address already in use") {
		t.Errorf("it says %q", said)
	}
	if err := ServeMetrics(t.Context(), &rest.Config{Host: "127.0.0.1:1"}, "127.0.0.1"); err == nil {
		t.Error("an address without a port is taken")
	}
}
