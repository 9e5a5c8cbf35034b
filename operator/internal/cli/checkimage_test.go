// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/internal/capability"
)

func targetImage(t *testing.T, architecture string, labels map[string]string) v1.Image {
	t.Helper()
	image, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: architecture, Config: v1.Config{Labels: labels}})
	if err != nil {
		t.Fatal(err)
	}
	return image
}

func labels(change func(*capability.Capabilities)) map[string]string {
	can := &capability.Capabilities{
		Version: "26.05", Transports: []string{"TCP", "RDMA"}, Sockets: []string{"posix", "uring"}, Programs: []string{"blkid"},
		Methods: append(capability.NVMeMethods(), capability.Methods()...),
	}
	if change != nil {
		change(can)
	}
	return can.Labels()
}

func archive(t *testing.T, image v1.Image) string {
	t.Helper()
	tag, err := name.NewTag("example.org/weft-target:1")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "image.tar")
	if err := tarball.WriteToFile(file, tag, image); err != nil {
		t.Fatal(err)
	}
	return file
}

// checkImage runs the command, and gives what it printed and its exit code.
func checkImage(t *testing.T, args ...string) (said string, code int, err error) {
	t.Helper()
	cmd := Command("test")
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetArgs(append([]string{"check-image"}, args...))
	err = cmd.ExecuteContext(t.Context())
	if exit := (*ExitError)(nil); errors.As(err, &exit) {
		return out.String(), exit.Code, nil
	}
	return out.String(), 0, err
}

func TestCheckImage(t *testing.T) {
	for what, c := range map[string]struct {
		labels map[string]string
		code   int
		says   []string
	}{
		"all": {labels(nil), 0, []string{"SPDK 26.05, amd64", "transports: RDMA, TCP", "io_uring: yes (weft does not use it)", "transport RDMA               optional   yes   -"}},
		"no RDMA": {labels(func(c *capability.Capabilities) { c.Transports = []string{"TCP"} }), 0,
			[]string{"transport RDMA               optional   no    without it, targets with a transport RDMA"}},
		"too old": {labels(func(c *capability.Capabilities) { c.Version = "24.09" }), CodeUnwell,
			[]string{"SPDK 25.05 or later          required   no    it is 24.09; use 25.05 or later; without it, the agent serves nothing"}},
		"no lvols": {labels(func(c *capability.Capabilities) { c.Methods = capability.NVMeMethods() }), CodeUnwell, []string{"it lacks bdev_aio_create, "}},
		"no labels": {map[string]string{"org.opencontainers.image.title": "weft-target"}, CodeUnknown,
			[]string{"no labels of weft", "docs/tasks/bring-your-own-spdk.md"}},
		"a required one unknown": {labels(func(c *capability.Capabilities) { c.Sockets = nil }), CodeUnknown, []string{"posix sockets                required   unknown   -"}},
	} {
		t.Run(what, func(t *testing.T) {
			said, code, err := checkImage(t, archive(t, targetImage(t, "amd64", c.labels)))
			if err != nil || code != c.code {
				t.Errorf("exit code %d, not %d: %v", code, c.code, err)
			}
			for _, s := range c.says {
				if !strings.Contains(squeezed(said), squeezed(s)) {
					t.Errorf("it does not say %q:\n%s", s, said)
				}
			}
		})
	}
}

// squeezed text has one space where there were several: how wide a column is depends on the others.
func squeezed(s string) string { return strings.Join(strings.Fields(s), " ") }

func TestCheckImageJSON(t *testing.T) {
	said, code, err := checkImage(t, "-o", "json", archive(t, targetImage(t, "arm64", labels(func(c *capability.Capabilities) { c.Version = "25.05" }))))
	if err != nil || code != 0 {
		t.Fatal(code, err)
	}
	var answer struct{ Images []checkedImage }
	if err := json.Unmarshal([]byte(said), &answer); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	if len(answer.Images) != 1 || answer.Images[0].Version != "25.05" || answer.Images[0].Architecture != "arm64" || !*answer.Images[0].IOUring {
		t.Errorf("%+v", answer.Images)
	}
	has := map[string]capability.Has{}
	for _, f := range answer.Images[0].Features {
		has[f.Name] = f.Has
	}
	if has["buffer cache of each size"] != capability.No || has["transport RDMA"] != capability.Yes {
		t.Errorf("%v", has)
	}
}

// An image of several platforms is found in a layout and in a registry, by its platform.
func TestCheckImageOfAPlatform(t *testing.T) {
	index := mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: targetImage(t, "amd64", labels(nil)), Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "amd64"}}},
		mutate.IndexAddendum{Add: targetImage(t, "arm64", labels(func(c *capability.Capabilities) { c.Version = "26.01" })), Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "arm64"}}})
	dir := filepath.Join(t.TempDir(), "layout")
	if _, err := layout.Write(dir, index); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(registry.New())
	defer server.Close()
	ref := strings.TrimPrefix(server.URL, "http://") + "/weft-target:1"
	tag, err := name.NewTag(ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(tag, index); err != nil {
		t.Fatal(err)
	}
	for _, image := range []string{dir, ref} {
		for platform, version := range map[string]string{"linux/amd64": "26.05", "linux/arm64": "26.01"} {
			said, code, err := checkImage(t, "--platform", platform, "--insecure", image)
			if err != nil || code != 0 || !strings.Contains(said, "SPDK "+version+", ") {
				t.Errorf("%s for %s: code %d, %v:\n%s", image, platform, code, err, said)
			}
		}
		if said, _, err := checkImage(t, "--platform", "linux/riscv64", "--insecure", image); err == nil {
			t.Errorf("%s has an image for a platform that it was not made for:\n%s", image, said)
		}
	}
}

func TestCheckImageRefuses(t *testing.T) {
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("no image"), 0o644); err != nil {
		t.Fatal(err)
	}
	for image, says := range map[string]string{
		text:                            "not an archive",
		t.TempDir():                     "index.json",
		"UPPER CASE":                    "nor the name of an image",
		"127.0.0.1:1/weft-target:26.05": "refused",
	} {
		if _, _, err := checkImage(t, image); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", image, err)
		}
	}
}

func spdkNode(name, version string, ready metav1.ConditionStatus, transports ...v1alpha1.TransportType) *v1alpha1.NvmfNode {
	n := &v1alpha1.NvmfNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Status.Engine = &v1alpha1.EngineStatus{Type: v1alpha1.EngineSPDK, Version: version, Transports: transports}
	n.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: ready}}
	return n
}

// Of running targets what an agent has not seen is unknown.
func TestCheckRunningTargets(t *testing.T) {
	scheme, err := knownKinds()
	if err != nil {
		t.Fatal(err)
	}
	kernel := spdkNode("kernel", "6.12", metav1.ConditionTrue, v1alpha1.TransportTCP)
	kernel.Status.Engine.Type = v1alpha1.EngineNvmet
	for what, c := range map[string]struct {
		nodes []client.Object
		code  int
		fails string
		// rdma of the first node.
		rdma capability.Has
	}{
		"ready, over TCP":  {[]client.Object{spdkNode("a", "26.05", metav1.ConditionTrue, v1alpha1.TransportTCP), kernel}, 0, "", capability.Unknown},
		"ready, over both": {[]client.Object{spdkNode("a", "26.05", metav1.ConditionTrue, v1alpha1.TransportTCP, v1alpha1.TransportRDMA)}, 0, "", capability.Yes},
		"not ready":        {[]client.Object{spdkNode("a", "26.05", metav1.ConditionFalse, v1alpha1.TransportTCP)}, CodeUnknown, "", capability.Unknown},
		"too old":          {[]client.Object{spdkNode("a", "24.09", metav1.ConditionFalse, v1alpha1.TransportTCP)}, CodeUnwell, "", capability.Unknown},
		"none":             {[]client.Object{kernel}, 0, "no SPDK target runs", ""},
	} {
		all, err := checkTargets(t.Context(), fake.NewClientBuilder().WithScheme(scheme).WithObjects(c.nodes...).Build())
		if c.fails != "" {
			if err == nil || !strings.Contains(err.Error(), c.fails) {
				t.Errorf("%s: %v", what, err)
			}
			continue
		}
		if err != nil || len(all) != 1 || codeOf(all) != c.code {
			t.Errorf("%s: code %d of %+v: %v", what, codeOf(all), all, err)
			continue
		}
		for _, f := range all[0].Features {
			if f.Name == "transport RDMA" && f.Has != c.rdma {
				t.Errorf("%s: RDMA is %s, not %s", what, f.Has, c.rdma)
			}
		}
		var out bytes.Buffer
		if err := printImages(&out, all); err != nil || !strings.Contains(out.String(), "Target on node a: SPDK ") {
			t.Errorf("%s: %v\n%s", what, err, out.String())
		}
	}
}
