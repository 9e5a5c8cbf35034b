// SPDX-License-Identifier: Apache-2.0

package chart_test

import (
	"bytes"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/weft-storage/weft/api/v1alpha1"
)

var sampleFolders = []string{"../../config/samples", "../../config/samples/spdk", "../../config/samples/snapshots", "../../config/samples/backup"}

// samples by their paths.
func samples(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, dir := range sampleFolders {
		for name, content := range files(t, dir) {
			all[dir+"/"+name] = content
		}
	}
	return all
}

// fileOf maps each name of the samples' objects of one kind to its file; two of one name would replace each other.
func fileOf[T interface {
	runtime.Object
	GetName() string
}](t *testing.T) map[string]T {
	t.Helper()
	objects := map[string]T{}
	in := map[string]string{}
	all := samples(t)
	for _, path := range slices.Sorted(maps.Keys(all)) {
		for _, o := range of[T](must(decode([]byte(all[path])))) {
			if other, taken := in[o.GetName()]; taken {
				t.Errorf("%s and %s both have a %T %s: one would replace the other", other, path, o, o.GetName())
			}
			objects[o.GetName()], in[o.GetName()] = o, path
		}
	}
	if len(objects) == 0 {
		t.Fatalf("the samples hold no %T", *new(T))
	}
	return objects
}

// A user may apply any of the samples beside each other.
func TestSamplesFitTogether(t *testing.T) {
	targets := fileOf[*v1alpha1.NvmfTarget](t)
	classes := fileOf[*storagev1.StorageClass](t)
	for name, target := range targets {
		if label := target.Spec.NodeSelector.MatchLabels["weft.storage/target"]; label != name {
			t.Errorf("target %s selects the nodes of %q: a node can serve one target only", name, label)
		}
	}
	for name, class := range classes {
		if _, ok := targets[class.Parameters["target"]]; !ok {
			t.Errorf("StorageClass %s is for target %q, which no sample makes", name, class.Parameters["target"])
		}
	}
	claims := fileOf[*corev1.PersistentVolumeClaim](t)
	for name, claim := range claims {
		if class := *claim.Spec.StorageClassName; class != "" && classes[class] == nil {
			t.Errorf("claim %s is of StorageClass %q, which no sample makes", name, class)
		}
	}
	for name, pod := range fileOf[*corev1.Pod](t) {
		for _, v := range pod.Spec.Volumes {
			if v.PersistentVolumeClaim != nil && claims[v.PersistentVolumeClaim.ClaimName] == nil {
				t.Errorf("pod %s uses claim %s, which no sample makes", name, v.PersistentVolumeClaim.ClaimName)
			}
		}
	}
}

// What a first user applies is not rejected for the want of an RDMA device.
func TestFirstSamplesNeedNoRDMA(t *testing.T) {
	for _, name := range []string{"file", "fast", "spdk-file", "spdk"} {
		target, ok := fileOf[*v1alpha1.NvmfTarget](t)[name]
		if !ok {
			t.Fatalf("no sample makes target %s", name)
		}
		for _, transport := range target.Spec.Transports {
			if transport.Type != v1alpha1.TransportTCP {
				t.Errorf("target %s has a transport of type %s", name, transport.Type)
			}
		}
	}
}

// What depends on a user's cluster is marked, on the line above or on one of the two before it.
func TestSamplesMarkWhatToEdit(t *testing.T) {
	marked := 0
	for path, content := range samples(t) {
		lines := strings.Split(content, "\n")
		for i, line := range lines {
			setting := strings.TrimLeft(line, " -")
			if !slices.ContainsFunc([]string{"minSize:", "network: {cidr:", "storageClassName: weft", "volumeHandle:", "size:"},
				func(prefix string) bool { return strings.HasPrefix(setting, prefix) }) {
				continue
			}
			marked++
			if !strings.Contains(strings.Join(lines[max(0, i-3):i], "\n"), "# EDIT: ") && !isSecondNetwork(lines, i) {
				t.Errorf("%s:%d: nothing says `# EDIT:` above %s", path, i+1, setting)
			}
		}
	}
	if marked == 0 {
		t.Error("the samples have nothing to edit")
	}
}

// isSecondNetwork of a target: the mark above its first one is for both.
func isSecondNetwork(lines []string, at int) bool {
	isNetwork := func(line string) bool { return strings.HasPrefix(strings.TrimSpace(line), "network:") }
	return isNetwork(lines[at]) && slices.ContainsFunc(lines[:at], isNetwork)
}

// The page installs the snapshot API in the version of the snapshotter that the chart brings.
func TestSnapshotPageNamesTheVersionOfTheChart(t *testing.T) {
	tag := regexp.MustCompile(`csi-snapshotter\n +tag: (\S+)`).FindSubmatch(must(os.ReadFile(chart + "/values.yaml")))
	if tag == nil {
		t.Fatal("values.yaml has no tag of csi-snapshotter")
	}
	named := regexp.MustCompile(`(?:\?ref=|snapshot-controller:)(v[0-9.]+)`).FindAllSubmatch(must(os.ReadFile("../../docs/tasks/take-snapshots.md")), -1)
	if len(named) < 2 {
		t.Errorf("take-snapshots.md names %d versions", len(named))
	}
	for _, version := range named {
		if !bytes.Equal(version[1], tag[1]) {
			t.Errorf("take-snapshots.md has %s, and the chart brings %s", version[0], tag[1])
		}
	}
}
