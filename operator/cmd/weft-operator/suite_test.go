// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"github.com/weft-storage/weft/test/apiserver"
)

const (
	namespace   = apiserver.Namespace
	targetImage = "registry.example/weft-target:v1"
	// operatorVersion of the operators that tests start.
	operatorVersion = "1.2.0"
	// How long to wait for what must happen, and how long to look at what must not.
	patience, quiet, interval = 20 * time.Second, 700 * time.Millisecond, 50 * time.Millisecond
)

var (
	// server that all tests share.
	server *apiserver.Server
	// admin may do everything; the tests play users, kubelets and agents with it.
	admin client.Client
	// adminConfig is the admin's.
	adminConfig *rest.Config
	// operatorConfig belongs to a user with the operator's generated role and nothing else.
	operatorConfig *rest.Config
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(zap.New(zap.WriteTo(os.Stderr), zap.UseDevMode(true)))
	os.Exit(apiserver.Run(context.Background(), m, func(ctx context.Context, s *apiserver.Server) (err error) {
		server, adminConfig, admin = s, s.Config, s.Admin
		operatorConfig, err = s.User(ctx, "weft-operator")
		return err
	}))
}

// startOperator runs the operator until the test ends, or until stop is called and returns.
func startOperator(t *testing.T, change func(*settings)) (mgr ctrl.Manager, stop func()) {
	t.Helper()
	options := settings{
		Version: operatorVersion, Namespace: namespace, MetricsBindAddress: off, HealthProbeBindAddress: off,
		WebhookBindAddress: off, AllowSeveral: true, TargetImage: targetImage,
	}
	if change != nil {
		change(&options)
	}
	ctx, cancel := context.WithCancel(t.Context())
	mgr, err := newManager(ctx, rest.CopyConfig(operatorConfig), options)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the operator ended with: %v", err)
		}
	}
	t.Cleanup(stop)
	return mgr, stop
}
