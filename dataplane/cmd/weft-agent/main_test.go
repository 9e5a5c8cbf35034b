// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine/nvmet"
	"github.com/weft-storage/weft/dataplane/engine/spdk"
)

func TestFlags(t *testing.T) {
	g := NewWithT(t)
	t.Setenv("NODE_NAME", "storage-1")
	t.Setenv("POD_NAMESPACE", "weft-system")
	flags := command().Flags()
	for name, value := range map[string]string{
		"node-name": "storage-1", "namespace": "weft-system", "state-dir": "/var/lib/weft", "spdk-socket": "/run/weft/spdk.sock",
		"health-probe-bind-address": "127.0.0.1:9810", "metrics-bind-address": "", "metrics-cert-dir": "",
	} {
		g.Expect(flags.Lookup(name)).NotTo(BeNil(), name)
		g.Expect(flags.Lookup(name).DefValue).To(Equal(value), name)
	}
}

func TestEngines(t *testing.T) {
	g := NewWithT(t)
	choose, err := engines(t.TempDir(), "/run/weft/spdk.sock")
	g.Expect(err).NotTo(HaveOccurred())
	kernel, err := choose(v1alpha1.EngineNvmet)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(kernel).To(BeAssignableToTypeOf(&nvmet.Engine{}))
	again, err := choose(v1alpha1.EngineNvmet)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(again).To(BeIdenticalTo(kernel), "its calls run alone")
	userSpace, err := choose(v1alpha1.EngineSPDK)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(userSpace).To(BeAssignableToTypeOf(&spdk.Engine{}))
	_, err = choose("Other")
	g.Expect(err).To(MatchError("engine Other is not supported by this version; use engine: SPDK or Nvmet"))
}

func TestPathsAreAbsolute(t *testing.T) {
	for flag, example := range map[string]string{"--state-dir": "/var/lib/weft", "--spdk-socket": "/run/weft/spdk.sock"} {
		t.Run(flag, func(t *testing.T) {
			g := NewWithT(t)
			cmd := command()
			cmd.SetArgs([]string{flag + "=relative"})
			g.Expect(cmd.ExecuteContext(t.Context())).To(MatchError(And(HavePrefix(flag+" is \"relative\""), ContainSubstring(example))))
		})
	}
}

func TestWithoutAnAPIServer(t *testing.T) {
	g := NewWithT(t)
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	_, err := apiServer()
	g.Expect(err).To(MatchError(And(ContainSubstring("set --kubeconfig"), ContainSubstring("KUBERNETES_SERVICE_HOST"))))
}
