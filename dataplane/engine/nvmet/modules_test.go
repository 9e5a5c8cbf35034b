// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/utils/exec"
	testingexec "k8s.io/utils/exec/testing"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
)

// fakeKernel loads and unloads modules in a tree, as modprobe and rmmod do.
type fakeKernel struct {
	t    *testing.T
	root string
	// parameters that its modules have, with their defaults.
	parameters map[string]map[string]string
	// busy modules cannot be unloaded, missing ones not loaded.
	busy, missing []string
	ran           []string
}

func newFakeKernel(t *testing.T) *fakeKernel {
	k := &fakeKernel{t: t, root: t.TempDir(), parameters: map[string]map[string]string{
		"nvmet_tcp":  {"idle_poll_period_usecs": "0", "so_priority": "0"},
		"nvmet_rdma": {"use_srq": "N", "srq_size": "1024"},
	}}
	k.put("sys/kernel/config/nvmet/ports/.keep", "")
	if err := os.Remove(filepath.Join(k.root, "sys/kernel/config/nvmet/ports/.keep")); err != nil {
		t.Fatal(err)
	}
	return k
}

func (k *fakeKernel) put(path, text string) {
	k.t.Helper()
	path = filepath.Join(k.root, path)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text+"\n"), 0o644)); err != nil {
		k.t.Fatal(err)
	}
}

func (k *fakeKernel) parameter(module, name string) string {
	text, err := os.ReadFile(filepath.Join(k.root, "sys/module", module, "parameters", name))
	if err != nil {
		k.t.Fatal(err)
	}
	return string(bytes.TrimSpace(text))
}

func (k *fakeKernel) load(module string, arguments ...string) error {
	if slices.Contains(k.missing, module) {
		return errors.New("not found")
	}
	k.put(filepath.Join("sys/module", module, "refcnt"), "0")
	for name, value := range k.parameters[module] {
		for _, a := range arguments {
			if v, ok := strings.CutPrefix(a, name+"="); ok {
				value = v
			}
		}
		k.put(filepath.Join("sys/module", module, "parameters", name), value)
	}
	return nil
}

func (k *fakeKernel) run(name string, args ...string) error {
	k.ran = append(k.ran, strings.Join(append([]string{name}, args...), " "))
	switch {
	case name == "modprobe":
		return k.load(args[0], args[1:]...)
	case name == "rmmod" && !slices.Contains(k.busy, args[0]):
		return os.RemoveAll(filepath.Join(k.root, "sys/module", args[0]))
	}
	return fmt.Errorf("%s: in use", args[0])
}

// Interface of commands.
func (k *fakeKernel) Command(name string, args ...string) exec.Cmd {
	cmd := &testingexec.FakeCmd{}
	cmd.RunScript = []testingexec.FakeAction{func() ([]byte, []byte, error) { return nil, nil, k.run(name, args...) }}
	return cmd
}

func (k *fakeKernel) CommandContext(_ context.Context, name string, args ...string) exec.Cmd {
	return k.Command(name, args...)
}

func (k *fakeKernel) LookPath(file string) (string, error) { return file, nil }

func (k *fakeKernel) host() *host { return &host{root: k.root, exec: k} }

func TestSetModules(t *testing.T) {
	tcp := func(micros int64, priority int32) v1alpha1.NvmetPlan {
		return v1alpha1.NvmetPlan{TCP: &v1alpha1.NvmetTCP{IdlePollPeriodMicroseconds: micros, SocketPriority: priority}}
	}
	srq := v1alpha1.NvmetPlan{RDMA: &v1alpha1.NvmetRDMA{SRQDepth: new(int32(4096))}}
	rdmaPort := func(k *fakeKernel) { k.put("sys/kernel/config/nvmet/ports/1/addr_trtype", "rdma") }
	loaded := func(module string, arguments ...string) func(*fakeKernel) {
		return func(k *fakeKernel) {
			if err := k.load(module, arguments...); err != nil {
				k.t.Fatal(err)
			}
		}
	}
	for _, test := range []struct {
		name        string
		given       []func(*fakeKernel)
		plan        v1alpha1.NvmetPlan
		ran         []string
		parameters  map[string]string
		differences []string
	}{
		{name: "TCP as it is", given: []func(*fakeKernel){loaded("nvmet_tcp")}, plan: tcp(0, 0)},
		{name: "TCP while it serves", given: []func(*fakeKernel){loaded("nvmet_tcp")}, plan: tcp(50, 6),
			parameters: map[string]string{"nvmet_tcp/idle_poll_period_usecs": "50", "nvmet_tcp/so_priority": "6"}},
		{name: "TCP, not loaded yet", plan: tcp(50, 0), ran: []string{"modprobe nvmet_tcp"}, parameters: map[string]string{"nvmet_tcp/idle_poll_period_usecs": "50"}},
		{name: "TCP back to nothing", given: []func(*fakeKernel){loaded("nvmet_tcp", "so_priority=6")}, plan: tcp(0, 0), parameters: map[string]string{"nvmet_tcp/so_priority": "0"}},
		{name: "a kernel without idle polling, not asked for", given: []func(*fakeKernel){func(k *fakeKernel) { delete(k.parameters["nvmet_tcp"], "idle_poll_period_usecs") }},
			plan: tcp(0, 6), ran: []string{"modprobe nvmet_tcp"}, parameters: map[string]string{"nvmet_tcp/so_priority": "6"}},
		{name: "a kernel without idle polling, asked for", given: []func(*fakeKernel){func(k *fakeKernel) { delete(k.parameters["nvmet_tcp"], "idle_poll_period_usecs") }},
			plan: tcp(50, 6), ran: []string{"modprobe nvmet_tcp"}, parameters: map[string]string{"nvmet_tcp/so_priority": "6"}, differences: []string{"no such parameter"}},
		{name: "a module that is not there", given: []func(*fakeKernel){func(k *fakeKernel) { k.missing = []string{"nvmet_tcp"} }}, plan: tcp(50, 6), ran: []string{"modprobe nvmet_tcp"}},

		{name: "RDMA as it is", given: []func(*fakeKernel){loaded("nvmet_rdma"), rdmaPort}, plan: v1alpha1.NvmetPlan{RDMA: &v1alpha1.NvmetRDMA{}}},
		{name: "SRQ, not loaded yet", plan: srq, ran: []string{"modprobe nvmet_rdma use_srq=Y srq_size=4096"},
			parameters: map[string]string{"nvmet_rdma/use_srq": "Y", "nvmet_rdma/srq_size": "4096"}},
		{name: "SRQ, loaded without", given: []func(*fakeKernel){loaded("nvmet_rdma")}, plan: srq, ran: []string{"rmmod nvmet_rdma", "modprobe nvmet_rdma use_srq=Y srq_size=4096"},
			parameters: map[string]string{"nvmet_rdma/use_srq": "Y", "nvmet_rdma/srq_size": "4096"}},
		{name: "SRQ, deeper", given: []func(*fakeKernel){loaded("nvmet_rdma", "use_srq=Y")}, plan: srq, ran: []string{"rmmod nvmet_rdma", "modprobe nvmet_rdma use_srq=Y srq_size=4096"},
			parameters: map[string]string{"nvmet_rdma/srq_size": "4096"}},
		{name: "SRQ, while it serves", given: []func(*fakeKernel){loaded("nvmet_rdma"), rdmaPort}, plan: srq,
			parameters:  map[string]string{"nvmet_rdma/use_srq": "N", "nvmet_rdma/srq_size": "1024"},
			differences: []string{"use_srq is N, but should be Y", "srq_size is 1024, but should be 4096", "port 1 uses it: reboot the node"}},
		{name: "SRQ, in use by somebody", given: []func(*fakeKernel){loaded("nvmet_rdma"), func(k *fakeKernel) { k.busy = []string{"nvmet_rdma"} }}, plan: srq,
			ran: []string{"rmmod nvmet_rdma"}, differences: []string{"use_srq is N, but should be Y", "srq_size is 1024, but should be 4096", "cannot be unloaded"}},
		{name: "no SRQ any more", given: []func(*fakeKernel){loaded("nvmet_rdma", "use_srq=Y")}, plan: v1alpha1.NvmetPlan{RDMA: &v1alpha1.NvmetRDMA{}},
			ran: []string{"rmmod nvmet_rdma", "modprobe nvmet_rdma use_srq=N"}, parameters: map[string]string{"nvmet_rdma/use_srq": "N"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			k := newFakeKernel(t)
			for _, given := range test.given {
				given(k)
			}
			for again := range 2 {
				differences, err := k.host().setModules(t.Context(), test.plan)
				if err != nil {
					t.Fatal(err)
				}
				if len(differences) != len(test.differences) {
					t.Fatalf("differences %q, want %q", differences, test.differences)
				}
				for i, words := range test.differences {
					if !strings.Contains(differences[i], words) {
						t.Errorf("%q does not say %q", differences[i], words)
					}
				}
				// The second time there is nothing to do but what failed the first time.
				if again == 0 && !slices.Equal(k.ran, test.ran) {
					t.Errorf("ran %q, want %q", k.ran, test.ran)
				}
				if again == 1 && len(test.differences) == 0 && len(k.missing) == 0 && len(k.ran) != len(test.ran) {
					t.Errorf("ran %q again", k.ran[len(test.ran):])
				}
			}
			for name, value := range test.parameters {
				module, name, _ := strings.Cut(name, "/")
				if got := k.parameter(module, name); got != value {
					t.Errorf("%s of %s is %q, want %q", name, module, got, value)
				}
			}
		})
	}
}

// A kernel before Linux 6.9 has no param_max_queue_size: its portals are opened and found again as they are.
func TestPortsOfAnOlderKernel(t *testing.T) {
	k := newFakeKernel(t)
	dir := fmt.Sprintf("sys/kernel/config/nvmet/ports/%d/", FirstPort)
	for name, value := range map[string]string{
		"addr_traddr": "127.0.0.1", "addr_trsvcid": "4420", "addr_trtype": "tcp", "addr_adrfam": "ipv4", "param_inline_data_size": "4096",
		"subsystems/.keep": "",
	} {
		k.put(dir+name, value)
	}
	if err := os.Remove(filepath.Join(k.root, dir, "subsystems/.keep")); err != nil {
		t.Fatal(err)
	}
	h := k.host()
	want := engine.Portal{Portal: v1alpha1.Portal{Transport: v1alpha1.TransportTCP, Address: "127.0.0.1", Port: 4420}, QueueDepth: 128, InCapsuleDataBytes: 4096}
	p, err := h.preparePort(t.Context(), want)
	if err != nil {
		t.Fatal(err)
	}
	if got := p.portal(); got.QueueDepth != 0 || got.Portal != want.Portal {
		t.Errorf("got %+v", got)
	}
	want.InCapsuleDataBytes = 8192
	if _, err := h.preparePort(t.Context(), want); !errors.Is(err, engine.ErrRestartNeeded) {
		t.Errorf("other in-capsule data: %v", err)
	}
}

// What runs is told in the words of a plan, with the planned value where it is another.
func TestSettings(t *testing.T) {
	k := newFakeKernel(t)
	plan := v1alpha1.NvmetPlan{TCP: &v1alpha1.NvmetTCP{IdlePollPeriodMicroseconds: 50}, RDMA: &v1alpha1.NvmetRDMA{SRQDepth: new(int32(4096))}}
	expect := func(want ...v1alpha1.EngineSetting) {
		t.Helper()
		got, err := k.host().settings(plan)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("got %+v and %v, want %+v", got, err, want)
		}
	}
	expect() // no module is loaded
	if err := errors.Join(k.load("nvmet_tcp"), k.load("nvmet_rdma")); err != nil {
		t.Fatal(err)
	}
	expect(v1alpha1.EngineSetting{Setting: "nvmet.rdma.srqDepth", Value: "none", Planned: "4096"},
		v1alpha1.EngineSetting{Setting: "nvmet.tcp.idlePollPeriodMicroseconds", Value: "0", Planned: "50"},
		v1alpha1.EngineSetting{Setting: "nvmet.tcp.socketPriority", Value: "0"})
	if _, err := k.host().setModules(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	expect(v1alpha1.EngineSetting{Setting: "nvmet.rdma.srqDepth", Value: "4096"},
		v1alpha1.EngineSetting{Setting: "nvmet.tcp.idlePollPeriodMicroseconds", Value: "50"},
		v1alpha1.EngineSetting{Setting: "nvmet.tcp.socketPriority", Value: "0"})
	delete(k.parameters["nvmet_tcp"], "idle_poll_period_usecs")
	if err := errors.Join(os.RemoveAll(filepath.Join(k.root, "sys/module/nvmet_tcp")), k.load("nvmet_tcp")); err != nil {
		t.Fatal(err)
	}
	expect(v1alpha1.EngineSetting{Setting: "nvmet.rdma.srqDepth", Value: "4096"}, v1alpha1.EngineSetting{Setting: "nvmet.tcp.socketPriority", Value: "0"})
}
