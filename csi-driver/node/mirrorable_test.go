// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	testingclock "k8s.io/utils/clock/testing"
	utilexec "k8s.io/utils/exec"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node"
	"github.com/weft-storage/weft/csi-driver/node/internal/filesystem"
	"github.com/weft-storage/weft/csi-driver/node/internal/mapper"
	"github.com/weft-storage/weft/csi-driver/node/internal/md"
	"github.com/weft-storage/weft/csi-driver/node/nodetest"
)

// needs is a machine of which only kernel modules and programs are there. It runs modprobe, which loads what it finds.
type needs struct {
	utilexec.Interface
	t    *testing.T
	root string
	// programs in the image, and modules that the kernel's package has.
	programs, modules map[string]bool
	// loaded modules, or built in.
	loaded map[string]bool
	// killed: modprobe is, before it has done anything.
	killed bool
	// asked of modprobe.
	asked []string
}

// killedError is how a program ends that is killed.
type killedError struct{ utilexec.CodeExitError }

func (killedError) Exited() bool { return false }

func newNeeds(t *testing.T) *needs {
	t.Helper()
	n := &needs{
		t: t, root: t.TempDir(), loaded: map[string]bool{},
		programs: map[string]bool{"mdadm": true, "modprobe": true}, modules: map[string]bool{"md_mod": true, "raid1": true, "dm_mod": true},
	}
	for _, dir := range []string{"proc", "dev/mapper"} {
		must(t, os.MkdirAll(filepath.Join(n.root, dir), 0o750))
	}
	// It is there before the module is (kmod static-nodes), and cannot be opened then.
	must(t, syscall.Mknod(filepath.Join(n.root, "dev/mapper/control"), syscall.S_IFSOCK|0o600, 0))
	return n
}

func (n *needs) LookPath(name string) (string, error) {
	if !n.programs[name] {
		return "", utilexec.ErrExecutableNotFound
	}
	return "/usr/sbin/" + name, nil
}

func (n *needs) CommandContext(_ context.Context, name string, args ...string) utilexec.Cmd {
	return nodetest.Program(func() ([]byte, error) {
		if name != "modprobe" || len(args) != 1 {
			n.t.Errorf("%s %v is run", name, args)
		}
		n.asked = append(n.asked, args[0])
		switch {
		case !n.programs[name]:
			return nil, utilexec.ErrExecutableNotFound
		case n.killed:
			return nil, killedError{utilexec.CodeExitError{Err: errors.New("signal: killed"), Code: 137}}
		case n.loaded[args[0]]:
			return nil, nil
		case !n.modules[args[0]] || args[0] == "raid1" && !n.loaded["md_mod"] && !n.modules["md_mod"]:
			return nil, utilexec.CodeExitError{Err: errors.New("FATAL: Module " + args[0] + " not found"), Code: 1}
		}
		n.load(args[0])
		return nil, nil
	})
}

// load a module, as the kernel does, with what it needs.
func (n *needs) load(name string) {
	n.t.Helper()
	n.loaded[name] = true
	if name == "dm_mod" {
		control := filepath.Join(n.root, "dev/mapper/control")
		must(n.t, errors.Join(os.Remove(control), os.WriteFile(control, nil, 0o600)))
		return
	}
	n.loaded["md_mod"] = true
	kinds := "Personalities : "
	if n.loaded["raid1"] {
		kinds += "[raid1] "
	}
	must(n.t, os.WriteFile(filepath.Join(n.root, "proc/mdstat"), []byte(kinds+"\nunused devices: <none>\n"), 0o600))
}

func (n *needs) reporter() (*node.NeedsReporter, client.Client, *testingclock.FakeClock) {
	n.t.Helper()
	c, clock := newNode(n.t)
	load := (&filesystem.Host{Exec: n}).LoadModule
	return &node.NeedsReporter{
		Available: node.MirrorsAvailable,
		Needs:     []node.Loader{&md.Host{Root: n.root, Exec: n, LoadModule: load}, &mapper.Host{Root: n.root, LoadModule: load}}, Clock: clock,
		Writer: &node.ConditionWriter{
			Client: c, Node: "node1", UID: "1", Clock: clock, Type: v1alpha1.ConditionMirrorsUnavailable, FieldManager: node.MirrorsFieldManager,
		},
	}, c, clock
}

// newNode is the Node node1, with UID 1, and a clock.
func newNode(t *testing.T) (client.Client, *testingclock.FakeClock) {
	t.Helper()
	scheme := runtime.NewScheme()
	must(t, errors.Join(corev1.AddToScheme(scheme), eventsv1.AddToScheme(scheme)))
	machine := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1", UID: "1"}}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(machine).WithStatusSubresource(machine).Build()
	return c, testingclock.NewFakeClock(time.Date(2026, 11, 20, 8, 0, 0, 0, time.UTC))
}

// mirrorsOf is the condition in words; empty when there is none.
func mirrorsOf(t *testing.T, c client.Client) string {
	t.Helper()
	return conditionOf(t, c, v1alpha1.ConditionMirrorsUnavailable)
}

// conditionOf node1 in words; empty when there is none.
func conditionOf(t *testing.T, c client.Client, kind corev1.NodeConditionType) string {
	t.Helper()
	var node corev1.Node
	must(t, c.Get(t.Context(), client.ObjectKey{Name: "node1"}, &node))
	condition := v1alpha1.NodeCondition(&node, kind)
	if condition == nil {
		return ""
	}
	return string(condition.Status) + " " + condition.Reason + " " + condition.Message
}

func TestConditionSaysWhetherTheNodeCanHoldMirrors(t *testing.T) {
	const can = "False AsExpected this node can mirror volumes with several replicas"
	for name, test := range map[string]struct {
		prepare func(*needs)
		// want of the condition, in parts; asked of modprobe.
		want  []string
		asked []string
	}{
		"modules that can be loaded": {func(*needs) {}, []string{can}, []string{"md_mod", "raid1", "dm_mod"}},
		"modules that are there, and cannot be loaded": {func(n *needs) {
			n.load("raid1")
			n.load("dm_mod")
			clear(n.modules)
			delete(n.programs, "modprobe")
		}, []string{can}, nil},
		"md without mirrors": {func(n *needs) {
			n.load("md_mod")
			delete(n.modules, "raid1")
		}, []string{"True KernelModuleMissing ", "load kernel module raid1: modprobe: FATAL: Module raid1 not found", "install the kernel package"}, []string{"md_mod", "raid1", "dm_mod"}},
		"no md": {func(n *needs) {
			delete(n.modules, "md_mod")
		}, []string{"True KernelModuleMissing ", "load kernel module md_mod: modprobe", "; load kernel module raid1: modprobe"}, []string{"md_mod", "raid1", "dm_mod"}},
		"no device mapper": {func(n *needs) {
			delete(n.modules, "dm_mod")
		}, []string{"True KernelModuleMissing ", "load kernel module dm_mod: modprobe: FATAL: Module dm_mod not found"}, []string{"md_mod", "raid1", "dm_mod"}},
		"nothing": {func(n *needs) {
			clear(n.modules)
		}, []string{"True KernelModuleMissing ", "module raid1", "module dm_mod"}, []string{"md_mod", "raid1", "dm_mod"}},
		"no mdadm": {func(n *needs) {
			delete(n.programs, "mdadm")
		}, []string{"True ProgramMissing program mdadm not found", "image of weft"}, []string{"dm_mod"}},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNeeds(t)
			test.prepare(n)
			r, c, _ := n.reporter()
			for range 2 { // the second look changes nothing
				available, err := r.Look(t.Context())
				must(t, err)
				got := mirrorsOf(t, c)
				if available != (test.want[0] == can) || !strings.HasPrefix(got, test.want[0]) || strings.Contains(got, "\n") {
					t.Errorf("available: %t; condition %q", available, got)
				}
				for _, part := range test.want {
					if !strings.Contains(got, part) {
						t.Errorf("the condition is %q, without %q", got, part)
					}
				}
			}
			if first := n.asked[:min(len(n.asked), len(test.asked))]; !slices.Equal(first, test.asked) || test.want[0] == can && len(n.asked) > len(test.asked) {
				t.Errorf("modprobe was asked for %q, want %q first, and none again that was loaded", n.asked, test.asked)
			}
		})
	}
}

// What is not known is not reported as missing, nor as there.
func TestUnknownIsNotMissing(t *testing.T) {
	for name, prevent := range map[string]func(*needs){
		"modprobe is killed":         func(n *needs) { n.killed = true },
		"modprobe cannot be started": func(n *needs) { delete(n.programs, "modprobe") },
		"mdstat cannot be read":      func(n *needs) { must(n.t, os.Mkdir(filepath.Join(n.root, "proc/mdstat"), 0o750)) },
	} {
		t.Run(name, func(t *testing.T) {
			for _, before := range []bool{true, false} {
				n := newNeeds(t)
				r, c, _ := n.reporter()
				if before {
					all := maps.Clone(n.modules)
					clear(n.modules)
					_, err := r.Look(t.Context())
					must(t, err)
					n.modules = all
				}
				was := mirrorsOf(t, c)
				prevent(n)
				if available, err := r.Look(t.Context()); err == nil || available {
					t.Errorf("available: %t, error %v", available, err)
				}
				if got := mirrorsOf(t, c); got != was || before == (was == "") {
					t.Errorf("the condition is %q, and was %q", got, was)
				}
			}
		})
	}
}

// What is missing is looked for again soon, and what is there seldom. Each change is an Event.
func TestMirrorsAreLookedForAgain(t *testing.T) {
	n := newNeeds(t)
	delete(n.modules, "raid1")
	r, c, clock := n.reporter()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	g := NewWithT(t)
	looked := func() { // a look has ended when the next is waited for
		t.Helper()
		g.Eventually(clock.HasWaiters).WithTimeout(time.Minute).Should(BeTrue())
	}
	looked()
	g.Expect(mirrorsOf(t, c)).To(HavePrefix("True KernelModuleMissing"))

	n.modules["raid1"] = true
	clock.Step(node.MirrorsRetryInterval)
	looked()
	g.Expect(mirrorsOf(t, c)).To(HavePrefix("False AsExpected"))

	delete(n.modules, "raid1")
	delete(n.loaded, "raid1")
	n.load("md_mod") // which is what is left
	clock.Step(node.MirrorsInterval - time.Second)
	g.Expect(clock.HasWaiters()).To(BeTrue())
	clock.Step(time.Second)
	looked()
	g.Expect(mirrorsOf(t, c)).To(HavePrefix("True KernelModuleMissing"))
	stop()
	g.Expect(<-done).To(Succeed())

	var events eventsv1.EventList
	must(t, c.List(t.Context(), &events))
	var told []string
	for _, e := range events.Items {
		told = append(told, e.Type+" "+e.Reason+" "+e.Regarding.Kind)
	}
	g.Expect(told).To(ConsistOf("Warning KernelModuleMissing Node", "Normal AsExpected Node", "Warning KernelModuleMissing Node"))
}
