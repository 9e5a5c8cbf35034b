// SPDX-License-Identifier: Apache-2.0

package spdk_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/conformance"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
	"github.com/weft-storage/weft/dataplane/spdkrpc/spdktest"
)

const (
	driveNQN  = "nqn.2026-11.storage.weft:drive"
	anyPiece  = 128 << 10
	blockSize = 4096
)

// besides is a second real target, which is the drive of the first one, and a host of its volumes.
type besides struct {
	*rig
	of     *spdktest.Real
	socket string
	port   string
	file   string
}

// TestKilledAfterDiscards: on a real target, what a host discarded and what else is free reads as zeroes once the pool
// serves again, also when the target was killed right after, and its drive has forgotten what it deallocated.
func TestKilledAfterDiscards(t *testing.T) {
	path := spdktest.RealTarget(t)
	m := newMachine(t)
	if m.release < "26.05" {
		t.Skipf("SPDK %s cannot let hosts discard for each subsystem", m.release)
	}
	m.plan.SPDK = m.plan.SPDK.DeepCopy()
	m.plan.SPDK.Discard = v1alpha1.SwitchEnabled
	r := &rig{machine: m, WithT: NewWithT(t), t: t, ctx: t.Context(), device: engine.Device{ID: "eui.1"}}
	b := &besides{rig: r, socket: filepath.Join(m.dir, "drive.sock"), port: fmt.Sprint(freePort(t)), file: filepath.Join(m.dir, "drive.img")}
	check(t, os.WriteFile(b.file, nil, 0o600))
	check(t, os.Truncate(b.file, conformance.PoolBytes))
	r.device.Path = b.file // which is what filled reads
	var err error
	b.of, err = spdktest.RunReal(context.WithoutCancel(r.ctx), path, b.socket, "-m", "0x2")
	check(t, err)
	t.Cleanup(func() {
		b.of.Kill()
		if t.Failed() {
			t.Logf("the drive said:\n%s", b.of.Log())
		}
	})
	b.beDrive()

	b.start()
	_, err = spdkrpc.Call(r.ctx, r.client, spdkrpc.BdevLvolCreateLvstore{Bdev: "weft:eui.1n1", Name: b.lvstore(), ClusterBytes: 4 * mib, Clear: spdkrpc.ClearNone})
	check(t, err)
	id := r.create(engine.Source{}, 64*mib)
	r.Expect(r.exportDiscarding(id, true)).To(HaveExactElements(MatchError(engine.ErrBusy)), "nothing of a new pool is trusted")
	r.clear()
	x := r.exportOf(id)
	x.Discard = true
	r.done(r.engine.Export(r.ctx, []engine.Export{x}))
	r.done(r.engine.OpenPortals(r.ctx, r.portals()))
	b.connect(x)
	const written = 32 * mib
	b.write(written)
	r.Expect(r.filled()).To(Equal(written / anyPiece))
	was, err := os.ReadFile(b.file)
	check(t, err)
	free := r.freeBytes()
	b.discard(written)
	r.Expect(r.freeBytes()).To(Equal(free + written))
	r.target.Kill()
	r.Expect(r.filled()).To(BeZero(), "the drive has deallocated it")
	b.forget(was)
	r.Expect(r.filled()).To(Equal(written/anyPiece), "the fault is there")

	b.start()
	r.Expect(r.exportDiscarding(id, true)).To(HaveExactElements(MatchError(engine.ErrBusy)))
	r.Expect(r.freeBytes()).To(BeZero(), "it is held")
	r.clear()
	r.Expect(r.filled()).To(BeZero())
	r.Expect(r.freeBytes()).To(Equal(free + written))
	r.done(r.exportDiscarding(id, true))
}

func (b *besides) lvstore() string {
	sum := sha256.Sum256([]byte(b.device.ID))
	return "weft-" + hex.EncodeToString(sum[:16])
}

// start the target, which attaches its drive.
func (b *besides) start() {
	b.t.Helper()
	b.launch(b.t)
	b.engine = b.machine.engine(b.t)
	check(b.t, b.engine.Start(b.ctx, b.plan))
	var err error
	b.client, err = spdkrpc.New(b.machine.socket(), spdkrpc.Options{})
	check(b.t, err)
	b.t.Cleanup(b.client.Close)
	b.ask(b.machine.socket(), "bdev_nvme_attach_controller", map[string]any{
		"name": "weft:eui.1", "trtype": "TCP", "adrfam": "IPv4", "traddr": "127.0.0.1", "trsvcid": b.port, "subnqn": driveNQN,
	})
}

// beDrive that deallocates what it is told to: a file with holes.
func (b *besides) beDrive() {
	b.t.Helper()
	b.ask(b.socket, "bdev_aio_create", map[string]any{"name": "file", "filename": b.file, "block_size": blockSize, "fallocate": true})
	b.ask(b.socket, "nvmf_create_transport", map[string]any{"trtype": "TCP"})
	b.ask(b.socket, "nvmf_create_subsystem", map[string]any{"nqn": driveNQN, "allow_any_host": true})
	b.ask(b.socket, "nvmf_subsystem_add_ns", map[string]any{"nqn": driveNQN, "namespace": map[string]any{"bdev_name": "file"}})
	b.ask(b.socket, "nvmf_subsystem_add_listener", map[string]any{
		"nqn": driveNQN, "listen_address": map[string]any{"trtype": "TCP", "adrfam": "IPv4", "traddr": "127.0.0.1", "trsvcid": b.port},
	})
}

// connect as a host of a volume.
func (b *besides) connect(x engine.Export) {
	b.t.Helper()
	portal := b.portals()[0]
	b.ask(b.socket, "bdev_nvme_attach_controller", map[string]any{
		"name": "volume", "trtype": "TCP", "adrfam": "IPv4", "traddr": portal.Address, "trsvcid": fmt.Sprint(portal.Port), "subnqn": x.NQN, "hostnqn": x.Hosts[0],
	})
}

// write so much from the start of the volume: no byte is zero.
func (b *besides) write(length int) {
	b.t.Helper()
	data := bytes.Repeat([]byte{0xa5}, anyPiece)
	for at := 0; at < length; at += anyPiece {
		b.command(0x01, uint32(at/blockSize), 0, anyPiece/blockSize-1, data)
	}
}

// discard so much from the start of the volume, by one Dataset Management.
func (b *besides) discard(length int) {
	b.t.Helper()
	const deallocate = 1 << 2
	ranges := make([]byte, 16)
	binary.LittleEndian.PutUint32(ranges[4:], uint32(length/blockSize))
	b.command(0x09, 0, deallocate, 0, ranges)
}

func (b *besides) command(opcode byte, cdw10, cdw11, cdw12 uint32, data []byte) {
	b.t.Helper()
	entry := make([]byte, spdkrpc.NvmeCommandBytes)
	entry[0] = opcode
	binary.LittleEndian.PutUint32(entry[4:], 1)
	for i, word := range []uint32{cdw10, cdw11, cdw12} {
		binary.LittleEndian.PutUint32(entry[40+4*i:], word)
	}
	var reply spdkrpc.NvmeReply
	check(b.t, json.Unmarshal(b.ask(b.socket, "bdev_nvme_send_cmd", map[string]any{
		"name": "volume", "cmd_type": "io", "data_direction": "h2c", "timeout_ms": 20000,
		"cmdbuf": base64.URLEncoding.EncodeToString(entry), "data": base64.URLEncoding.EncodeToString(data),
	}), &reply))
	completion, err := reply.Completion.Bytes()
	check(b.t, err)
	b.Expect(binary.LittleEndian.Uint16(completion[14:])>>1).To(BeZero(), "status of command %#x", opcode)
}

// forget what the drive has deallocated: it reads as it did before.
func (b *besides) forget(was []byte) {
	b.t.Helper()
	f, err := os.OpenFile(b.file, os.O_RDWR, 0)
	check(b.t, err)
	for at := 0; at < len(was); at += anyPiece {
		if piece := was[at : at+anyPiece]; !bytes.Contains(piece, []byte{0}) {
			_, err := f.WriteAt(piece, int64(at))
			check(b.t, err)
		}
	}
	check(b.t, f.Close())
}

// ask a target what weft never does.
func (b *besides) ask(socket, method string, params map[string]any) json.RawMessage {
	b.t.Helper()
	conn, err := new(net.Dialer).DialContext(b.ctx, "unix", socket)
	check(b.t, err)
	defer func() { check(b.t, conn.Close()) }()
	check(b.t, json.NewEncoder(conn).Encode(map[string]any{"jsonrpc": "2.0", "id": 1, "method": method, "params": params}))
	var reply struct {
		Result json.RawMessage
		Error  *struct{ Message string }
	}
	check(b.t, json.NewDecoder(conn).Decode(&reply))
	if reply.Error != nil {
		b.t.Fatalf("%s: %s", method, reply.Error.Message)
	}
	return reply.Result
}
