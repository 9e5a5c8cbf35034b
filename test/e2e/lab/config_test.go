// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"sigs.k8s.io/yaml"

	"github.com/weft-storage/weft/test/e2e/internal/nodeconfig"
)

func TestNodeConfig(t *testing.T) {
	l := testLab(t)
	first, second := l.nodeConfig(0), l.nodeConfig(1)
	if first.MachineID == second.MachineID || len(first.MachineID) != 32 {
		t.Errorf("machine IDs %q and %q", first.MachineID, second.MachineID)
	}
	if again := l.nodeConfig(0); again.MachineID != first.MachineID {
		t.Error("the machine ID changes")
	}
	plan := l.state.addresses()
	wantRoutes := []nodeconfig.Route{
		{Destination: defaultRoute, Gateway: plan.controlPlane().Addr()},
		{Destination: plan.pods(1), Gateway: plan.node(1).Addr()},
	}
	if !slices.Equal(first.Routes, wantRoutes) {
		t.Errorf("routes %v, not %v", first.Routes, wantRoutes)
	}
	var names []string
	for _, s := range first.Services {
		names = append(names, s.Name)
	}
	if want := []string{"sshd", "containerd", "kubelet", "kube-proxy"}; !slices.Equal(names, want) {
		t.Errorf("services %v, not %v", names, want)
	}
	l.state.Cluster, l.state.RDMA = false, false
	if plain := l.nodeConfig(0); len(plain.Services) != 1 || len(plain.RDMA) != 0 {
		t.Errorf("a machine without cluster and RDMA has services %v and RDMA %v", plain.Services, plain.RDMA)
	}
}

func TestConfigurationsParse(t *testing.T) {
	plan := addresses{1}
	for name, text := range map[string]string{"kubelet": kubeletConfig(), "kube-proxy": kubeProxyConfig(plan.podRange())} {
		var parsed struct {
			Kind string `json:"kind"`
		}
		if err := yaml.Unmarshal([]byte(text), &parsed); err != nil || parsed.Kind == "" {
			t.Errorf("%s: %+v, %v", name, parsed, err)
		}
	}
	var cni struct {
		Plugins []struct {
			IPAM struct {
				Ranges [][]struct {
					Subnet string `json:"subnet"`
				} `json:"ranges"`
			} `json:"ipam"`
		} `json:"plugins"`
	}
	if err := json.Unmarshal([]byte(cniConfig(plan.pods(1))), &cni); err != nil {
		t.Fatal(err)
	}
	if got := cni.Plugins[0].IPAM.Ranges[0][0].Subnet; got != plan.pods(1).String() {
		t.Errorf("pods get addresses from %s, not %s", got, plan.pods(1))
	}
}

func TestQemuGivesEveryNodeItsOwn(t *testing.T) {
	l := testLab(t)
	args := strings.Join(l.qemuArgs(1), " ")
	for _, want := range []string{
		"ifname=tap1,", "ifname=mtap1,", "serial=" + DriveSerial("node2", 0), "serial=" + DriveSerial("node2", 1),
		l.ConsoleLog("node2"), l.nodeDir("node2", "root.qcow2"), "-m 1536", "mac=" + l.state.addresses().mac(1, 0),
	} {
		if !strings.Contains(args, want) {
			t.Errorf("the arguments lack %q", want)
		}
	}
	if strings.Contains(args, "node1") {
		t.Errorf("node2 uses something of node1: %s", args)
	}
}

// TestQemuWithIOMMU: both halves of it, since the kernel leaves one that it finds alone unless it is told.
func TestQemuWithIOMMU(t *testing.T) {
	l := testLab(t)
	for _, iommu := range []bool{false, true} {
		l.state.IOMMU = iommu
		args := strings.Join(l.qemuArgs(0), " ")
		if strings.Contains(args, "-device intel-iommu,") != iommu || strings.Contains(args, " intel_iommu=on") != iommu {
			t.Errorf("with IOMMU %v the arguments are %s", iommu, args)
		}
	}
}

func TestQuoteArgsSurvivesTheShell(t *testing.T) {
	args := []string{"printf", `%s\n`, "a b", "it's", "$HOME", "", "`id`", "new\nline", `"`}
	out, err := exec.CommandContext(t.Context(), "sh", "-c", quoteArgs(args)).Output()
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.Join(args[2:], "\n") + "\n"; string(out) != want {
		t.Errorf("got %q, not %q", out, want)
	}
}

func TestStateSurvivesAndIsMissedClearly(t *testing.T) {
	dir := t.TempDir()
	if _, err := Open(dir); !errors.Is(err, ErrNotUp) {
		t.Errorf("opening a lab that is not there: %v", err)
	}
	l := testLab(t)
	l.state.Complete = true
	if err := writeJSON(l.statePath(), l.state); err != nil {
		t.Fatal(err)
	}
	again, err := Open(l.Dir)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(again.Nodes(), l.Nodes()) || again.state.Slot != l.state.Slot || !again.state.Complete {
		t.Errorf("read %+v, wrote %+v", again.state, l.state)
	}
	if _, err := again.nodeIndex("node9"); err == nil || !strings.Contains(err.Error(), "node1 node2") {
		t.Errorf("an unknown node: %v", err)
	}
}

func TestMatchesNamesTheDifference(t *testing.T) {
	l := testLab(t)
	for _, c := range []struct {
		opts Options
		ok   bool
	}{
		{Options{}, true}, {Options{Nodes: 2}, true}, {Options{Nodes: 3}, false}, {Options{NoCluster: true}, false}, {Options{IOMMU: true}, false},
	} {
		if err := l.matches(c.opts); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c.opts, err)
		}
	}
}

func TestLockIsExclusive(t *testing.T) {
	l := testLab(t)
	unlock, err := l.lock()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.lock(); err == nil {
		t.Error("two commands may change the lab at once")
	}
	unlock()
	unlock, err = l.lock()
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}

func TestUntarStaysInside(t *testing.T) {
	archive := func(name string) *bytes.Buffer {
		var buf bytes.Buffer
		w := tar.NewWriter(&buf)
		if err := errors.Join(w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: 1, Typeflag: tar.TypeReg}), func() error {
			_, err := w.Write([]byte("x"))
			return err
		}(), w.Close()); err != nil {
			t.Fatal(err)
		}
		return &buf
	}
	dir := t.TempDir()
	if err := untar(archive("var/log/a.log"), dir); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(filepath.Join(dir, "var/log/a.log")); err != nil || string(data) != "x" {
		t.Errorf("%q, %v", data, err)
	}
	if err := untar(archive("../escaped"), dir); err == nil {
		t.Error("a file outside the folder was accepted")
	}
}

// writeArchive writes an archive as `docker save` does: one layer, one name.
func writeArchive(t *testing.T, ref string, layer []byte) string {
	t.Helper()
	img, err := mutate.AppendLayers(empty.Image, static.NewLayer(layer, types.DockerUncompressedLayer))
	if err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag(ref)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "image.tar")
	if err := tarball.WriteToFile(file, tag, img); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestImageServerGivesWhatTheArchiveHolds(t *testing.T) {
	layer := bytes.Repeat([]byte("layer"), 1000)
	archive, err := openArchive(writeArchive(t, "example.com/a/b:1", layer))
	if err != nil {
		t.Fatal(err)
	}
	defer archive.close()
	server := httptest.NewServer(archive)
	defer server.Close()
	// A client that others wrote checks every digest on the way.
	ref, err := name.NewTag(strings.TrimPrefix(server.URL, "http://")+"/image:load", name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	img, err := remote.Image(ref)
	if err != nil {
		t.Fatal(err)
	}
	layers, err := img.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers, %v", len(layers), err)
	}
	content, err := layers[0].Compressed()
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(content)
	if err != nil || !bytes.Equal(got, layer) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if id, err := img.ConfigName(); err != nil || id != archive.id {
		t.Errorf("configuration %v, not %v; %v", id, archive.id, err)
	}
	if archive.ref != "example.com/a/b:1" {
		t.Errorf("name %q", archive.ref)
	}
	response, err := http.Get(server.URL + "/v2/image/blobs/sha256:" + strings.Repeat("0", 64))
	if err != nil {
		t.Fatal(err)
	}
	if err := response.Body.Close(); err != nil || response.StatusCode != http.StatusNotFound {
		t.Errorf("a blob that is not there: %s, %v", response.Status, err)
	}
}

// TestOopses: a node restarts after a fault in its kernel, so its console alone tells of it.
func TestOopses(t *testing.T) {
	l := testLab(t)
	consoles := map[string]string{
		"node1": "[   34.7] Oops: int3: 0000 [#1] PREEMPT SMP NOPTI\r\n[   34.8] Call Trace:\r\n[   34.9] Kernel panic - not syncing: Fatal exception\r\n",
		"node2": "[    1.0] nvme nvme0: 2/0/0 default/read/poll queues\r\n",
	}
	if err := os.MkdirAll(l.path("logs"), 0o755); err != nil {
		t.Fatal(err)
	}
	for node, text := range consoles {
		if err := os.WriteFile(l.ConsoleLog(node), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := l.Oopses()
	want := []string{
		"node1: [   34.7] Oops: int3: 0000 [#1] PREEMPT SMP NOPTI",
		"node1: [   34.9] Kernel panic - not syncing: Fatal exception",
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v", got, err)
	}
}
