// SPDX-License-Identifier: Apache-2.0

package cli_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weft-storage/weft/operator/internal/claim"
	"github.com/weft-storage/weft/operator/internal/cli"
)

const (
	targetFile = "testdata/target.yaml"
	serverFile = "testdata/server.yaml"
)

// run is one call of the program: what it prints, and its exit code.
func run(t *testing.T, stdin string, args ...string) (out string, code int, err error) {
	t.Helper()
	var stdout bytes.Buffer
	cmd := cli.Command("test")
	cmd.SetArgs(args)
	cmd.SetIn(strings.NewReader(stdin))
	cmd.SetOut(&stdout)
	err = cmd.ExecuteContext(t.Context())
	var exit *cli.ExitError
	switch {
	case errors.As(err, &exit):
		return stdout.String(), exit.Code, nil
	case err != nil:
		return stdout.String(), cli.CodeError, err
	}
	return stdout.String(), 0, nil
}

// written is a file with the text.
func written(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func answers(t *testing.T, out string) cli.Answers {
	t.Helper()
	var a cli.Answers
	if err := json.Unmarshal([]byte(out), &a); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	return a
}

func TestPlanWithoutClusterPrintsAllOfThePlan(t *testing.T) {
	out, code, err := run(t, "", "plan", "-f", targetFile, "--inventory", serverFile, "-o", "json")
	if err != nil || code != 0 {
		t.Fatalf("exit code %d, %v", code, err)
	}
	a := answers(t, out)
	if len(a.Plans) != 1 || a.Plans[0].Verdict != claim.Fits || a.Plans[0].Plan.SPDK == nil {
		t.Fatalf("got %s", out)
	}
	table, code, err := run(t, "", "plan", "-f", targetFile, "--inventory", serverFile)
	if err != nil || code != 0 {
		t.Fatalf("exit code %d, %v", code, err)
	}
	want := []string{"NvmfTarget fast on node storage-1: fits", "10.20.0.5:4420", "10.20.0.5:4421", "eui.S3"}
	plan := a.Plans[0].Plan
	warnings := 0
	for _, c := range plan.Choices {
		want = append(want, c.Setting, c.Value, string(c.Source), c.Why)
		if c.Warning != "" {
			warnings++
			want = append(want, "warning: "+c.Setting+" "+c.Value+": "+c.Warning)
		}
	}
	for _, m := range plan.Memory {
		want = append(want, m.Use, m.How)
	}
	if len(plan.Choices) == 0 || len(plan.Memory) == 0 || warnings == 0 {
		t.Errorf("the case has %d choices, %d lines of memory, %d warnings; want some of each", len(plan.Choices), len(plan.Memory), warnings)
	}
	for _, w := range want {
		if !strings.Contains(table, w) {
			t.Errorf("the table lacks %q", w)
		}
	}
}

func TestPlanVerdicts(t *testing.T) {
	small := strings.ReplaceAll(read(t, serverFile), "16Gi}", "64Mi}")
	target := read(t, targetFile)
	second := strings.Replace(strings.SplitN(target, "---", 3)[1], "name: fast", "name: second", 1)
	for name, c := range map[string]struct {
		target, inventory string
		code              int
		want              []string
	}{
		"too few hugepages": {target, small, cli.CodeCannotHold, []string{"does not fit", "HugepagesMissing"}},
		"too few cores, with what would do": {
			strings.Replace(target, "  devices:", "  cores: {count: 64}\n  devices:", 1), serverFile, cli.CodeCannotHold, []string{"NotEnoughCPUs"}},
		"memory over the limit, with what would fit": {
			strings.Replace(target, "  devices:", "  memory: {limit: 460Mi}\n  devices:", 1), serverFile, cli.CodeCannotHold, []string{"MemoryExceeded", "to spare"}},
		"no hugepages set aside": {target, strings.ReplaceAll(read(t, serverFile), "hugepages: {2Mi: 16Gi}", "hugepages: {}"), cli.CodeCannotHold,
			[]string{"hugepages of 2.0 MiB", "has 0 free", "nr_hugepages"}},
		"several targets": {target + "---\n" + second, serverFile, 0, []string{"NvmfTarget fast on node storage-1: fits", "NvmfTarget second on node storage-1: fits"}},
		"several nodes, one of them too small": {
			target, read(t, serverFile) + "\n---\n" + strings.ReplaceAll(small, "storage-1", "storage-2"), cli.CodeCannotHold,
			[]string{"on node storage-1: fits", "on node storage-2: does not fit"}},
		"a node that has not reported": {
			target, "apiVersion: weft.storage/v1alpha1\nkind: NvmfNode\nmetadata: {name: new}", cli.CodeUnknown, []string{"on node new: unknown", "NoInventory"}},
		"as a List": {
			"apiVersion: v1\nkind: List\nitems:\n- " + strings.ReplaceAll(strings.TrimSpace(second), "\n", "\n  "), serverFile, 0, []string{"NvmfTarget second on node storage-1: fits"}},
		"the kernel's target": {`
apiVersion: weft.storage/v1alpha1
kind: NvmfTarget
metadata: {name: plain}
spec:
  engine: Nvmet
  nodeSelector: {}
  transports: [{type: TCP}]
  devices: {file: {path: /var/lib/weft/pool.img, size: 20Gi}}`, serverFile, 0, []string{"file", "/var/lib/weft/pool.img", "20Gi", "8 I/O queues of depth 128"}},
	} {
		t.Run(name, func(t *testing.T) {
			inventory := c.inventory
			if inventory != serverFile {
				inventory = written(t, inventory)
			}
			out, code, err := run(t, c.target, "plan", "-f", "-", "--inventory", inventory)
			if err != nil || code != c.code {
				t.Errorf("exit code %d, %v; want %d", code, err, c.code)
			}
			for _, w := range c.want {
				if !strings.Contains(out, w) {
					t.Errorf("want %q in:\n%s", w, out)
				}
			}
		})
	}
}

func TestPlanErrors(t *testing.T) {
	target := read(t, targetFile)
	for name, c := range map[string]struct{ target, inventory, want string }{
		"an unknown field": {strings.Replace(target, "engine: SPDK", "engine: SPDK\n  enginge: 1", 1), "", `standard input, document 2: NvmfTarget fast: unknown field "spec.enginge"`},
		"a rule is broken": {strings.Replace(target, "engine: SPDK", "engine: Nvmet", 1), "", "remove placement, or use engine: SPDK"},
		"out of bounds":    {strings.Replace(target, "port: 4421", "port: 0", 1), "", "spec.transports[1].port: Invalid value: 0"},
		"an odd selector":  {strings.Replace(target, "weft.storage/target: fast", "a b: c", 1), "", "spec.nodeSelector is not valid"},
		"no name":          {strings.Replace(target, "name: fast", "labels: {}", 1), "", "the NvmfTarget has no metadata.name"},
		"two of one name": {target + "---\n" + strings.SplitN(target, "---", 3)[1], "",
			"standard input, document 4: NvmfTarget fast is also defined in standard input, document 2; names must be unique"},
		"another kind alone":           {"apiVersion: v1\nkind: Pod", "", "contains no NvmfTarget"},
		"nothing":                      {"# nothing\n---\n", "", "standard input is empty"},
		"no YAML":                      {"a: [", "", "standard input, document 1"},
		"no object":                    {"- 1", "", "must start with apiVersion and kind"},
		"hardware, unknown field":      {target, "name: a\ncores: 4\n", `unknown field "cores"`},
		"hardware, too little":         {target, "name: a\n", "coresPerSocket is 0; set the physical cores of a socket"},
		"hardware, a bad address":      {target, "memory: 1Gi\ncoresPerSocket: 4\nnics: [{name: a, addresses: [10.0.0.1]}]", "is not an address with a prefix length"},
		"hardware, a wrong socket":     {target, "memory: 1Gi\ncoresPerSocket: 4\ndrives: [{size: 1T, socket: 1}]", "drives[0].socket is 1; sockets are counted from 0"},
		"hardware, a wrong page":       {target, "memory: 1Gi\ncoresPerSocket: 4\nhugepages: {big: 1Gi}", `"big" is not a page size`},
		"hardware, an odd page":        {target, "memory: 64Gi\ncoresPerSocket: 4\nhugepages: {1G: 1Gi}", `"1G" is not a page size; use 2Mi or 1Gi`},
		"hardware, pages over memory":  {target, "memory: 64Gi\ncoresPerSocket: 4\nhugepages: {2Mi: 60Gi, 1Gi: 5Gi}", "hugepages (65Gi) must not be greater than memory (64Gi)"},
		"hardware, fewer pages than 0": {target, "memory: 64Gi\ncoresPerSocket: 4\nhugepages: {2Mi: -1Gi}", "hugepages: -1Gi of 2Mi"},
		"hardware, endless memory":     {target, "memory: 1e30\ncoresPerSocket: 4", "must be from 64Mi to 256Ti"},
		"hardware, memory of a byte":   {target, "memory: 0.5\ncoresPerSocket: 4", "must be from 64Mi to 256Ti"},
		"hardware, an endless drive":   {target, "memory: 64Gi\ncoresPerSocket: 4\ndrives: [{size: 7E}]", "drives[0].size is 7E; the size of one drive must be from 1Gi to 1Pi"},
		"hardware, no cache":           {target, "memory: 64Gi\ncoresPerSocket: 4\nlastLevelCache: -1Mi", "lastLevelCache is -1Mi"},
		"hardware, an endless link":    {target, "memory: 64Gi\ncoresPerSocket: 4\nnics: [{name: a, gbps: 1e16, addresses: [10.0.0.1/8]}]", "nics[0].gbps is 1e+16"},
		"hardware, one NIC twice":      {target, "memory: 64Gi\ncoresPerSocket: 4\nnics: [{name: a, addresses: [10.0.0.1/8]}, {name: a, addresses: [10.0.0.2/8]}]", "the name a is already used"},
		"hardware, a speed in quotes":  {target, "memory: 64Gi\ncoresPerSocket: 4\nnics: [{name: a, gbps: \"100\", addresses: [10.0.0.1/8]}]", "nics.gbps is a string; must be a number"},
		"hardware, half a core":        {target, "memory: 64Gi\ncoresPerSocket: 4.5", "coresPerSocket is a number 4.5; must be a whole number"},
		"hardware, far too much":       {target, "memory: 1Gi\ncoresPerSocket: 2000\nsockets: 4", "must not be greater than 2048"},
		"an inventory of a pod":        {target, "apiVersion: v1\nkind: Pod", "unexpected object v1 Pod; an inventory contains NvmfNodes"},
		"a Node without NvmfNode":      {target, "apiVersion: v1\nkind: Node\nmetadata: {name: a}", "contains Node a, but not its NvmfNode"},
		"an NvmfNode, misspelt":        {target, "apiVersion: weft.storage/v1alpha1\nkind: NvmfNode\nstatus: {inventry: {}}", `unknown field "status.inventry"`},
	} {
		t.Run(name, func(t *testing.T) {
			inventory := serverFile
			if c.inventory != "" {
				inventory = written(t, c.inventory)
			}
			_, code, err := run(t, c.target, "plan", "-f", "-", "--inventory", inventory)
			if code != cli.CodeError || err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %d, %v; want %q", code, err, c.want)
			}
		})
	}
}

func TestFlags(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"no file":       {[]string{"plan"}, `specify a file of NvmfTargets with -f FILE, or "-f -" for standard input`},
		"a bare file":   {[]string{"plan", targetFile}, "unexpected argument " + targetFile + "; specify a file of NvmfTargets with -f FILE"},
		"no claim":      {[]string{"volume"}, "0 arguments; usage: kubectl weft volume CLAIM [flags]"},
		"two claims":    {[]string{"volume", "a", "b"}, "2 arguments; usage: kubectl weft volume CLAIM [flags]"},
		"top of what":   {[]string{"top"}, "specify what to show: kubectl weft top nodes, targets or volumes"},
		"top of others": {[]string{"top", "volume"}, "specify what to show: kubectl weft top nodes, targets or volumes"},
		"both ways":     {[]string{"plan", "-f", "-", "--node", "a", "--inventory", "b"}, "none of the others can be"},
		"odd output":    {[]string{"plan", "-f", "-", "-o", "xml"}, `--output is "xml"; must be table, wide, json or yaml`},
		"no such file":  {[]string{"plan", "-f", "nowhere.yaml"}, "no such file"},
		"no kubeconfig": {[]string{"plan", "-f", targetFile, "--kubeconfig", "nowhere"}, "nowhere"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, code, err := run(t, "", c.args...); code != cli.CodeError || err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %d, %v; want %q", code, err, c.want)
			}
		})
	}
}

// A cluster without weft's CRDs answers 404 to whoever asks for its objects.
func TestAClusterWithoutWeft(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	kubeconfig := written(t, "{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: b}}], clusters: [{name: b, cluster: {server: '"+server.URL+"'}}]}")
	for _, args := range [][]string{{"plan", "-f", targetFile}, {"status"}} {
		_, code, err := run(t, "", append(args, "--kubeconfig", kubeconfig)...)
		if code != cli.CodeError || err == nil || !strings.Contains(err.Error(), "install it first (docs/install.md)") {
			t.Errorf("%v: got %d, %v", args, code, err)
		}
	}
}

// What a node's Kubernetes Node says is heeded when the file has it beside the NvmfNode.
func TestPlanHeedsTheNodeOfTheFile(t *testing.T) {
	hardware := read(t, serverFile) + "allocatable: {cpu: 1, memory: 250Gi, hugepages-2Mi: 16Gi}\n"
	out, code, err := run(t, read(t, targetFile), "plan", "-f", "-", "--inventory", written(t, hardware))
	if err != nil || code != cli.CodeCannotHold || !strings.Contains(out, "NotEnoughCPUs") || strings.Contains(out, "resources of its kubelet are unknown") {
		t.Errorf("exit code %d, %v:\n%s", code, err, out)
	}
}

func TestDocumentedShortForm(t *testing.T) {
	_, text, found := strings.Cut(read(t, "../../../docs/kubectl-weft/plan.md"), "```yaml\n")
	text, _, closed := strings.Cut(text, "```")
	if !found || !closed {
		t.Fatal("docs/kubectl-weft/plan.md has no example of the short form")
	}
	target := "../../../config/samples/target-drives.yaml"
	if out, code, err := run(t, "", "plan", "-f", target, "--inventory", written(t, text)); err != nil || code == cli.CodeError {
		t.Errorf("exit code %d, %v:\n%s", code, err, out)
	}
}
