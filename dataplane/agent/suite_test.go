// SPDX-License-Identifier: Apache-2.0

//go:build !lab

package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"github.com/weft-storage/weft/api/v1alpha1"
)

const testNamespace = "weft-system"

// server is the API server of all tests that need one; it starts with the first.
type server struct {
	env *envtest.Environment
	// admin may do everything; the tests play users, the operator and the CSI controller with it.
	admin client.Client
	// agentConfig belongs to a user with the agent's generated role and nothing else.
	agentConfig *rest.Config
	scheme      *runtime.Scheme
}

var (
	theServer *server
	startOnce sync.Once
	errStart  error
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(zap.New(zap.WriteTo(os.Stderr), zap.UseDevMode(true)))
	code := m.Run()
	if theServer != nil {
		if err := theServer.env.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stopping the API server:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// apiServer is a real API server with the CRDs and the agent's role.
func apiServer(t *testing.T) *server {
	t.Helper()
	startOnce.Do(func() { theServer, errStart = startServer() })
	if errStart != nil {
		t.Fatal(errStart)
	}
	return theServer
}

func startServer() (*server, error) {
	assets := os.Getenv("KUBEBUILDER_ASSETS")
	if assets == "" {
		return nil, errors.New("this test needs a real API server: run make test-api, or make envtest and export KUBEBUILDER_ASSETS")
	}
	config := filepath.Join("..", "..", "config")
	s := &server{
		env:    &envtest.Environment{BinaryAssetsDirectory: assets, CRDDirectoryPaths: []string{filepath.Join(config, "crd")}, ErrorIfCRDPathMissing: true},
		scheme: runtime.NewScheme(),
	}
	if err := errors.Join(clientgoscheme.AddToScheme(s.scheme), v1alpha1.AddToScheme(s.scheme)); err != nil {
		return nil, err
	}
	adminConfig, err := s.env.Start()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("starting the API server: %w", err), s.env.Stop())
	}
	adminConfig.QPS = -1
	if s.admin, err = client.New(adminConfig, client.Options{Scheme: s.scheme}); err != nil {
		return s, err
	}
	if err := s.awaitKinds(); err != nil {
		return s, fmt.Errorf("waiting for the API server to serve weft's kinds: %w", err)
	}
	user, err := s.env.AddUser(envtest.User{Name: "weft-agent"}, nil)
	if err != nil {
		return s, fmt.Errorf("making the agent's user: %w", err)
	}
	s.agentConfig = user.Config()
	s.agentConfig.QPS = -1
	if err := s.admin.Create(context.Background(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: testNamespace}}); err != nil {
		return s, err
	}
	return s, s.grantRoles(filepath.Join(config, "rbac", "weft-agent.yaml"), "weft-agent")
}

// awaitKinds: just after a definition was installed the API server may make its storage once more, and a request that
// meets that is answered after a minute.
func (s *server) awaitKinds() error {
	return wait.PollUntilContextTimeout(context.Background(), 50*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		for _, list := range []client.ObjectList{&v1alpha1.NvmfTargetList{}, &v1alpha1.NvmfNodeList{}, &v1alpha1.NvmfVolumeList{}, &v1alpha1.NvmfSnapshotList{}} {
			if s.admin.List(ctx, list) != nil {
				return false, nil
			}
		}
		return true, nil
	})
}

// grantRoles creates the roles of a generated file and binds the user to each, so that a missing
// rule fails here and not in a cluster.
func (s *server) grantRoles(file, user string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("reading the agent's roles (make generate writes them): %w", err)
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
		if role.Kind == "" {
			continue // the licence header is a document without an object
		}
		ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: role.Kind, Name: role.Name}
		objects := []client.Object{&role, &rbacv1.ClusterRoleBinding{ObjectMeta: meta, RoleRef: ref, Subjects: subjects}}
		if role.Kind == "Role" {
			objects = []client.Object{&rbacv1.Role{ObjectMeta: meta, Rules: role.Rules}, &rbacv1.RoleBinding{ObjectMeta: meta, RoleRef: ref, Subjects: subjects}}
		}
		for _, o := range objects {
			if err := s.admin.Create(context.Background(), o); err != nil {
				return fmt.Errorf("creating %T %s: %w", o, meta.Name, err)
			}
		}
	}
}
