// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
)

func TestWrongOptions(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	const socket = "unix:///csi/csi.sock"
	for says, err := range map[string]error{
		"--node-name is required":                        nodeOptions{Endpoint: socket, KubeletDir: "/k"}.run(t.Context()),
		"--max-volumes is -1":                            nodeOptions{Endpoint: socket, KubeletDir: "/k", NodeName: "n", MaxVolumes: -1}.run(t.Context()),
		`--kubelet-dir is "k"; must be an absolute path`: nodeOptions{Endpoint: socket, KubeletDir: "k", NodeName: "n"}.run(t.Context()),
		`endpoint "tcp://:1": must be unix://`:           nodeOptions{Endpoint: "tcp://:1", KubeletDir: "/k", NodeName: "n"}.run(t.Context()),
		`endpoint "/csi.sock": must be unix://`:          controllerOptions{endpoint: "/csi.sock"}.run(t.Context()),
		"set --kubeconfig":                               nodeOptions{Endpoint: socket, KubeletDir: "/k", NodeName: "n"}.run(t.Context()),
		"KUBERNETES_SERVICE_HOST":                        controllerOptions{endpoint: socket}.run(t.Context()),
	} {
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring(says)))
	}
}
