// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
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
		"snapshot-metadata-bind-address": "",
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

// The inventory needs neither an API server nor a name of the node. It opens no drive.
func TestInventoryIsPrinted(t *testing.T) {
	g := NewWithT(t)
	t.Setenv("NODE_NAME", "")
	var out bytes.Buffer
	cmd := command()
	cmd.SetArgs([]string{"inventory"})
	cmd.SetOut(&out)
	g.Expect(cmd.ExecuteContext(t.Context())).To(Succeed())
	var is v1alpha1.Inventory
	g.Expect(json.Unmarshal(out.Bytes(), &is)).To(Succeed(), out.String())
	g.Expect(is.KernelVersion).NotTo(BeEmpty())
	g.Expect(is.NUMANodes).NotTo(BeEmpty())
	g.Expect(is.Drives).To(Or(BeEmpty(), HaveEach(HaveField("Content", v1alpha1.ContentUnknown))))

	cmd.SetArgs([]string{"inventory", "more"})
	g.Expect(cmd.ExecuteContext(t.Context())).NotTo(Succeed())
}

func TestWithoutAnAPIServer(t *testing.T) {
	g := NewWithT(t)
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	_, err := apiServer()
	g.Expect(err).To(MatchError(And(ContainSubstring("set --kubeconfig"), ContainSubstring("KUBERNETES_SERVICE_HOST"))))
}
