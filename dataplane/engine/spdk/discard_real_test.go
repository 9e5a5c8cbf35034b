// SPDX-License-Identifier: Apache-2.0

package spdk_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
	"github.com/weft-storage/weft/dataplane/spdkrpc/spdktest"
)

// TestHostsCannotDiscard: a real target refuses a host that sends the command without being offered it.
func TestHostsCannotDiscard(t *testing.T) {
	path := spdktest.RealTarget(t)
	r := newRig(t)
	h := newRawHost(t, path)
	x := r.exportOf(r.create(engine.Source{}, 16*mib))
	r.done(r.engine.Export(r.ctx, []engine.Export{x}))
	portal := r.portals()[0]
	h.attach("volume", x.NQN, x.Hosts[0], portal.Address, portal.Port)
	check(t, h.write("volume", ownData))
	was := r.state()
	r.Expect(was.Volumes).To(HaveExactElements(HaveField("AllocatedBytes", BeNumerically(">=", clusterOfOne))))

	r.Expect(h.discard("volume")).To(MatchError(ContainSubstring("status")))
	r.Expect(r.state().Volumes).To(Equal(was.Volumes))
	data, err := h.read("volume", 0)
	check(t, err)
	r.Expect(bytes.Count(data, []byte{ownData})).To(Equal(pieceBytes))
}

// TestSPDKFreesWhatIsBeingRead is why hosts cannot discard: a real target, left to itself, gives a discarded cluster to
// another volume while a host's reads of it wait below the volume, and they return what the other one wrote. The device
// writes zeroes where it is told to deallocate, so no promise of a drive helps. Where it fails with a newer SPDK, that
// one waits for such reads: see docs/design/discard.md.
func TestSPDKFreesWhatIsBeingRead(t *testing.T) {
	d := newDiscarding(t, func(d *discarding) { d.file("device", enginetest.PoolBytes) })
	const reads = 48 // 6 s of them
	check(t, d.write("one", ownData))
	d.call("bdev_set_qos_limit", map[string]any{"name": "device", "r_mbytes_per_sec": 1})
	results, errs := make([][]byte, reads), make([]error, reads)
	var all sync.WaitGroup
	for i := range reads {
		all.Go(func() { results[i], errs[i] = d.read("one", 0) })
	}
	d.Eventually(d.waiting).Should(BeNumerically(">=", reads/2))
	check(t, d.discard("one"))
	check(t, d.write("two", othersData))
	all.Wait()
	check(t, errors.Join(errs...))
	leaked := 0
	for _, data := range results {
		if bytes.Count(data, []byte{othersData}) == pieceBytes {
			leaked++
		}
	}
	t.Logf("%d of %d reads of one volume returned what another one wrote", leaked, reads)
	d.Expect(leaked).To(BeNumerically(">", 0), "this SPDK waits for what is pending in a cluster before it frees it")
}

// TestSPDKFreesWhatIsBeingWritten is the same with writes that wait: they end in the volume that has the cluster next.
// The device has two parts, so that only what is written to that cluster waits, and no metadata.
func TestSPDKFreesWhatIsBeingWritten(t *testing.T) {
	const firstBytes, pieces, writes = 64 * mib, 24, 48 // 6 s of them
	d := newDiscarding(t, func(d *discarding) {
		d.file("first", firstBytes)
		d.file("second", enginetest.PoolBytes)
		d.call("bdev_raid_create", map[string]any{"name": "device", "raid_level": "concat", "strip_size_kb": clusterOfOne >> 10, "base_bdevs": []string{"first", "second"}})
	})
	d.call("bdev_lvol_create", map[string]any{"lvs_name": "pool", "lvol_name": "filler", "size_in_mib": firstBytes / mib, "thin_provision": false})
	check(t, d.write("one", ownData))
	d.call("bdev_set_qos_limit", map[string]any{"name": "second", "w_mbytes_per_sec": 1})
	errs := make([]error, writes)
	var all sync.WaitGroup
	for i := range writes {
		all.Go(func() { errs[i] = d.writePiece("one", i%pieces, ownData) })
	}
	d.Eventually(d.waiting).Should(BeNumerically(">=", writes/2))
	check(t, d.discard("one"))
	d.Expect(d.waiting()).To(BeNumerically(">", 0), "writes that waited for the device until now")
	check(t, d.writePiece("two", clusterOfOne/pieceBytes-1, othersData)) // the end of the cluster
	all.Wait()
	check(t, errors.Join(errs...))
	strange := 0
	for i := range pieces {
		data, err := d.read("two", i)
		check(t, err)
		if bytes.Contains(data, []byte{ownData}) {
			strange++
		}
	}
	t.Logf("writes to one volume changed %d of %d pieces of another one", strange, pieces)
	d.Expect(strange).To(BeNumerically(">", 0), "this SPDK waits for what is pending in a cluster before it frees it")
}

// TestSPDKFreesWhatItCouldNotRecord: a device that fails the metadata of a discard leaves a cluster with two owners.
func TestSPDKFreesWhatItCouldNotRecord(t *testing.T) {
	d := newDiscarding(t, func(d *discarding) {
		d.file("file", enginetest.PoolBytes)
		if !d.made {
			d.call("bdev_error_create", map[string]any{"base_name": "file"})
		}
	}, "EE_file")
	check(t, d.write("one", ownData))
	d.call("bdev_error_inject_error", map[string]any{"name": "EE_file", "io_type": "write", "error_type": "failure", "num": 1})
	t.Logf("the discard ends with: %v", d.discard("one"))
	check(t, d.write("two", othersData))
	d.process.Kill()
	d.serve()
	data, err := d.read("one", 0)
	check(t, err)
	d.Expect(bytes.Count(data, []byte{othersData})).To(Equal(pieceBytes), "this SPDK frees no cluster whose discard it could not record")
}

const (
	spdkBlock  = 4096
	pieceBytes = 128 << 10
	// clusterOfOne is as large as what is written and discarded: the first cluster of a volume.
	clusterOfOne = 4 * mib

	ownData, othersData = 0xa5, 0x5a
)

// discarding is a target that lets hosts discard, which weft's never do, with two volumes, and a host of both.
type discarding struct {
	*WithT
	*rawHost
	// process is the target, and device what makes the one named base of its pool, from files in dir.
	process   *spdktest.Real
	path, dir string
	device    func(*discarding)
	base      string
	made      bool
}

func newDiscarding(t *testing.T, device func(*discarding), base ...string) *discarding {
	t.Helper()
	path := spdktest.RealTarget(t)
	if release := spdktest.Release(t, path); release < "26.05" {
		t.Skipf("this asks for what SPDK %s may call by another name", release)
	}
	d := &discarding{WithT: NewWithT(t), rawHost: newRawHost(t, path), path: path, dir: t.TempDir(), device: device, base: append(base, "device")[0]}
	d.SetDefaultEventuallyTimeout(time.Minute) // of a busy machine
	d.serve()
	return d
}

// serve by a new target, which has the pool that the one before it had.
func (d *discarding) serve() {
	d.t.Helper()
	d.process = runReal(d.t, d.path, "0x1")
	d.device(d)
	if d.made {
		d.call("bdev_wait_for_examine", nil)
	} else {
		d.call("bdev_lvol_create_lvstore", map[string]any{"bdev_name": d.base, "lvs_name": "pool", "cluster_sz": clusterOfOne})
	}
	d.call("nvmf_create_transport", map[string]any{"trtype": "TCP"})
	port := freePort(d.t)
	for _, volume := range []string{"one", "two"} {
		nqn := "nqn.2026-11.storage.weft:" + volume
		if d.made {
			_, err := ask(d.t.Context(), d.socket, "bdev_nvme_detach_controller", map[string]any{"name": volume})
			check(d.t, err)
		} else {
			d.call("bdev_lvol_create", map[string]any{"lvs_name": "pool", "lvol_name": volume, "size_in_mib": 16, "thin_provision": true})
		}
		d.call("nvmf_create_subsystem", map[string]any{"nqn": nqn, "allow_any_host": true})
		d.call("nvmf_subsystem_add_ns", map[string]any{"nqn": nqn, "namespace": map[string]any{"bdev_name": "pool/" + volume}})
		d.call("nvmf_subsystem_add_listener", map[string]any{"nqn": nqn, "listen_address": addressOf("127.0.0.1", port)})
		d.attach(volume, nqn, "nqn.2026-11.storage.weft:host", "127.0.0.1", port)
	}
	d.call("bdev_set_qd_sampling_period", map[string]any{"name": "pool/one", "period": 1000})
	d.made = true
}

// file that is a device of the target, and writes zeroes where it is told to deallocate.
func (d *discarding) file(name string, sizeBytes int64) {
	d.t.Helper()
	path := filepath.Join(d.dir, name)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	check(d.t, err)
	check(d.t, errors.Join(f.Truncate(sizeBytes), f.Close()))
	d.call("bdev_aio_create", map[string]any{"name": name, "filename": path, "block_size": spdkBlock, "fallocate": true})
}

// waiting commands of the first volume, which the target has taken and not answered.
func (d *discarding) waiting() int {
	d.t.Helper()
	var stats struct {
		Bdevs []struct {
			QueueDepth int `json:"queue_depth"`
		} `json:"bdevs"`
	}
	check(d.t, json.Unmarshal(d.call("bdev_get_iostat", map[string]any{"names": []string{"pool/one"}}), &stats))
	d.Expect(stats.Bdevs).To(HaveLen(1))
	return stats.Bdevs[0].QueueDepth
}

func (d *discarding) call(method string, params map[string]any) json.RawMessage {
	d.t.Helper()
	result, err := ask(d.t.Context(), d.process.Socket, method, params)
	check(d.t, err)
	return result
}

// rawHost is a real target that sends commands to the volumes of others, also those that Linux would not send.
type rawHost struct {
	t      *testing.T
	socket string
}

func newRawHost(t *testing.T, path string) *rawHost {
	t.Helper()
	return &rawHost{t: t, socket: runReal(t, path, "0x2").Socket}
}

// runReal target on its own.
func runReal(t *testing.T, path, coreMask string) *spdktest.Real {
	t.Helper()
	dir, err := os.MkdirTemp("", "weft-spdk-") // a socket's path has at most 107 bytes
	check(t, err)
	socket := filepath.Join(dir, "spdk.sock")
	target, err := spdktest.RunReal(context.WithoutCancel(t.Context()), path, socket, "-m", coreMask)
	check(t, err)
	t.Cleanup(func() {
		target.Kill()
		check(t, os.RemoveAll(dir))
		if t.Failed() {
			t.Logf("the target on cores %s said:\n%s", coreMask, target.Log())
		}
	})
	return target
}

func addressOf(address string, port int32) map[string]any {
	return map[string]any{"trtype": "TCP", "adrfam": "IPv4", "traddr": address, "trsvcid": fmt.Sprint(port)}
}

// attach a volume under a name.
func (h *rawHost) attach(name, nqn, hostNQN, address string, port int32) {
	h.t.Helper()
	params := addressOf(address, port)
	params["name"], params["subnqn"], params["hostnqn"] = name, nqn, hostNQN
	_, err := ask(h.t.Context(), h.socket, "bdev_nvme_attach_controller", params)
	check(h.t, err)
}

// write the first cluster of a volume with one value.
func (h *rawHost) write(volume string, value byte) error {
	for piece := range clusterOfOne / pieceBytes {
		if err := h.writePiece(volume, piece, value); err != nil {
			return err
		}
	}
	return nil
}

const blocksOfPiece = pieceBytes / spdkBlock

// writePiece of a volume, by its number.
func (h *rawHost) writePiece(volume string, piece int, value byte) error {
	c := hostCommand{opcode: 0x01, words: [3]uint32{uint32(piece * blocksOfPiece), 0, blocksOfPiece - 1}, data: bytes.Repeat([]byte{value}, pieceBytes)}
	_, err := h.send(volume, c)
	return err
}

// read a piece of a volume.
func (h *rawHost) read(volume string, piece int) ([]byte, error) {
	return h.send(volume, hostCommand{opcode: 0x02, words: [3]uint32{uint32(piece * blocksOfPiece), 0, blocksOfPiece - 1}})
}

// discard the first cluster of a volume, by one Dataset Management.
func (h *rawHost) discard(volume string) error {
	const deallocate = 1 << 2
	ranges := make([]byte, 16)
	binary.LittleEndian.PutUint32(ranges[4:], clusterOfOne/spdkBlock)
	_, err := h.send(volume, hostCommand{opcode: 0x09, words: [3]uint32{0, deallocate, 0}, data: ranges})
	return err
}

// hostCommand to a namespace, with CDW10 to CDW12. Without data it reads pieceBytes.
type hostCommand struct {
	opcode byte
	words  [3]uint32
	data   []byte
}

func (h *rawHost) send(volume string, c hostCommand) ([]byte, error) {
	entry := make([]byte, spdkrpc.NvmeCommandBytes)
	entry[0] = c.opcode
	binary.LittleEndian.PutUint32(entry[4:], 1)
	for i, word := range c.words {
		binary.LittleEndian.PutUint32(entry[40+4*i:], word)
	}
	params := map[string]any{"name": volume, "cmd_type": "io", "timeout_ms": 60000, "cmdbuf": base64.URLEncoding.EncodeToString(entry)}
	if c.data == nil {
		params["data_direction"], params["data_len"] = "c2h", pieceBytes
	} else {
		params["data_direction"], params["data"] = "h2c", base64.URLEncoding.EncodeToString(c.data)
	}
	result, err := ask(h.t.Context(), h.socket, "bdev_nvme_send_cmd", params)
	if err != nil {
		return nil, err
	}
	var reply spdkrpc.NvmeReply
	if err := json.Unmarshal(result, &reply); err != nil {
		return nil, err
	}
	completion, err := reply.Completion.Bytes()
	if err != nil {
		return nil, err
	}
	if status := binary.LittleEndian.Uint16(completion[14:]) >> 1; status != 0 {
		return nil, fmt.Errorf("command %#x ended with status %#x", c.opcode, status)
	}
	return reply.Data.Bytes()
}

// ask a target what weft never does.
func ask(ctx context.Context, socket, method string, params map[string]any) (json.RawMessage, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }() // all that is needed was read
	if err := json.NewEncoder(conn).Encode(map[string]any{"jsonrpc": "2.0", "id": 1, "method": method, "params": params}); err != nil {
		return nil, err
	}
	var reply struct {
		Result json.RawMessage
		Error  *struct{ Message string }
	}
	if err := json.NewDecoder(conn).Decode(&reply); err != nil {
		return nil, err
	}
	if reply.Error != nil {
		return nil, fmt.Errorf("%s: %s", method, reply.Error.Message)
	}
	return reply.Result, nil
}
