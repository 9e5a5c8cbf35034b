// SPDX-License-Identifier: Apache-2.0

// Package apiserver starts a real API server for tests, which serves weft's kinds.
package apiserver

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

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// Namespace of weft, in which its roles are.
const Namespace = "weft-system"

// Server that runs until it is stopped.
type Server struct {
	// Environment to stop, or to install CRDs again.
	Environment *envtest.Environment
	// Config and Admin are of a user who may do everything, as fast as the server answers. Admin knows the kinds of
	// Kubernetes and of weft.
	Config *rest.Config
	Admin  client.Client
}

// Run starts a server, prepares it, and runs the tests of a package beside it. It gives the code to exit with.
func Run(ctx context.Context, m *testing.M, prepare func(context.Context, *Server) error) (code int) {
	s, err := Start(ctx)
	if s != nil {
		defer func() {
			if err := s.Environment.Stop(); err != nil {
				_, _ = fmt.Fprintln(os.Stderr, "stop the API server:", err)
				code = 1
			}
		}()
	}
	// Each look of an Eventually is a request: gomega's 10 ms would keep the server busy with them.
	gomega.SetDefaultEventuallyPollingInterval(50 * time.Millisecond)
	if err == nil {
		err = prepare(ctx, s)
	}
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// Start a server. What it gives with an error has to be stopped too.
func Start(ctx context.Context) (*Server, error) {
	assets := os.Getenv("KUBEBUILDER_ASSETS")
	if _, err := os.Stat(filepath.Join(assets, "kube-apiserver")); err != nil {
		return nil, fmt.Errorf("no API server for the tests (%w): run make test-api, or make envtest and export KUBEBUILDER_ASSETS", err)
	}
	config, err := configFolder()
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	s := &Server{Environment: &envtest.Environment{
		BinaryAssetsDirectory: assets, CRDDirectoryPaths: []string{filepath.Join(config, "crd")}, ErrorIfCRDPathMissing: true,
		// On a busy machine, the default of ten seconds is not enough until the kinds are served.
		CRDInstallOptions: envtest.CRDInstallOptions{MaxTime: 2 * time.Minute},
	}}
	if s.Config, err = s.Environment.Start(); err != nil {
		return s, fmt.Errorf("start the API server: %w", err)
	}
	s.Config.QPS = -1
	if s.Admin, err = client.New(s.Config, client.Options{Scheme: scheme}); err != nil {
		return s, err
	}
	if err := s.awaitKinds(ctx); err != nil {
		return s, fmt.Errorf("wait until the API server serves weft's kinds: %w", err)
	}
	return s, s.Admin.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: Namespace}})
}

// configFolder of the repository, in which the tests of a package run.
func configFolder() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "config", "crd")); err == nil {
			return filepath.Join(dir, "config"), nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("no folder config/crd above this one")
		}
		dir = up
	}
}

// awaitKinds waits until each kind can be read, and an object stored. Just after a definition was installed, the API
// server may make its storage once more, and a request that meets that is answered after a minute. As long as its
// admission knows no policies, it refuses what it should store.
func (s *Server) awaitKinds(ctx context.Context) error {
	return wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		for _, list := range []client.ObjectList{
			&v1alpha1.NvmfTargetList{}, &v1alpha1.NvmfNodeList{}, &v1alpha1.NvmfVolumeList{}, &v1alpha1.NvmfReplicaList{}, &v1alpha1.NvmfSnapshotList{}, &v1alpha1.NvmfMirrorList{},
		} {
			if s.Admin.List(ctx, list) != nil {
				return false, nil
			}
		}
		return s.Admin.Create(ctx, &v1alpha1.NvmfNode{ObjectMeta: metav1.ObjectMeta{Name: "awaited"}}, client.DryRunAll) == nil, nil
	})
}

// User with the rights that `make generate` gives a part of weft, such as weft-agent, and no others: a missing rule
// fails a test, not a cluster.
func (s *Server) User(ctx context.Context, name string) (*rest.Config, error) {
	// Without QPS of its own a client waits for five requests a second.
	user, err := s.Environment.AddUser(envtest.User{Name: name}, &rest.Config{QPS: -1})
	if err != nil {
		return nil, fmt.Errorf("make user %s: %w", name, err)
	}
	config, err := configFolder()
	if err != nil {
		return nil, err
	}
	return user.Config(), s.grantRoles(ctx, filepath.Join(config, "rbac", name+".yaml"), name)
}

// grantRoles creates the roles of a file, and binds the user to each.
func (s *Server) grantRoles(ctx context.Context, file, user string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read roles (make generate writes them): %w", err)
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
			continue // the licence header is a document without an object
		}
		for _, o := range objects {
			if err := s.Admin.Create(ctx, o); err != nil {
				return fmt.Errorf("create %T %s: %w", o, meta.Name, err)
			}
		}
	}
}
