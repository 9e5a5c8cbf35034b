// SPDX-License-Identifier: Apache-2.0

package spdk_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
	"github.com/weft-storage/weft/dataplane/spdkrpc/spdktest"
	"github.com/weft-storage/weft/internal/dhchap"
)

// memoryVariable names the file that TestMeasureMemory writes, which dataplane/sizing holds its model against (make
// bench-memory). What is kept of a release is made by
//
//	make bench-memory WEFT_SPDK_TARGET=/path/to/nvmf_tgt RECORD=dataplane/sizing/testdata/memory-26.05-volumes.json
const memoryVariable = "WEFT_SPDK_MEMORY"

// What is measured: so many volumes, bare subsystems and attachments, with so many I/O queues each.
const (
	measuredVolumes     = 1000
	measuredAttachments = 32
	measuredIOQueues    = 2
	// atOnce: what many calls at once take for a moment is in the base of a pod's memory.
	atOnce = 20
)

// memoryRecord is a measurement with a number of cores. Heap is DPDK's; resident is the rest of the process's memory.
type memoryRecord struct {
	Cores int64 `json:"cores"`
	// StartedHeap is what a target takes that has its settings and nothing else, with pools of these sizes.
	BdevIOPool   int32 `json:"bdev_io_pool_size"`
	SmallBuffers int32 `json:"small_pool_count"`
	LargeBuffers int32 `json:"large_pool_count"`
	StartedHeap  int64 `json:"heap_bytes_after_start"`
	// Volumes that were made; Exports of them, each a subsystem with a namespace, a host with two keys, and a listener.
	Count           int64 `json:"volumes"`
	VolumesHeap     int64 `json:"volumes_heap_bytes"`
	VolumesResident int64 `json:"volumes_resident_bytes"`
	ExportsHeap     int64 `json:"exports_heap_bytes"`
	ExportsResident int64 `json:"exports_resident_bytes"`
	// Bare subsystems, as many as volumes, with room for one namespace and for 32.
	RoomForOneResident int64 `json:"room_for_1_resident_bytes"`
	RoomFor32Resident  int64 `json:"room_for_32_resident_bytes"`
	// Attachments that were connected and proved themselves, each with an admin queue pair and IOQueues.
	Attachments         int64 `json:"attachments"`
	IOQueues            int64 `json:"io_queues"`
	QueueDepth          int64 `json:"queue_depth"`
	InCapsuleDataSize   int64 `json:"in_capsule_data_size"`
	ReceivePipe         bool  `json:"receive_pipe"`
	AttachmentsHeap     int64 `json:"attachments_heap_bytes"`
	AttachmentsResident int64 `json:"attachments_resident_bytes"`
}

// TestMeasureMemory of volumes, subsystems and queue pairs of a real target, as weft plans it by default: hosts prove
// themselves, and sockets have no receive pipes. With one and with two cores, and once with pipes. It takes a minute.
func TestMeasureMemory(t *testing.T) {
	spdktest.RealTarget(t)
	var records []memoryRecord
	release := ""
	for _, c := range []struct {
		cores             int64
		mask              string
		depth             int32
		inCapsuleDataSize int64
		pipe              v1alpha1.Switch
	}{
		{1, "0x1", 64, 4096, v1alpha1.SwitchDisabled}, {2, "0x3", 64, 4096, v1alpha1.SwitchDisabled},
		{1, "0x1", 128, 4096, v1alpha1.SwitchDisabled}, {2, "0x3", 128, 8192, v1alpha1.SwitchDisabled},
		{1, "0x1", 128, 4096, v1alpha1.SwitchEnabled},
	} {
		m := newMachine(t)
		m.withoutPipes()
		m.plan.SPDK.Sockets.ReceivePipe = c.pipe
		m.plan.SPDK.CoreMask, m.plan.SPDK.MaxSubsystems = c.mask, 4*measuredVolumes
		m.plan.SPDK.Transports[0].QueueDepth, m.plan.SPDK.Transports[0].InCapsuleDataSize = c.depth, c.inCapsuleDataSize
		m.flags = []string{"-m", c.mask}
		r := measureMemory(t, m)
		r.Cores = c.cores
		records, release = append(records, r), m.release
		m.kill()
	}
	text, err := json.MarshalIndent(map[string]any{
		"target":  "SPDK v" + release + " nvmf_tgt --no-huge, on an AIO bdev: Alloc_size of the DPDK heap as env_dpdk_get_mem_stats writes it, and anonymous memory of the process beside it",
		"volumes": records,
	}, "", " ")
	check(t, err)
	t.Log(string(text))
	if path := os.Getenv(memoryVariable); path != "" {
		check(t, os.WriteFile(path, append(text, '\n'), 0o644))
	}
}

func measureMemory(t *testing.T, m *machine) memoryRecord {
	m.restart(t)
	x := &bench{machine: m, TB: t, ctx: t.Context(), device: m.file(benchPoolBytes)}
	x.connect()
	plan := m.plan.SPDK
	transport := plan.Transports[0]
	r := memoryRecord{
		BdevIOPool: plan.BdevIOPoolSize, SmallBuffers: plan.SmallBuffers, LargeBuffers: plan.LargeBuffers, StartedHeap: x.heapBytes(),
		Count: measuredVolumes, Attachments: measuredAttachments, IOQueues: measuredIOQueues,
		QueueDepth: int64(transport.QueueDepth), InCapsuleDataSize: transport.InCapsuleDataSize,
		ReceivePipe: plan.Sockets.ReceivePipe == v1alpha1.SwitchEnabled,
	}
	x.all(x.engine.OpenPools(x.ctx, []engine.Device{x.device}))
	x.all(x.engine.OpenPortals(x.ctx, m.portals()))
	all := x.withKeys(x.things(measuredVolumes))
	// What the first of them takes is not of each.
	first := x.withKeys(x.things(atOnce))
	x.all(x.engine.CreateVolumes(x.ctx, first.volumes))
	x.all(x.engine.Export(x.ctx, first.exports))
	r.VolumesHeap, r.VolumesResident = x.memoryOf(func() {
		for some := range slices.Chunk(all.volumes, atOnce) {
			x.all(x.engine.CreateVolumes(x.ctx, some))
		}
	})
	r.ExportsHeap, r.ExportsResident = x.memoryOf(func() {
		for some := range slices.Chunk(all.exports, atOnce) {
			x.all(x.engine.Export(x.ctx, some))
		}
	})
	r.AttachmentsHeap, r.AttachmentsResident = x.memoryOf(func() {
		for _, e := range all.exports[:measuredAttachments] {
			host, err := enginetest.ConnectWire(x.ctx, m.portals()[0].Portal, e.NQN, e.Hosts[0], e.Authentication[e.Hosts[0]].Keys, measuredIOQueues)
			check(t, err)
			t.Cleanup(host.Close)
		}
	})
	_, r.RoomForOneResident = x.memoryOf(func() { x.bareSubsystems(1) })
	_, r.RoomFor32Resident = x.memoryOf(func() { x.bareSubsystems(32) })
	return r
}

// withKeys of all hosts, as weft gives them by default.
func (x *bench) withKeys(t things) things {
	x.Helper()
	for i := range t.exports {
		keys, err := dhchap.NewPair()
		check(x, err)
		t.exports[i].Authentication = map[string]engine.Authentication{t.exports[i].Hosts[0]: {Keys: keys}}
	}
	return t
}

// bareSubsystems without anything, with room for so many namespaces.
func (x *bench) bareSubsystems(room uint32) {
	s := &sender{x: x, blind: true}
	for range measuredVolumes / atOnce {
		for range atOnce {
			send(s, spdkrpc.NvmfCreateSubsystem{NQN: v1alpha1.NQNPrefix + "bare-" + uuid.NewString(), Serial: "s", Model: "weft", MaxNamespaces: room, ANAReporting: true})
		}
		s.wait()
	}
}

// memoryOf what is done: how much more it leaves of the target's heap, and of its memory beside that.
func (x *bench) memoryOf(do func()) (heap, resident int64) {
	heapBefore, residentBefore := x.heapBytes(), x.residentBytes()
	do()
	return x.heapBytes() - heapBefore, x.residentBytes() - residentBefore
}

var allocated = regexp.MustCompile(`(?m)Alloc_size:(\d+)`)

// heapBytes that DPDK has given out. SPDK writes them to a file, and says to which.
func (x *bench) heapBytes() int64 {
	x.Helper()
	c, err := new(net.Dialer).DialContext(x.ctx, "unix", x.socket())
	check(x, err)
	defer func() { _ = c.Close() }() // it was read
	_, err = io.WriteString(c, `{"jsonrpc":"2.0","id":1,"method":"env_dpdk_get_mem_stats"}`)
	check(x, err)
	var answer struct{ Result struct{ Filename string } }
	check(x, json.NewDecoder(c).Decode(&answer))
	text, err := os.ReadFile(answer.Result.Filename)
	check(x, err)
	var sum int64
	for _, found := range allocated.FindAllSubmatch(text, -1) {
		n, err := strconv.ParseInt(string(found[1]), 10, 64)
		check(x, err)
		sum += n
	}
	if sum == 0 {
		x.Fatalf("no Alloc_size in %s:\n%s", answer.Result.Filename, text)
	}
	return sum
}

// residentBytes of the target that are not its heap: without hugepages that is a memory file, and not anonymous.
func (x *bench) residentBytes() int64 {
	x.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/smaps_rollup", x.target.(*spdktest.Real).Pid()))
	check(x, err)
	defer func() { _ = f.Close() }() // it was read
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if kib, found := strings.CutPrefix(lines.Text(), "Anonymous:"); found {
			n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(kib), " kB"), 10, 64)
			check(x, err)
			return n << 10
		}
	}
	x.Fatal("smaps_rollup has no Anonymous")
	return 0
}
