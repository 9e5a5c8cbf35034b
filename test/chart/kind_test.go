// SPDX-License-Identifier: Apache-2.0

package chart_test

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// kindFolder has the script that installs the chart in a kind cluster. It runs on a fake host: no test has Docker.
const kindFolder = "../../hack/kind"

func TestMain(m *testing.M) {
	if name := filepath.Base(os.Args[0]); fakes[name] != nil {
		os.Exit(runFake(name, os.Args[1:]))
	}
	os.Exit(m.Run())
}

// able is a host that can serve with both engines.
func able() state {
	return state{
		System: "Linux", Kernel: "6.12.1", DockerKernel: "6.12.1", Security: "[name=seccomp,profile=builtin name=cgroupns]", CPUs: 4,
		Modules: []string{"nvme_tcp", "dm_mod", "nvmet", "nvmet_tcp", "xfs", "loop"},
		Images:  []string{"localhost:5000/weft:1.2.3", "weft-target:0.9"},
	}
}

func without(s state, modules ...string) state {
	s.Modules = slices.DeleteFunc(slices.Clone(s.Modules), func(m string) bool { return slices.Contains(modules, m) })
	return s
}

// host is a folder with the fake programs, and the state that they share.
type host struct {
	t    *testing.T
	dir  string
	path string
}

func newHost(t *testing.T, s state, missing ...string) host {
	t.Helper()
	h := host{t: t, dir: t.TempDir()}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name := range fakes {
		if slices.Contains(missing, name) {
			continue
		}
		if err := os.Symlink(self, filepath.Join(h.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	// What the script takes from a real system, and nothing else of it: this machine may have a kubectl of its own.
	for _, name := range []string{"bash", "dirname", "grep"} {
		program, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(program, filepath.Join(h.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	h.path = filepath.Join(h.dir, "state.json")
	data, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(h.path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return h
}

// run runs the script, and returns what it said and its exit status.
func (h host) run(command string) (string, int) {
	h.t.Helper()
	cmd := exec.CommandContext(h.t.Context(), filepath.Join(h.dir, "bash"), "kind.sh", command)
	cmd.Dir = kindFolder
	cmd.Env = []string{
		"PATH=" + h.dir, stateFile + "=" + h.path, "KIND=" + filepath.Join(h.dir, "kind"), "HELM=" + filepath.Join(h.dir, "helm"),
		"IMAGE=localhost:5000/weft:1.2.3", "TARGET_IMAGE=weft-target:0.9",
	}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return string(out), exit.ExitCode()
	case err != nil:
		h.t.Fatal(err)
	}
	return string(out), 0
}

func (h host) state() state {
	h.t.Helper()
	data, err := os.ReadFile(h.path)
	if err != nil {
		h.t.Fatal(err)
	}
	var s state
	if err := json.Unmarshal(data, &s); err != nil {
		h.t.Fatal(err)
	}
	return s
}

func TestCheckSaysWhatTheHostLacks(t *testing.T) {
	mac, desktop, rootless, stopped, small := able(), able(), able(), able(), able()
	mac.System = "Darwin"
	desktop.DockerKernel = "6.10.14-linuxkit"
	rootless.Security = "[name=seccomp,profile=builtin name=rootless name=cgroupns]"
	stopped.DockerError = "Cannot connect to the Docker daemon"
	small.CPUs = 1
	neither := without(small, "nvmet_tcp")
	for _, test := range []struct {
		name    string
		host    state
		missing []string
		code    int
		says    []string
	}{
		{"an able host", able(), nil, 0, []string{"Nvmet (the kernel's target): yes\n", "SPDK: yes; it runs on ordinary memory here, so it needs no hugepages"}},
		{"no Linux", mac, nil, 1, []string{"this is Darwin", "Linux virtual machine"}},
		{"no docker", able(), []string{"docker"}, 1, []string{"no docker in PATH", "make demo"}},
		{"no kubectl", able(), []string{"kubectl"}, 1, []string{"no kubectl in PATH"}},
		{"Docker is stopped", stopped, nil, 1, []string{"Cannot connect", "systemctl start docker"}},
		{"Docker Desktop", desktop, nil, 1, []string{"kernel 6.10.14-linuxkit and this host on 6.12.1", "docker context use default"}},
		{"rootless Docker", rootless, nil, 1, []string{"runs rootless"}},
		{"no initiator", without(able(), "nvme_tcp"), nil, 1, []string{"lacks nvme_tcp,", "linux-modules-extra-6.12.1"}},
		{"no kernel target", without(able(), "nvmet", "nvmet_tcp"), nil, 0, []string{"Nvmet (the kernel's target): the kernel lacks nvmet nvmet_tcp.", "SPDK: yes"}},
		{"one CPU", small, nil, 0, []string{"Nvmet (the kernel's target): yes", "only one"}},
		{"neither engine", neither, nil, 1, []string{"lacks nvmet_tcp", "only one", "with neither engine"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			out, code := newHost(t, test.host, test.missing...).run("check")
			if code != test.code {
				t.Errorf("exit status %d, want %d", code, test.code)
			}
			for _, words := range test.says {
				if !strings.Contains(out, words) {
					t.Errorf("does not say %q:\n%s", words, out)
				}
			}
		})
	}
}

func TestUpEndsInAVolumeOfEachEngine(t *testing.T) {
	h := newHost(t, able())
	// A second time it goes on with the cluster that is there.
	for range 2 {
		out, code := h.run("up")
		if code != 0 || !strings.Contains(out, "data of weft-demo\n") || !strings.Contains(out, "data of weft-demo-spdk\n") {
			t.Fatalf("exit status %d:\n%s", code, out)
		}
	}
	created := 0
	for _, call := range h.state().Calls {
		if strings.HasPrefix(call, "kind create cluster") {
			created++
		}
	}
	if created != 1 {
		t.Errorf("%d clusters were made", created)
	}
}

func TestUpServesWithTheEngineThatTheHostCan(t *testing.T) {
	small := able()
	small.CPUs = 1
	for _, test := range []struct {
		name            string
		host            state
		shown, left, no string
	}{
		{"no kernel target", without(able(), "xfs"), "data of weft-demo-spdk\n", "data of weft-demo\n", "No volume of the kernel's target: the kernel lacks xfs."},
		{"one CPU", small, "data of weft-demo\n", "data of weft-demo-spdk\n", "No volume of SPDK's target: it takes a whole CPU"},
	} {
		t.Run(test.name, func(t *testing.T) {
			out, code := newHost(t, test.host).run("up")
			if code != 0 || !strings.Contains(out, test.shown) || strings.Contains(out, test.left) || !strings.Contains(out, test.no) {
				t.Errorf("exit status %d:\n%s", code, out)
			}
		})
	}
}

func TestUpFailsWhereSomethingIsMissing(t *testing.T) {
	noTarget, noImage, noPod := able(), able(), able()
	noTarget.NeverReady = []string{"spdk-file"}
	noImage.Images = noImage.Images[:1]
	noPod.NeverReady = []string{"weft-demo"}
	for _, test := range []struct {
		name string
		host state
		says string
	}{
		{"a target is not Ready", noTarget, "target spdk-file is not Ready"},
		{"the image of target pods was not built", noImage, `image: "weft-target:0.9" not present locally`},
		{"a pod does not start", noPod, "pod weft-demo is not Ready"},
		{"the host lacks what every volume needs", without(able(), "dm_mod"), "lacks dm_mod"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if out, code := newHost(t, test.host).run("up"); code == 0 || !strings.Contains(out, test.says) {
				t.Errorf("exit status %d:\n%s", code, out)
			}
		})
	}
}

func TestDownLeavesNothing(t *testing.T) {
	h := newHost(t, able())
	if out, code := h.run("down"); code != 0 || !strings.Contains(out, "There is no cluster weft.") {
		t.Errorf("without a cluster: exit status %d:\n%s", code, out)
	}
	if out, code := h.run("up"); code != 0 {
		t.Fatalf("exit status %d:\n%s", code, out)
	}
	if out, code := h.run("down"); code != 0 {
		t.Fatalf("exit status %d:\n%s", code, out)
	}
	if s := h.state(); s.Nodes != nil || len(s.Loops) > 0 {
		t.Errorf("left: nodes %v, loop devices of %v", s.Nodes, s.Loops)
	}
}

// A cluster whose volumes are still there is not removed: their connections would stay in the host's kernel.
func TestDownWaitsForVolumes(t *testing.T) {
	stuck := able()
	stuck.NeverReady = []string{"delete nvmftarget"}
	h := newHost(t, stuck)
	if out, code := h.run("up"); code != 0 {
		t.Fatalf("exit status %d:\n%s", code, out)
	}
	if out, code := h.run("down"); code == 0 || !strings.Contains(out, "volumes are left") || h.state().Nodes == nil {
		t.Errorf("exit status %d, nodes %v:\n%s", code, h.state().Nodes, out)
	}
}

// A cluster on which weft was never installed has no volumes to delete.
func TestDownAfterAFailedStart(t *testing.T) {
	unbuilt := able()
	unbuilt.Images = nil
	h := newHost(t, unbuilt)
	if out, code := h.run("up"); code == 0 {
		t.Fatalf("went on without images:\n%s", out)
	}
	if out, code := h.run("down"); code != 0 || h.state().Nodes != nil {
		t.Errorf("exit status %d, nodes %v:\n%s", code, h.state().Nodes, out)
	}
}
