// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/claim"
	"github.com/weft-storage/weft/operator/internal/cli"
)

// kubeconfig writes that of a user with a client certificate, and returns its path.
func (c *cluster) kubeconfig(of *rest.Config) string {
	c.t.Helper()
	file := filepath.Join(c.t.TempDir(), "kubeconfig")
	c.Expect(clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"c": {Server: of.Host, CertificateAuthorityData: of.CAData}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"u": {ClientCertificateData: of.CertData, ClientKeyData: of.KeyData}},
		Contexts:       map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}},
		CurrentContext: "x",
	}, file)).To(Succeed())
	return file
}

// kubectlWeft runs the program against the API server as its admin; a target is its standard input.
func (c *cluster) kubectlWeft(target *v1alpha1.NvmfTarget, args ...string) (out string, code int) {
	c.t.Helper()
	return c.kubectlWeftAs(adminConfig, os.Stderr, target, args...)
}

// kubectlWeftAs a user. What else it says goes to stderr.
func (c *cluster) kubectlWeftAs(user *rest.Config, stderr io.Writer, target *v1alpha1.NvmfTarget, args ...string) (out string, code int) {
	c.t.Helper()
	cmd := cli.Command("test")
	var stdout bytes.Buffer
	cmd.SetOut(&stdout)
	cmd.SetErr(stderr)
	cmd.SetArgs(append(args, "--kubeconfig", c.kubeconfig(user)))
	if target != nil {
		target.TypeMeta = metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NvmfTarget"}
		text, err := yaml.Marshal(map[string]any{"apiVersion": target.APIVersion, "kind": target.Kind, "metadata": map[string]any{"name": target.Name}, "spec": target.Spec})
		c.Expect(err).NotTo(HaveOccurred())
		cmd.SetIn(bytes.NewReader(text))
	}
	err := cmd.ExecuteContext(c.ctx)
	var exit *cli.ExitError
	if errors.As(err, &exit) {
		return stdout.String(), exit.Code
	}
	if err != nil {
		return err.Error(), cli.CodeError
	}
	return stdout.String(), 0
}

// kubectl weft plan says beforehand what the operator then does.
func TestPlanIsWhatTheOperatorDoes(t *testing.T) {
	c := newCluster(t)
	c.node("cli-1", "cli", capableModules...)
	c.node("cli-2", "cli", "nvmet")
	c.node("cli-3", "elsewhere", capableModules...)

	out, code := c.kubectlWeft(newTarget("cli", "cli"), "plan", "-f", "-", "-o", "json")
	c.Expect(code).To(Equal(cli.CodeCannotHold), out)
	var foretold cli.Answers
	c.Expect(json.Unmarshal([]byte(out), &foretold)).To(Succeed())
	c.Expect(foretold.Plans).To(HaveExactElements(
		And(HaveField("Node", "cli-1"), HaveField("Verdict", claim.Fits)),
		And(HaveField("Node", "cli-2"), HaveField("Verdict", claim.CannotHold))))

	volumes := filepath.Join(t.TempDir(), "volumes.yaml")
	c.Expect(os.WriteFile(volumes, []byte("count: 2\nsize: 16Mi\n---\nsize: 16Mi\nreplicas: 2\n"), 0o600)).To(Succeed())
	out, code = c.kubectlWeft(newTarget("cli", "cli"), "plan", "-f", "-", "--volumes", volumes, "-o", "json")
	c.Expect(code).To(Equal(cli.CodeCannotHold), out)
	var counted cli.Answers
	c.Expect(json.Unmarshal([]byte(out), &counted)).To(Succeed())
	c.Expect(counted.Volumes).To(HaveExactElements(And(HaveField("Verdict", claim.CannotHold),
		HaveField("Nodes", HaveExactElements(And(HaveField("Node", "cli-1"), HaveField("Figures.Replicas", int64(3))))),
		HaveField("Reasons", HaveExactElements(HaveField("Message", ContainSubstring("only 1 node can store such volumes")))),
	)))

	out, code = c.kubectlWeft(newTarget("cli", "cli"), "plan", "-f", "-", "--node", "cli-3")
	c.Expect(code).To(BeZero(), out)
	c.Expect(out).To(ContainSubstring("on node cli-3: fits (but its nodeSelector does not match the node)"))

	startOperator(t, nil)
	c.target("cli", "cli")
	c.Eventually(c.claimant("cli-1")).Should(Equal("cli"))
	c.Expect(c.nvmfNode("cli-1").Spec.Plan).To(BeComparableTo(foretold.Plans[0].Plan))
	c.Eventually(func() []v1alpha1.NotCapableNode { return c.nvmfTarget("cli").Status.NotCapable }).Should(HaveLen(1))
	for _, r := range foretold.Plans[1].Reasons {
		c.Expect(c.nvmfTarget("cli").Status.NotCapable[0].Message).To(ContainSubstring(r.Message))
	}

	// Now the node is taken, and what is there can only be changed as the API server allows.
	out, code = c.kubectlWeft(newTarget("cli-late", "cli"), "plan", "-f", "-", "--node", "cli-1")
	c.Expect(code).To(Equal(cli.CodeCannotHold), out)
	c.Expect(out).To(ContainSubstring("NvmfTarget cli already claims the node"))
	moved := newTarget("cli", "cli")
	moved.Spec.Devices.File.Path = "/var/lib/weft/elsewhere"
	out, code = c.kubectlWeft(moved, "plan", "-f", "-")
	c.Expect(code).To(Equal(cli.CodeError), out)
	c.Expect(out).To(ContainSubstring("devices.file.path is immutable"))

	out, code = c.kubectlWeft(newTarget("cli", "nowhere"), "plan", "-f", "-")
	c.Expect(code).To(Equal(cli.CodeUnknown), out)
	out, code = c.kubectlWeft(newTarget("cli", "cli"), "plan", "-f", "-", "--node", "nobody")
	c.Expect(code).To(Equal(cli.CodeError), out)
	c.Expect(out).To(ContainSubstring("node nobody not found in the cluster"))
}

func TestStatusOfACluster(t *testing.T) {
	c := newCluster(t)
	startOperator(t, nil)
	c.node("seen-1", "seen", capableModules...)
	c.node("seen-2", "seen", "nvmet")
	c.target("seen", "seen")
	c.Eventually(c.claimant("seen-1")).Should(Equal("seen"))
	c.serve("seen-1")
	c.Eventually(c.targetCondition("seen", v1alpha1.ConditionReady)).Should(HavePrefix("True/"))

	out, code := c.kubectlWeft(nil, "status")
	c.Expect(code).To(Equal(cli.CodeUnwell), out)
	c.Expect(out).To(And(ContainSubstring("1 of 2"), ContainSubstring("- NvmfTarget seen: Degraded is True: NodesNotCapable")))
	out, _ = c.kubectlWeft(nil, "status", "seen")
	c.Expect(out).To(And(ContainSubstring("Node seen-2 cannot serve this target: "+v1alpha1.ReasonModuleMissing), Not(ContainSubstring("\nseen-2 "))))
	out, _ = c.kubectlWeft(nil, "status", "seen-1")
	c.Expect(strings.Count(out, "192.0.2.1:4420")).To(Equal(1), "as planned; none is served yet:\n%s", out)
	out, code = c.kubectlWeft(nil, "status", "nobody")
	c.Expect(code).To(Equal(cli.CodeError))
	c.Expect(out).To(ContainSubstring("NvmfTarget or NvmfNode nobody not found"))
}
