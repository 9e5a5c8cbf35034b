// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
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
	patience, quiet, interval = time.Minute, 700 * time.Millisecond, 50 * time.Millisecond
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
		if operatorConfig, err = s.User(ctx, "weft-operator"); err != nil {
			return err
		}
		return confine(ctx, s)
	}))
}

// confine the operator to what the chart's policies allow. Tests change the images.
func confine(ctx context.Context, s *apiserver.Server) error {
	if err := s.Policies(ctx, "weft-operator", "object.spec.containers[0].image"); err != nil {
		return err
	}
	operator, err := client.New(operatorConfig, client.Options{Scheme: s.Admin.Scheme()})
	if err != nil {
		return err
	}
	foreign := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "foreign"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "foreign", Image: targetImage}}},
	}
	return wait.PollUntilContextTimeout(ctx, interval, patience, true, func(ctx context.Context) (bool, error) {
		err := operator.Create(ctx, foreign.DeepCopy(), client.DryRunAll)
		return err != nil && strings.Contains(err.Error(), "weft-operator-pods"), nil
	})
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
