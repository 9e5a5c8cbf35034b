// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/claim"
	"github.com/weft-storage/weft/operator/internal/gather"
)

// checkedFleet is a survey of servers that are alike, and that the target of testdata/target.yaml chooses.
type checkedFleet struct {
	*survey
	kube []*corev1.Node
	// objects by node.
	servers map[string]*v1alpha1.NvmfNode
}

func newCheckedFleet(t *testing.T, names ...string) *checkedFleet {
	t.Helper()
	server, err := os.ReadFile("testdata/server.yaml")
	if err != nil {
		t.Fatal(err)
	}
	docs, err := readDocuments("testdata/target.yaml", nil)
	if err != nil {
		t.Fatal(err)
	}
	targets, err := targetsOf(t.Context(), docs, nil)
	if err != nil {
		t.Fatal(err)
	}
	f := &checkedFleet{survey: &survey{targets: []v1alpha1.NvmfTarget{*targets[0]}, installed: true}, servers: map[string]*v1alpha1.NvmfNode{}}
	for i, name := range names {
		address := fmt.Sprintf("10.20.0.%d", 5+i)
		docs, err := readDocuments("-", strings.NewReader(strings.NewReplacer("storage-1", name, "10.20.0.5", address).Replace(string(server))))
		if err != nil {
			t.Fatal(err)
		}
		nodes, _, err := nodesOf(docs)
		if err != nil {
			t.Fatal(err)
		}
		kube := debian(nil)
		kube.Name, kube.Labels = name, map[string]string{"weft.storage/target": "fast"}
		kube.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}
		kube.Status.Capacity = corev1.ResourceList{"cpu": resource.MustParse("64"), "memory": resource.MustParse("256Gi"), "hugepages-2Mi": resource.MustParse("16Gi"), "hugepages-1Gi": resource.MustParse("0")}
		kube.Status.Allocatable = kube.Status.Capacity.DeepCopy()
		nodes[0].Nvmf.Status.Inventory.NICs[0].MTU = 9000
		nodes[0].Nvmf.Status.Inventory.Modules = append(nodes[0].Nvmf.Status.Inventory.Modules, "nvme_tcp", "nvme_rdma")
		f.kube, f.servers[name] = append(f.kube, &kube), nodes[0].Nvmf
	}
	return f
}

// claimed by the target are these nodes, as the operator would do it.
func (f *checkedFleet) claimed(t *testing.T, names ...string) {
	t.Helper()
	f.seen()
	for _, p := range claim.Prospects(&f.targets[0], f.targets, f.claims) {
		for _, name := range names {
			if name != p.Node {
				continue
			}
			if p.Verdict != claim.Fits {
				t.Fatalf("%s: %s, %v", name, p.Verdict, p.Reasons)
			}
			f.servers[name].Spec.Target, f.servers[name].Spec.Plan = "fast", p.Plan
		}
	}
}

// seen as the objects are now.
func (f *checkedFleet) seen() *survey {
	var nvmf []v1alpha1.NvmfNode
	f.all, f.nodes, f.nvmf = nil, nil, map[string]*v1alpha1.NvmfNode{}
	for _, n := range f.kube {
		f.all, f.nodes = append(f.all, *n), append(f.nodes, *n)
		if server := f.servers[n.Name]; server != nil {
			nvmf, f.nvmf[n.Name] = append(nvmf, *server), server
		}
	}
	f.claims = gather.Claims(gather.Nodes(f.all, nvmf, nil, nil))
	return f.survey
}

// found is what is wrong and what is to be looked after.
func found(s *survey) (wrong, advice []finding) {
	for _, f := range s.findings() {
		if f.wrong {
			wrong = append(wrong, f)
		} else {
			advice = append(advice, f)
		}
	}
	return wrong, advice
}

func TestCheckHugepages(t *testing.T) {
	pages := func(n int64) func(*v1alpha1.NvmfNode, *corev1.Node) {
		return func(server *v1alpha1.NvmfNode, _ *corev1.Node) {
			for i := range server.Status.Inventory.NUMANodes {
				pool := &server.Status.Inventory.NUMANodes[i].Hugepages[0]
				pool.Total, pool.Free = n, n
			}
		}
	}
	kubelet := func(bytes string) func(*v1alpha1.NvmfNode, *corev1.Node) {
		return func(_ *v1alpha1.NvmfNode, kube *corev1.Node) {
			kube.Status.Capacity["hugepages-2Mi"], kube.Status.Allocatable["hugepages-2Mi"] = resource.MustParse(bytes), resource.MustParse(bytes)
		}
	}
	unlabelled := func(_ *v1alpha1.NvmfNode, kube *corev1.Node) { kube.Labels = nil }
	for name, c := range map[string]struct {
		claimed       bool
		changes       []func(*v1alpha1.NvmfNode, *corev1.Node)
		wrong, advice []string
	}{
		"enough": {},
		"enough, in use": {claimed: true, changes: []func(*v1alpha1.NvmfNode, *corev1.Node){func(server *v1alpha1.NvmfNode, _ *corev1.Node) {
			server.Status.Inventory.NUMANodes[1].Hugepages[0].Free -= server.Spec.Plan.SPDK.MemoryBytes >> 21
		}}},
		"too few in the kernel": {changes: []func(*v1alpha1.NvmfNode, *corev1.Node){pages(10), kubelet("40Mi")},
			wrong: []string{"NvmfTarget fast: the target needs "}},
		"too few in the kernel of a node that serves": {claimed: true, changes: []func(*v1alpha1.NvmfNode, *corev1.Node){pages(10), kubelet("40Mi")},
			wrong: []string{"NvmfTarget fast: the target needs "}},
		"too few for the kubelet": {changes: []func(*v1alpha1.NvmfNode, *corev1.Node){kubelet("40Mi")},
			wrong: []string{"the kubelet of node storage-1 can allocate 20, "}},
		"on another NUMA node": {changes: []func(*v1alpha1.NvmfNode, *corev1.Node){func(server *v1alpha1.NvmfNode, _ *corev1.Node) {
			numa := server.Status.Inventory.NUMANodes
			numa[0].Hugepages[0].Total, numa[0].Hugepages[0].Free, numa[1].Hugepages[0].Total, numa[1].Hugepages[0].Free = 8192, 8192, 0, 0
		}}, advice: []string{"are free on the NUMA nodes of its cores"}},
		"of no target": {changes: []func(*v1alpha1.NvmfNode, *corev1.Node){pages(10), kubelet("40Mi"), unlabelled}},
		"of no target, and not counted": {changes: []func(*v1alpha1.NvmfNode, *corev1.Node){kubelet("0"), unlabelled},
			advice: []string{"its kernel has 8192 hugepages of 2Mi, and its kubelet counts 0; restart the kubelet"}},
		"of another target": {changes: []func(*v1alpha1.NvmfNode, *corev1.Node){pages(10), kubelet("40Mi"), func(server *v1alpha1.NvmfNode, _ *corev1.Node) {
			server.Spec.Target, server.Spec.Plan = "other", &v1alpha1.Plan{}
			server.Status.Pools = nil
		}}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newCheckedFleet(t, "storage-1")
			if c.claimed {
				f.claimed(t, "storage-1")
			}
			for _, change := range c.changes {
				change(f.servers["storage-1"], f.kube[0])
			}
			if name == "of another target" {
				other := *f.targets[0].DeepCopy()
				other.Name, other.Spec.Engine = "other", v1alpha1.EngineNvmet
				f.targets = append(f.targets, other)
			}
			wrong, advice := found(f.seen())
			same(t, "wrong", wrong, c.wrong)
			same(t, "advice", advice, c.advice)
		})
	}
}

func TestCheckMTUs(t *testing.T) {
	mtu := func(name string, mtu int32) func(*checkedFleet) {
		return func(f *checkedFleet) { f.servers[name].Status.Inventory.NICs[0].MTU = mtu }
	}
	nic := func(name, address string, up bool, mtu int32) func(*checkedFleet) {
		return func(f *checkedFleet) {
			f.servers[name].Status.Inventory.NICs = []v1alpha1.NIC{{Name: "eth0", Addresses: []string{address}, Up: up, MTU: mtu}}
		}
	}
	only := func(name string) func(*checkedFleet) {
		return func(f *checkedFleet) {
			f.nodes = f.nodes[:0]
			for _, n := range f.all {
				if n.Name == name {
					f.nodes = append(f.nodes, n)
				}
			}
		}
	}
	const elsewhere = "the MTU on the way to NvmfTarget fast, because none of the interfaces that agents report is in its networks (10.20.0.0/16)"
	for name, c := range map[string]struct {
		change func(*checkedFleet)
		// of the nodes that are checked, when not of all.
		of     func(*checkedFleet)
		advice []string
		// unknown is a part of what is not known; empty: nothing is said.
		unknown string
	}{
		"the same": {},
		"two nodes of a target": {change: mtu("storage-2", 1500), advice: []string{
			"the interfaces in network 10.20.0.0/16 of NvmfTarget fast have different MTUs: 9000 on storage-1 (ens1f0), worker (ens1f0); 1500 on storage-2 (ens1f0); "}},
		"a node that uses volumes":               {change: nic("worker", "10.20.1.1/16", true, 1500), advice: []string{"1500 on worker (eth0)"}},
		"a node that is not checked":             {change: mtu("storage-2", 1500), of: only("worker"), advice: []string{"1500 on storage-2"}},
		"a node that does not say":               {change: mtu("storage-2", 0)},
		"a node in another network":              {change: nic("worker", "192.0.2.1/24", true, 1500), unknown: "worker: " + elsewhere},
		"an interface that is down":              {change: nic("worker", "10.20.1.1/16", false, 1500), unknown: "worker: " + elsewhere},
		"a node in another network, not checked": {change: nic("worker", "192.0.2.1/24", true, 1500), of: only("storage-1")},
		"addresses of their own show no network": {change: func(f *checkedFleet) {
			nic("storage-1", "10.20.0.5/32", true, 1500)(f)
			nic("storage-2", "10.20.0.6/32", true, 9000)(f)
		}},
		"nobody checked is in the network": {change: func(f *checkedFleet) { mtu("storage-2", 1500)(f); nic("worker", "192.0.2.1/24", true, 1500)(f) }, of: only("worker"),
			unknown: "worker: " + elsewhere},
	} {
		t.Run(name, func(t *testing.T) {
			f := newCheckedFleet(t, "storage-1", "storage-2", "worker")
			f.kube[2].Labels = nil
			f.claimed(t, "storage-1", "storage-2")
			if c.change != nil {
				c.change(f)
			}
			s := f.seen()
			if c.of != nil {
				c.of(f)
			}
			same(t, "MTUs", s.mtus(), c.advice)
			if got := strings.Join(s.elsewhere(), "\n"); got != c.unknown {
				t.Errorf("not known: got %q, want %q", got, c.unknown)
			}
		})
	}
}

// renewed is a Lease that a clock renewed, as the API server keeps it.
func renewed(by string, clock, apiServer time.Time) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{
			{Manager: "somebody", Time: new(metav1.NewTime(apiServer.Add(time.Hour))), FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{"f:renewTime":{}}}}`)},
			{Manager: by, Time: new(metav1.NewTime(apiServer.Truncate(time.Second))), FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:holderIdentity":{},"f:renewTime":{}}}`)},
		}},
		Spec: coordinationv1.LeaseSpec{RenewTime: new(metav1.NewMicroTime(clock))},
	}
}

// lists answers lists of Leases, and fails for a namespace.
type lists struct {
	client.Reader
	leases map[string][]coordinationv1.Lease
	hidden string
}

func (l lists) List(_ context.Context, list client.ObjectList, options ...client.ListOption) error {
	var of client.ListOptions
	of.ApplyOptions(options)
	if of.Namespace == l.hidden {
		return fmt.Errorf("namespace %s is hidden", l.hidden)
	}
	list.(*coordinationv1.LeaseList).Items = l.leases[of.Namespace]
	return nil
}

func TestCheckReadsClocks(t *testing.T) {
	lease := func(name string, ahead, age time.Duration) coordinationv1.Lease {
		at := noon.Add(-age)
		l := renewed("a", at.Add(ahead), at)
		l.Name = name
		return *l
	}
	without := lease("w", 0, 0)
	without.ManagedFields = nil
	for name, c := range map[string]struct {
		kubelets, agents []coordinationv1.Lease
		want             string
	}{
		"right":            {kubelets: []coordinationv1.Lease{lease("a", 0, 0)}, want: "a -500ms"},
		"ahead and behind": {kubelets: []coordinationv1.Lease{lease("a", time.Minute, 0), lease("b", -time.Minute, time.Second)}, want: "a 59.5s, b -1m0.5s"},
		"agents":           {agents: []coordinationv1.Lease{lease("weft-agent-a", 20*time.Second, 0), lease("weft-operator", time.Hour, 0)}, want: "a 19.5s"},
		"a request that took long": {kubelets: []coordinationv1.Lease{lease("a", -8*time.Second, 0)}, agents: []coordinationv1.Lease{lease("weft-agent-a", 0, 10*time.Second)},
			want: "a -500ms"},
		"the clock was set since":          {kubelets: []coordinationv1.Lease{lease("a", 0, 0)}, agents: []coordinationv1.Lease{lease("weft-agent-a", time.Hour, 2*time.Minute)}, want: "a -500ms"},
		"a node that is off":               {kubelets: []coordinationv1.Lease{lease("a", 0, 0), lease("off", time.Hour, 10*time.Minute)}, want: "a -500ms"},
		"an API server that notes no time": {kubelets: []coordinationv1.Lease{without}},
	} {
		t.Run(name, func(t *testing.T) {
			s := &survey{namespace: "weft-system"}
			s.readClocks(t.Context(), lists{leases: map[string][]coordinationv1.Lease{corev1.NamespaceNodeLease: c.kubelets, "weft-system": c.agents}, hidden: "-"})
			var got []string
			for _, node := range []string{"a", "b", "off", "w"} {
				if reading, known := s.clocks[node]; known {
					got = append(got, fmt.Sprint(node, " ", reading.ahead))
				}
			}
			if strings.Join(got, ", ") != c.want || len(got) != len(s.clocks) || len(s.unread) > 0 {
				t.Errorf("got %q of %v, want %q; not read: %q", got, s.clocks, c.want, s.unread)
			}
		})
	}
	s := &survey{namespace: "weft-system", nodes: []corev1.Node{debian(nil)}}
	s.readClocks(t.Context(), lists{hidden: corev1.NamespaceNodeLease})
	if len(s.unread) != 1 || len(s.withoutClock()) != 1 {
		t.Errorf("not read: %q; without a clock: %q", s.unread, s.withoutClock())
	}
}

// The wide table has everything that is known of each node, and says what is not.
func TestCheckShowsNodes(t *testing.T) {
	f := newCheckedFleet(t, "storage-1", "storage-2", "worker", "new")
	f.kube[2].Labels, f.kube[3].Labels = nil, nil
	f.claimed(t, "storage-1", "storage-2")
	f.servers["storage-2"].Status.Inventory.NICs[0].MTU = 1500
	f.servers["storage-1"].Status.AgentVersion = "0.2.0"
	f.servers["worker"].Status.Conditions = []metav1.Condition{condition(v1alpha1.ConditionAgentAlive, metav1.ConditionFalse, v1alpha1.ReasonAgentSilent)}
	delete(f.servers, "new")
	f.kube[3].Status.Capacity = nil
	f.clocks = map[string]clockReading{"storage-1": {ahead: -500 * time.Millisecond}, "storage-2": {ahead: 20 * time.Second}}
	for _, format := range []string{outputTable, outputWide, outputJSON} {
		var out bytes.Buffer
		if err := f.seen().show(&out, &output{format: format}); exitCode(err) != CodeUnwell {
			t.Errorf("got %v", err)
		}
		golden(t, "check-"+format+".txt", out.String())
	}
}
