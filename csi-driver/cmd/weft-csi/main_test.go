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
	// nodeWith arguments besides those that are right.
	nodeWith := func(arguments ...string) error {
		cmd := nodeCommand()
		cmd.SetArgs(append([]string{"--endpoint=" + socket, "--node-name=n", "--kubelet-dir=/k"}, arguments...))
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		return cmd.ExecuteContext(t.Context())
	}
	for says, err := range map[string]error{
		"--node-name is required":               nodeWith("--node-name="),
		"--max-volumes is -1":                   nodeWith("--max-volumes=-1"),
		"--mirror-grace is 4s; must be from 5s": nodeWith("--mirror-grace=4s"),
		"--mirror-grace is 10m0s":               nodeWith("--mirror-grace=10m"),
		"--mirror-copy-kib-per-second is 1000; must be from 1024 to 100000000": nodeWith("--mirror-copy-kib-per-second=1000"),
		"--mirror-copy-kib-per-second is 100000001":                            nodeWith("--mirror-copy-kib-per-second=100000001"),
		`--kubelet-dir is "k"; must be an absolute path`:                       nodeWith("--kubelet-dir=k"),
		`endpoint "tcp://:1": must be unix://`:                                 nodeWith("--endpoint=tcp://:1"),
		`endpoint "/csi.sock": must be unix://`:                                controllerOptions{endpoint: "/csi.sock"}.run(t.Context()),
		"set --kubeconfig":                                                     nodeWith("--mirror-grace=10s", "--mirror-copy-kib-per-second=1000000"),
		"KUBERNETES_SERVICE_HOST":                                              controllerOptions{endpoint: socket}.run(t.Context()),
	} {
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring(says)))
	}
}
