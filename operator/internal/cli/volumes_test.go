// SPDX-License-Identifier: Apache-2.0

package cli_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/claim"
	"github.com/weft-storage/weft/operator/internal/cli"
)

// plain is a target of the kernel.
const plain = `
apiVersion: weft.storage/v1alpha1
kind: NvmfTarget
metadata: {name: plain}
spec:
  engine: Nvmet
  nodeSelector: {}
  transports: [{type: TCP}]
  devices: {file: {path: /var/lib/weft/pool.img, size: 20Gi}}`

// servers are storage-1, storage-2 and so on, each in the zone given.
func servers(t *testing.T, zones ...string) string {
	t.Helper()
	var all []string
	for i, zone := range zones {
		text := strings.ReplaceAll(read(t, serverFile), "storage-1", fmt.Sprint("storage-", i+1))
		text = strings.ReplaceAll(text, "10.20.0.5", fmt.Sprint("10.20.0.", i+5))
		if zone != "" {
			text += "zone: " + zone + "\n"
		}
		all = append(all, text)
	}
	return written(t, strings.Join(all, "\n---\n"))
}

// planVolumes of the target on these servers.
func planVolumes(t *testing.T, target, servers, volumes string, args ...string) (out string, code int, err error) {
	t.Helper()
	return run(t, target, append([]string{"plan", "-f", "-", "--inventory", servers, "--volumes", written(t, volumes)}, args...)...)
}

// What two replicas cost beside one: twice the capacity, attachments, controllers, queue pairs and writes.
func TestPlanCountsReplicas(t *testing.T) {
	target, nodes := read(t, targetFile), servers(t, "a", "b", "c")
	count := func(replicas int) cli.VolumesAnswer {
		out, code, err := planVolumes(t, target, nodes, fmt.Sprintf("count: 30\nsize: 100Gi\nwrites: 10Mi\nreplicas: %d", replicas), "-o", "json")
		if err != nil || code != 0 {
			t.Fatalf("exit code %d, %v: %s", code, err, out)
		}
		return answers(t, out).Volumes[0]
	}
	sum := func(a cli.VolumesAnswer) (f cli.Figures) {
		for _, n := range a.Nodes {
			f.Replicas += n.Replicas
			f.PromisedBytes += n.PromisedBytes
			f.Attachments += n.Attachments
			f.Controllers += n.Controllers
			f.QueuePairs += n.QueuePairs
			f.WriteBytesPerSecond += n.WriteBytesPerSecond
		}
		return f
	}
	one, two := count(1), count(2)
	each := v1alpha1.WithOverhead(100 << 30)
	if want := (cli.Figures{Replicas: 30, PromisedBytes: 30 * each, Attachments: 30, Controllers: 30, QueuePairs: 90, WriteBytesPerSecond: 300 << 20}); sum(one) != want {
		t.Errorf("one replica: got %+v, want %+v", sum(one), want)
	}
	if want := (cli.Figures{Replicas: 60, PromisedBytes: 60 * each, Attachments: 60, Controllers: 60, QueuePairs: 180, WriteBytesPerSecond: 600 << 20}); sum(two) != want {
		t.Errorf("two replicas: got %+v, want %+v", sum(two), want)
	}
	if c := two.Volumes[0]; c.HostControllers != 2 || c.HostQueuePairs != 6 || c.WriteBytesPerSecond != 20<<20 {
		t.Errorf("a host has %+v for each volume", c)
	}
	for i, n := range two.Nodes {
		// Each of three nodes has 20 replicas, and takes half of those of another one.
		if n.Replicas != 20 || n.Reserve == nil || n.Reserve.Replicas != 30 || n.Reserve.PromisedBytes != 30*each || n.Reserve.Attachments != 30 {
			t.Errorf("node %d: %+v, reserve %+v", i, n, n.Reserve)
		}
		if n.MemoryBytes == 0 || n.AttachmentsExpected != 128 || n.LinkBytesPerSecond != 12_500_000_000 || n.Zone == "" {
			t.Errorf("node %d: %+v", i, n)
		}
	}
}

func TestPlanOfVolumes(t *testing.T) {
	target := read(t, targetFile)
	few := strings.Replace(target, "  devices:", "  attachments: {expected: 20}\n  devices:", 1)
	three, two := []string{"a", "b", "c"}, []string{"a", "b"}
	for name, c := range map[string]struct {
		target, volumes string
		zones           []string
		args            []string
		code            int
		want, not       []string
	}{
		"fit": {target, "count: 10\nsize: 100Gi\nreplicas: 2", three, nil, 0,
			[]string{"Volumes of NvmfTarget fast: fit", "2 x", "Reserve: the most that each node holds"}, []string{"warning: 10"}},
		"two replicas on one node": {target, "size: 1Gi\nreplicas: 2", []string{"a"}, nil, cli.CodeCannotHold,
			[]string{"do not fit", "TooFewNodes", "replicas is 2, but only 1 node can store such volumes", "add nodes, or lower replicas"}, nil},
		"two replicas in a zone of one node": {target, "size: 1Gi\nreplicas: 2\nzones: [b]", three, nil, cli.CodeCannotHold,
			[]string{"TooFewNodes", "only 1 node can store such volumes in zone b"}, nil},
		"no node for the reserve": {target, "count: 3\nsize: 1Gi\nreplicas: 2", two, nil, cli.CodeCannotHold,
			[]string{"NoReserve", "cannot be created again: storage-1 (3 replicas), storage-2 (3 replicas). Only 1 node would remain", "--reserve=false"}, nil},
		"without a reserve": {target, "count: 3\nsize: 1Gi\nreplicas: 2", two, []string{"--reserve=false"}, 0, []string{"fit"}, []string{"Reserve"}},
		"no space for the reserve": {target, "count: 20\nsize: 1Ti\nreplicas: 2", []string{"a", "b", "c", "c"}, nil, cli.CodeCannotHold,
			[]string{"NoReserve", "is lost, ", "The remaining nodes have too little space"}, []string{"NotEnoughSpace"}},
		"no space": {target, "count: 12\nsize: 2Ti", three, nil, 0, []string{"fit"}, nil},
		"a volume more": {target, "count: 13\nsize: 2Ti", three, nil, cli.CodeCannotHold,
			[]string{"NotEnoughSpace", "1 of 13 replicas of 2048.0Gi do not fit"}, nil},
		"too many attachments, also after a loss": {few, "count: 25\nsize: 1Gi\nreplicas: 2", three, nil, cli.CodeCannotHold,
			[]string{"TooManyAttachments", "attachments.expected of NvmfTarget fast is 20", "storage-1 (25)", "set attachments.expected: 25"}, nil},
		"enough of them before a loss": {few, "count: 25\nsize: 1Gi\nreplicas: 2", three, []string{"--reserve=false"}, 0, nil, nil},
		"more attachments than a target can have": {few, "count: 3000\nsize: 1Gi\nhosts: 2", []string{""}, nil, cli.CodeCannotHold,
			[]string{"storage-1 (6000); 4096 is the maximum, so add nodes"}, []string{"TooManyVolumes"}},
		"more attachments than its node has memory for": {strings.Replace(few, "expected: 20", "expected: 20, ioQueues: 8", 1), "count: 4000\nsize: 1Gi", []string{""}, nil, cli.CodeCannotHold,
			[]string{"node storage-1 cannot hold 4000 (", "so add nodes"}, nil},
		"more volumes than a target can have": {few, "count: 5000\nsize: 1Gi", []string{""}, nil, cli.CodeCannotHold,
			[]string{"TooManyVolumes", "904 of 5000 replicas of 1.0Gi do not fit, because the targets of 1 node already have as many volumes"}, []string{"NotEnoughSpace"}},
		"no volumes left for the reserve": {few, "count: 5500\nsize: 1Gi\nreplicas: 2", three, nil, cli.CodeCannotHold,
			[]string{"NoReserve", "Then the targets of 2 nodes already have as many volumes"}, []string{"TooManyVolumes"}},
		"one zone": {target, "count: 4\nsize: 1Gi\nreplicas: 2", []string{"a", "a", "a"}, nil, 0,
			[]string{"warning: 4 volumes have all their replicas in one zone"}, nil},
		"no zones": {target, "count: 4\nsize: 1Gi\nreplicas: 2", []string{"", "", ""}, nil, 0, nil, []string{"in one zone"}},
		"more writes than the network takes": {target, "count: 40\nsize: 1Gi\nreplicas: 2\nwrites: 500Mi", three, nil, 0,
			[]string{"warning: node storage-1: hosts would write", "but its network takes"}, nil},
		"the kernel's target, in a file": {plain, "count: 60\nsize: 300Mi\nreplicas: 2", three, []string{"--reserve=false"}, 0, []string{"Volumes of NvmfTarget plain: fit", "19.6Gi"}, nil},
		"of one target of two":           {target + "---\n" + plain, "target: plain\nsize: 1Gi", three, nil, 0, []string{"Volumes of NvmfTarget plain: fit"}, []string{"Volumes of NvmfTarget fast"}},
	} {
		t.Run(name, func(t *testing.T) {
			out, code, err := planVolumes(t, c.target, servers(t, c.zones...), c.volumes, c.args...)
			if err != nil || code != c.code {
				t.Errorf("exit code %d, %v; want %d:\n%s", code, err, c.code, out)
			}
			for _, w := range c.want {
				if !strings.Contains(out, w) {
					t.Errorf("want %q in:\n%s", w, out)
				}
			}
			for _, w := range c.not {
				if strings.Contains(out, w) {
					t.Errorf("do not want %q in:\n%s", w, out)
				}
			}
		})
	}
}

// The memory shown is that of a target which allows all the attachments that are needed.
func TestPlanOfVolumesShowsTheMemoryOfItsAttachments(t *testing.T) {
	memory := func(expected int) int64 {
		target := strings.Replace(read(t, targetFile), "  devices:", fmt.Sprintf("  attachments: {expected: %d}\n  devices:", expected), 1)
		out, _, err := planVolumes(t, target, servers(t, "a", "b", "c"), "count: 300\nsize: 1Gi\nreplicas: 2", "-o", "json")
		if err != nil {
			t.Fatal(err)
		}
		return answers(t, out).Volumes[0].Nodes[0].MemoryBytes
	}
	if few, enough, more := memory(20), memory(300), memory(400); few != enough || more <= enough {
		t.Errorf("with 20 expected: %d bytes, with 300: %d, with 400: %d", few, enough, more)
	}
}

// What a node of the target reports of its pools counts, with what is there already.
func TestPlanOfVolumesBesideOthers(t *testing.T) {
	const node = `
apiVersion: weft.storage/v1alpha1
kind: NvmfNode
metadata: {name: storage-1}
spec: {target: plain}
status:
  inventory:
    modules: [loop, nvmet, nvmet_tcp, xfs]
    nics: [{name: eth0, up: true, addresses: [10.0.0.1/8]}]
  pools: [{device: /var/lib/weft/pool.img, ready: true, total: 10Gi, promised: 7Gi}]
  attachments: {used: 5}
  volumes: {used: 6}`
	for target, want := range map[string]cli.Figures{
		plain: {Replicas: 8, PromisedBytes: 7<<30 + 2*v1alpha1.WithOverhead(1<<30), Attachments: 7, Controllers: 2, QueuePairs: 6},
		strings.Replace(plain, "name: plain", "name: other", 1): {Replicas: 10, PromisedBytes: 10 * v1alpha1.WithOverhead(1<<30), Attachments: 10, Controllers: 10, QueuePairs: 30},
	} {
		out, _, err := planVolumes(t, target, written(t, node), "count: 10\nsize: 1Gi", "-o", "json")
		if err != nil {
			t.Fatal(err)
		}
		if a := answers(t, out).Volumes; len(a) != 1 || len(a[0].Nodes) != 1 || a[0].Nodes[0].Figures != want {
			t.Errorf("got %s, want %+v", out, want)
		}
	}
}

// A node that cannot hold the target stores nothing, and is named.
func TestPlanOfVolumesLeavesOutNodes(t *testing.T) {
	nodes := read(t, servers(t, "a", "b")) + "\n---\n" + strings.ReplaceAll(strings.ReplaceAll(read(t, serverFile), "storage-1", "small"), "16Gi}", "64Mi}")
	out, code, err := planVolumes(t, read(t, targetFile), written(t, nodes), "size: 1Gi\nreplicas: 2", "--reserve=false", "-o", "json")
	if err != nil || code != cli.CodeCannotHold {
		t.Fatalf("exit code %d, %v", code, err)
	}
	a := answers(t, out).Volumes[0]
	if a.Verdict != claim.Fits || len(a.Nodes) != 2 || len(a.Warnings) != 1 || !strings.Contains(a.Warnings[0], "node small is not counted") {
		t.Errorf("got %+v", a)
	}
}

func TestPlanOfVolumesErrors(t *testing.T) {
	target := read(t, targetFile)
	second := strings.Replace(strings.SplitN(target, "---", 3)[1], "name: fast", "name: second", 1)
	for name, c := range map[string]struct{ target, volumes, want string }{
		"three replicas":          {target, "size: 1Gi\nreplicas: 3", "document 1: replicas is 3; must be 1 or 2"},
		"fewer than one":          {target, "size: 1Gi\nreplicas: -1", "replicas is -1; must be 1 or 2"},
		"no size":                 {target, "count: 3", "the size is missing; set it, such as 100Gi"},
		"an endless size":         {target, "size: 7E", "size is 7E; must be from 1 to 1Pi"},
		"a size below zero":       {target, "size: -1Gi", "size is -1Gi"},
		"no volumes":              {target, "size: 1Gi\ncount: -1", "count is -1; must be from 1 to 100000"},
		"too many in all":         {target, "size: 1Gi\ncount: 60000\n---\nsize: 1Gi\ncount: 60000", "120000 volumes; no more than 100000 can be planned at once"},
		"shared, with replicas":   {target, "size: 1Gi\nhosts: 2\nreplicas: 2", "a volume with several replicas is used by one node at a time"},
		"writes below zero":       {target, "size: 1Gi\nwrites: -1", "writes is -1"},
		"another target":          {target, "size: 1Gi\ntarget: slow", `target is "slow", which is not planned; use one of fast`},
		"one of two targets":      {target + "---\n" + second, "size: 1Gi", "the target is missing; use one of fast, second"},
		"a class of drives":       {target, "size: 1Gi\ndeviceClass: qlc", `NvmfTarget fast has no device class "qlc"; its device classes: none`},
		"queues":                  {target, "size: 1Gi\nioQueues: 9", "ioQueues is 9; must be from 1 to 8, the maximum of NvmfTarget fast"},
		"a transport":             {target, "size: 1Gi\ntransports: [TPC]", "NvmfTarget fast has no transport TPC"},
		"a label without effect":  {target, "size: 1Gi\nzoneLabel: rack", "zoneLabel has no effect without zones or replicas: 2"},
		"an unknown field":        {target, "size: 1Gi\nreplica: 2", `unknown field "replica"`},
		"a number in quotes":      {target, "size: 1Gi\nreplicas: \"2\"", "replicas is a string; must be a whole number"},
		"a claim":                 {target, "apiVersion: v1\nkind: PersistentVolumeClaim", "unexpected object v1 PersistentVolumeClaim"},
		"all that is wrong":       {target, "size: 1Gi\nreplicas: 3\n---\nsize: 0", "document 2: the size is missing"},
		"nothing":                 {target, "# nothing\n", "is empty"},
		"more hosts than planned": {target, "size: 1Gi\nhosts: 1001", "hosts is 1001; must be from 1 to 1000"},
	} {
		t.Run(name, func(t *testing.T) {
			_, code, err := planVolumes(t, c.target, serverFile, c.volumes)
			if code != cli.CodeError || err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %d, %v; want %q", code, err, c.want)
			}
		})
	}
	_, code, err := run(t, "", "plan", "-f", targetFile, "--node", "a", "--volumes", "b")
	if code != cli.CodeError || err == nil || !strings.Contains(err.Error(), "none of the others can be") {
		t.Errorf("--node and --volumes: %d, %v", code, err)
	}
}

// The example of the documentation fits on the example's hardware, and the sample is read.
func TestDocumentedVolumes(t *testing.T) {
	_, text, found := strings.Cut(read(t, "../../../docs/kubectl-weft/plan.md"), "```yaml\ntarget: fast ")
	text, _, closed := strings.Cut(text, "```")
	if !found || !closed {
		t.Fatal("docs/kubectl-weft/plan.md has no example of volumes")
	}
	target := strings.Replace(read(t, targetFile), "devices:\n    selector: {minSize: 1T}", "devices:\n    classes: [{name: tlc, selector: {minSize: 1T}}]", 1)
	for _, volumes := range []string{"target: fast " + text, read(t, "../../../config/samples/inventory/volumes.yaml")} {
		if out, code, err := planVolumes(t, target, servers(t, "zone-a", "zone-b", "zone-a", "zone-b"), volumes); err != nil || code != 0 {
			t.Errorf("exit code %d, %v:\n%s", code, err, out)
		}
	}
}
