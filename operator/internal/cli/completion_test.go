// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"cmp"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// completed is what a shell gets for a line, without the directive.
func completed(t *testing.T, api client.Client, failure error, line ...string) string {
	t.Helper()
	at := &cluster{}
	root := commands(at, "test")
	completer{
		client:    func() (client.Client, error) { return api, failure },
		namespace: func(given string) (string, error) { return cmp.Or(given, "databases"), nil },
		contexts:  at.contexts,
	}.addCompletions(root)
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&bytes.Buffer{})
	root.SetArgs(append([]string{cobra.ShellCompNoDescRequestCmd}, line...))
	if err := root.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	words, directive, _ := strings.Cut(out.String(), ":")
	if !strings.HasPrefix(directive, "4") { // ShellCompDirectiveNoFileComp
		t.Errorf("%v: directive %q", line, directive)
	}
	return strings.Join(strings.Fields(words), " ")
}

func TestCompletion(t *testing.T) {
	_, objects := volume("data", "a")
	_, more := volume("dump", "b")
	claimed := more[2].(*corev1.PersistentVolume)
	claimed.Spec.ClaimRef.Namespace = "backups"
	pending := func(name, class string) client.Object {
		return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "databases", Name: name},
			Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &class}, Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}}
	}
	class := func(name, provisioner string) client.Object {
		return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner}
	}
	inNamespace := func(o client.Object, name string) client.Object {
		o.SetNamespace(name)
		return o
	}
	objects = append(objects, pending("later", "weft-fast"), pending("never", "other"), pending("bare", "nothing"), class("weft-fast", v1alpha1.DriverName), class("other", "other.example"),
		inNamespace(pending("elsewhere", "weft-fast"), "backups"), inNamespace(wefts("weft-agent-1", 0), "storage"),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "storage"}}, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}})
	objects = append(append(objects, more...), &v1alpha1.NvmfSnapshot{ObjectMeta: metav1.ObjectMeta{Name: "snap-1"}},
		&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "nfs"}, Spec: corev1.PersistentVolumeSpec{ClaimRef: &corev1.ObjectReference{Namespace: "databases", Name: "dnfs"}}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker"}})
	r := newLostRig(t, map[string][]v1alpha1.Orphan{"a": {orphaned("lost", "r-lost"), orphaned("gone", "r-gone")}}, objects...)
	kubeconfig := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(kubeconfig, []byte("{apiVersion: v1, kind: Config, contexts: [{name: lab}, {name: prod}]}"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", kubeconfig)
	for line, want := range map[string]string{
		"volume ":                       "data later",
		"volume -n backups ":            "dump elsewhere",
		"recover ":                      "data",
		"recover --lost ":               "gone lost",
		"recover --lost -n x ":          "nv/gone nv/lost",
		"recover --current ":            "",
		"recover data --current ":       "a v-data-0",
		"recover nv/v-dump --current ":  "b v-dump-0",
		"rotate ":                       "data",
		"rotate --target ":              "fast",
		"volumes a ":                    "b c d",
		"volumes -n ":                   "backups databases",
		"snapshots -n b":                "backups",
		"status --context ":             "lab prod",
		"--context p":                   "prod",
		"check -n ":                     "default storage",
		"report -n ":                    "storage",
		"top nodes --weft-namespace ":   "storage",
		"top volumes --weft-namespace ": "storage",
		"drain a -o ":                   "text json yaml",
		"volume -n backups d":           "dump",
		"volume -n ":                    "backups databases",
		"volume data ":                  "",
		"move d":                        "data",
		"move data --to ":               "a b c d",
		"move data --from b":            "b",
		"status ":                       "a b c d fast",
		"cordon a ":                     "b c d",
		"uncordon ":                     "a b c d",
		"drain ":                        "a b c d",
		"drain a ":                      "",
		"retire ":                       "a b c d",
		"retire a ":                     "eui.a eui.a2",
		"retire a eui.a ":               "",
		"retire nobody ":                "",
		"drop b ":                       "eui.b eui.b2",
		"rebalance ":                    "fast",
		"pools a ":                      "b c d",
		"pools -o ":                     "table wide json yaml",
		"pools --sort-by ":              "name used",
		"status -o ":                    "table wide json yaml",
		"drives ":                       "a b c d",
		"top nodes a ":                  "b c d",
		"top targets ":                  "fast",
		"top volumes ":                  "data",
		"top volumes --node ":           "worker",
		"top volumes -n ":               "backups databases",
		"top nodes --sort-by ":          "name operations bytes latency queue errors used",
		"snapshots c":                   "c",
		"check ":                        "worker",
		"plan -f - --node ":             "a b c d",
		"delete ":                       "snapshot volume",
		"delete volume x ":              "",
		"delete volume ":                "v-data v-dump",
		"delete snapshot ":              "snap-1",
	} {
		if got := completed(t, r.api, nil, strings.Split(line, " ")...); got != want {
			t.Errorf("%q: got %q, want %q", line, got, want)
		}
	}
	if got := completed(t, nil, errors.New("no cluster"), "cordon", ""); got != "" {
		t.Errorf("got %q", got)
	}
}

// kubectl runs the script for the completion of plugins.
func TestCompletionScript(t *testing.T) {
	text, err := os.ReadFile("../../cmd/kubectl-weft/kubectl_complete-weft")
	if err != nil || !strings.HasPrefix(string(text), "#!/bin/sh\n") || !strings.Contains(string(text), "kubectl-weft "+cobra.ShellCompRequestCmd+` "$@"`) {
		t.Errorf("%v:\n%s", err, text)
	}
	if info, err := os.Stat("../../cmd/kubectl-weft/kubectl_complete-weft"); err != nil || info.Mode()&0o111 == 0 {
		t.Errorf("%v, %v: it is not executable", info, err)
	}
}
