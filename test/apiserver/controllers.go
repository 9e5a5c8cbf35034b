// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// managerProgram is kube-controller-manager.
const managerProgram = "kube-controller-manager"

// Controllers runs Kubernetes' own controllers of these names, such as disruption-controller, and no others, until the
// test ends.
func (s *Server) Controllers(t testing.TB, names ...string) {
	t.Helper()
	program := filepath.Join(s.Environment.BinaryAssetsDirectory, managerProgram)
	if _, err := os.Stat(program); err != nil {
		t.Fatalf("no controllers of Kubernetes for the test (%v): run make test-api, or make envtest and export KUBEBUILDER_ASSETS", err)
	}
	user, err := s.Environment.AddUser(envtest.User{Name: managerProgram, Groups: []string{"system:masters"}}, nil)
	if err != nil {
		t.Fatalf("make user %s: %v", managerProgram, err)
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if data, err := user.KubeConfig(); err != nil {
		t.Fatal(err)
	} else if err := os.WriteFile(kubeconfig, data, 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	manager := exec.CommandContext(t.Context(), program, "--controllers="+strings.Join(names, ","), "--kubeconfig="+kubeconfig,
		"--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig, "--secure-port=0", "--leader-elect=false")
	manager.Stdout, manager.Stderr = &log, &log
	if err := manager.Start(); err != nil {
		t.Fatalf("start %s: %v", program, err)
	}
	t.Cleanup(func() {
		_ = manager.Wait() // the end of the test killed it
		if t.Failed() {
			t.Logf("%s:\n%s", managerProgram, log.String())
		}
	})
}
