// SPDX-License-Identifier: Apache-2.0

package spdk_test

import (
	"bufio"
	"encoding/binary"
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
	"github.com/weft-storage/weft/dataplane/spdkrpc"
	"github.com/weft-storage/weft/dataplane/spdkrpc/spdktest"
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
	// Volumes that were made; Exports of them, each a subsystem with a namespace, a host and a listener.
	Count           int64 `json:"volumes"`
	VolumesHeap     int64 `json:"volumes_heap_bytes"`
	VolumesResident int64 `json:"volumes_resident_bytes"`
	ExportsHeap     int64 `json:"exports_heap_bytes"`
	ExportsResident int64 `json:"exports_resident_bytes"`
	// Bare subsystems, as many as volumes, with room for one namespace and for 32.
	RoomForOneResident int64 `json:"room_for_1_resident_bytes"`
	RoomFor32Resident  int64 `json:"room_for_32_resident_bytes"`
	// Attachments that were connected, each with an admin queue pair and IOQueues.
	Attachments         int64 `json:"attachments"`
	IOQueues            int64 `json:"io_queues"`
	QueueDepth          int64 `json:"queue_depth"`
	InCapsuleDataSize   int64 `json:"in_capsule_data_size"`
	AttachmentsHeap     int64 `json:"attachments_heap_bytes"`
	AttachmentsResident int64 `json:"attachments_resident_bytes"`
}

// TestMeasureMemory of volumes, subsystems and queue pairs of a real target, with one and with two cores. It takes a
// minute.
func TestMeasureMemory(t *testing.T) {
	spdktest.RealTarget(t)
	var records []memoryRecord
	release := ""
	for _, c := range []struct {
		cores             int64
		mask              string
		depth             int32
		inCapsuleDataSize int64
	}{{1, "0x1", 64, 4096}, {2, "0x3", 64, 4096}, {1, "0x1", 128, 4096}, {2, "0x3", 128, 8192}} {
		m := newMachine(t)
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
	}
	x.all(x.engine.OpenPools(x.ctx, []engine.Device{x.device}))
	x.all(x.engine.OpenPortals(x.ctx, m.portals()))
	all := x.things(measuredVolumes)
	// What the first of them takes is not of each.
	first := x.things(atOnce)
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
	var hosts []net.Conn
	defer func() {
		for _, c := range hosts {
			_ = c.Close() // the target ends next
		}
	}()
	r.AttachmentsHeap, r.AttachmentsResident = x.memoryOf(func() {
		for _, e := range all.exports[:measuredAttachments] {
			hosts = append(hosts, x.attach(e.NQN, e.Hosts[0], measuredIOQueues)...)
		}
	})
	_, r.RoomForOneResident = x.memoryOf(func() { x.bareSubsystems(1) })
	_, r.RoomFor32Resident = x.memoryOf(func() { x.bareSubsystems(32) })
	return r
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

// attach as a host does: a controller with an admin queue pair, and I/O queues.
func (x *bench) attach(subsystem, host string, ioQueues uint16) []net.Conn {
	x.Helper()
	admin, controller := x.queuePair(subsystem, host, 0, 0xffff)
	// Controller configuration (CC): enabled, with entries of 64 and 16 bytes.
	var enable [64]byte
	enable[0], enable[1] = 0x7f, 0x40
	binary.LittleEndian.PutUint32(enable[44:], 0x14)
	binary.LittleEndian.PutUint64(enable[48:], 0x460001)
	x.command(admin, enable[:], nil)
	pairs := []net.Conn{admin}
	for id := uint16(1); id <= ioQueues; id++ {
		pair, _ := x.queuePair(subsystem, host, id, controller)
		pairs = append(pairs, pair)
	}
	return pairs
}

// queuePair connects one of a controller; 0xffff for a new controller, whose ID it answers.
func (x *bench) queuePair(subsystem, host string, id, controller uint16) (net.Conn, uint16) {
	x.Helper()
	portal := x.portals()[0]
	c, err := new(net.Dialer).DialContext(x.ctx, "tcp", net.JoinHostPort(portal.Address, strconv.Itoa(int(portal.Port))))
	check(x, err)
	hello := make([]byte, 128)
	hello[2] = 128
	binary.LittleEndian.PutUint32(hello[4:], 128)
	_, err = c.Write(hello)
	check(x, err)
	_, err = io.ReadFull(c, make([]byte, 128))
	check(x, err)
	var connect [64]byte
	data := make([]byte, 1024)
	connect[0], connect[1], connect[4] = 0x7f, 0x40, 0x01
	binary.LittleEndian.PutUint32(connect[32:], uint32(len(data)))
	connect[39] = 0x01 // data in the capsule
	binary.LittleEndian.PutUint16(connect[42:], id)
	binary.LittleEndian.PutUint16(connect[44:], 31)
	hostID := uuid.MustParse(strings.TrimPrefix(host, v1alpha1.HostNQNPrefix))
	copy(data, hostID[:])
	binary.LittleEndian.PutUint16(data[16:], controller)
	copy(data[256:], subsystem)
	copy(data[512:], host)
	return c, uint16(x.command(c, connect[:], data))
}

// command sent over a queue pair with its data, and the first double word of its completion.
func (x *bench) command(c net.Conn, sqe, data []byte) uint32 {
	x.Helper()
	pdu := make([]byte, 8, 72+len(data))
	pdu[0], pdu[2] = 0x04, 72
	if len(data) > 0 {
		pdu[3] = 72
	}
	binary.LittleEndian.PutUint32(pdu[4:], uint32(72+len(data)))
	_, err := c.Write(append(append(pdu, sqe...), data...))
	check(x, err)
	answer := make([]byte, 24)
	_, err = io.ReadFull(c, answer)
	check(x, err)
	if status := binary.LittleEndian.Uint16(answer[22:]) >> 1; answer[0] != 0x05 || status != 0 {
		x.Fatalf("the target answers PDU %#x with status %#x", answer[0], status)
	}
	return binary.LittleEndian.Uint32(answer[8:])
}
