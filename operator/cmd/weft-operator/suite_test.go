// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
)

const (
	namespace   = "weft-system"
	targetImage = "registry.example/weft-target:v1"
	// How long to wait for what must happen, and how long to look at what must not.
	patience, quiet, interval = 20 * time.Second, 700 * time.Millisecond, 50 * time.Millisecond
)

var (
	// admin may do everything; the tests play users, kubelets and agents with it.
	admin client.Client
	// adminConfig is the admin's.
	adminConfig *rest.Config
	// operatorConfig belongs to a user with the operator's generated role and nothing else.
	operatorConfig *rest.Config
)

func TestMain(m *testing.M) {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		fmt.Fprintln(os.Stderr, "KUBEBUILDER_ASSETS is not set: run make test-api, or make envtest and export KUBEBUILDER_ASSETS")
		os.Exit(1)
	}
	code, err := run(context.Background(), m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(code)
}

func run(ctx context.Context, m *testing.M) (code int, err error) {
	ctrl.SetLogger(zap.New(zap.WriteTo(os.Stderr), zap.UseDevMode(true)))
	config := filepath.Join("..", "..", "..", "config")
	env := &envtest.Environment{
		CRDDirectoryPaths:     []string{filepath.Join(config, "crd")},
		ErrorIfCRDPathMissing: true,
	}
	adminConfig, err = env.Start()
	if err != nil {
		return 0, fmt.Errorf("start the API server: %w", err)
	}
	defer func() { err = errors.Join(err, env.Stop()) }()

	scheme, err := newScheme()
	if err != nil {
		return 0, err
	}
	if admin, err = client.New(adminConfig, client.Options{Scheme: scheme}); err != nil {
		return 0, err
	}
	user, err := env.AddUser(envtest.User{Name: "weft-operator"}, nil)
	if err != nil {
		return 0, fmt.Errorf("make the operator's user: %w", err)
	}
	operatorConfig = user.Config()
	if err := admin.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
		return 0, err
	}
	if err := grantRoles(ctx, filepath.Join(config, "rbac", "weft-operator.yaml"), "weft-operator"); err != nil {
		return 0, err
	}
	return m.Run(), nil
}

// grantRoles creates the roles of a generated file and binds the user to each: a missing rule fails a test here,
// not in a cluster.
func grantRoles(ctx context.Context, file, user string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read the operator's roles (make generate writes them): %w", err)
	}
	subjects := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}}
	docs := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096)
	for {
		var role rbacv1.ClusterRole // has all that a Role has
		if err := docs.Decode(&role); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		meta := metav1.ObjectMeta{Name: role.Name, Namespace: role.Namespace}
		ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: role.Kind, Name: role.Name}
		var objects []client.Object
		switch role.Kind {
		case "ClusterRole":
			objects = []client.Object{&role, &rbacv1.ClusterRoleBinding{ObjectMeta: meta, RoleRef: ref, Subjects: subjects}}
		case "Role":
			objects = []client.Object{&rbacv1.Role{ObjectMeta: meta, Rules: role.Rules},
				&rbacv1.RoleBinding{ObjectMeta: meta, RoleRef: ref, Subjects: subjects}}
		default:
			continue
		}
		for _, o := range objects {
			if err := admin.Create(ctx, o); err != nil {
				return fmt.Errorf("create %T %s: %w", o, meta.Name, err)
			}
		}
	}
}

// startOperator runs the operator until the test ends, or until stop is called and returns.
func startOperator(t *testing.T, change func(*settings)) (mgr ctrl.Manager, stop func()) {
	t.Helper()
	options := settings{
		Namespace: namespace, MetricsBindAddress: off, HealthProbeBindAddress: off,
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
