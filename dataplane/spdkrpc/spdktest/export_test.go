// SPDX-License-Identifier: Apache-2.0

package spdktest

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

const (
	testNQN  = "nqn.2026-11.storage.weft:a"
	testHost = "nqn.2014-08.org.nvmexpress:uuid:11111111-1111-1111-1111-111111111111"
)

var testAddress = map[string]any{"trtype": "TCP", "adrfam": "IPv4", "traddr": "127.0.0.1", "trsvcid": "4420"}

// export makes a subsystem for a volume, with a host and a listener.
func export(t *testing.T, c *client, volume string) {
	t.Helper()
	if a := c.call("nvmf_get_transports", map[string]any{"trtype": "TCP"}); a.Error != nil {
		c.must("nvmf_create_transport", map[string]any{"trtype": "TCP"}, nil)
	}
	c.must("nvmf_create_subsystem", map[string]any{"nqn": testNQN, "ana_reporting": true}, nil)
	c.must("nvmf_subsystem_add_ns", map[string]any{"nqn": testNQN, "namespace": map[string]any{"bdev_name": volume}}, nil)
	c.must("nvmf_subsystem_add_host", map[string]any{"nqn": testNQN, "host": testHost}, nil)
	c.must("nvmf_subsystem_add_listener", map[string]any{"nqn": testNQN, "listen_address": testAddress}, nil)
}

func TestConnect(t *testing.T) {
	target, c, _ := withStore(t, Options{CoreMask: "0x3"})
	c.must("bdev_lvol_create", lvolParams("a"), nil)
	if _, err := target.Connect(testNQN, testHost, 2); !errors.Is(err, ErrRefused) {
		t.Errorf("connected to nothing: %v", err)
	}
	export(t, c, "pool0/a")
	if _, err := target.Connect(testNQN, testHost+"x", 2); !errors.Is(err, ErrRefused) {
		t.Errorf("a host that is not admitted connected: %v", err)
	}
	connect := func() *Connection {
		t.Helper()
		conn, err := target.Connect(testNQN, testHost, 2)
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	first, second := connect(), connect()
	counted := func(controllers, qpairs int) {
		t.Helper()
		var list []struct{ HostNQN string }
		c.must("nvmf_subsystem_get_controllers", map[string]any{"nqn": testNQN}, &list)
		var stats struct {
			Groups []struct {
				Admin int `json:"current_admin_qpairs"`
				IO    int `json:"current_io_qpairs"`
			} `json:"poll_groups"`
		}
		c.must("nvmf_get_stats", nil, &stats)
		sum := 0
		for _, g := range stats.Groups {
			sum += g.Admin + g.IO
		}
		if len(list) != controllers || sum != qpairs || len(stats.Groups) != 2 {
			t.Errorf("want %d controllers and %d queue pairs, got %v and %+v", controllers, qpairs, list, stats)
		}
	}
	counted(2, 6)
	first.Close()
	counted(1, 3)
	c.must("nvmf_subsystem_remove_host", map[string]any{"nqn": testNQN, "host": testHost}, nil)
	if first.Alive() || second.Alive() {
		t.Error("a connection outlived its host")
	}
	counted(0, 0)
	c.must("nvmf_subsystem_add_host", map[string]any{"nqn": testNQN, "host": testHost}, nil)
	third := connect()
	c.must("nvmf_subsystem_remove_listener", map[string]any{"nqn": testNQN, "listen_address": testAddress}, nil)
	if third.Alive() {
		t.Error("a connection outlived its listener")
	}
	c.must("nvmf_subsystem_add_listener", map[string]any{"nqn": testNQN, "listen_address": testAddress}, nil)
	fourth := connect()
	target.Kill()
	if fourth.Alive() {
		t.Error("a connection outlived the target")
	}
}

// TestHeldIO: what takes a namespace away waits for its I/O; calls that need no pause go on.
func TestHeldIO(t *testing.T) {
	target, c, _ := withStore(t, Options{})
	c.must("bdev_lvol_create", lvolParams("a"), nil)
	export(t, c, "pool0/a")
	release, err := target.HoldIO("pool0/a")
	if err != nil {
		t.Fatal(err)
	}
	held := c.send("bdev_lvol_delete", map[string]any{"name": "pool0/a"})
	after := c.send("nvmf_subsystem_get_controllers", map[string]any{"nqn": testNQN})
	quick := c.send("keyring_get_keys", nil)
	want := func(id int) {
		t.Helper()
		if a, err := c.receive(); err != nil || string(a.ID) != fmt.Sprint(id) || a.Error != nil {
			t.Fatalf("want the answer of %d, got %+v, %v", id, a, err)
		}
	}
	want(quick)
	release()
	want(after)
	want(held)
}

func TestAddressInUse(t *testing.T) {
	target := Start(t, Options{
		Socket:      filepath.Join(shortTempDir(t), "spdk.sock"),
		OwnsAddress: func(_, _, port string) bool { return port != "4421" },
	})
	c := dial(t, target.Socket())
	c.must("nvmf_create_transport", map[string]any{"trtype": "TCP"}, nil)
	for _, nqn := range []string{testNQN, testNQN + "2"} {
		c.must("nvmf_create_subsystem", map[string]any{"nqn": nqn}, nil)
		c.must("nvmf_subsystem_add_listener", map[string]any{"nqn": nqn, "listen_address": testAddress}, nil)
	}
	c.fails("nvmf_subsystem_add_listener", map[string]any{"nqn": testNQN, "listen_address": map[string]any{
		"trtype": "TCP", "traddr": "127.0.0.1", "trsvcid": "4421",
	}}, codeInvalidParams, msgInvalidParams)
}

type caches map[string][2]uint32

func cacheSizes(c *client) caches {
	c.t.Helper()
	var stats []moduleStat
	c.must("iobuf_get_stats", nil, &stats)
	sizes := caches{}
	for _, s := range stats {
		sizes[s.Module] = [2]uint32{s.Small.CacheSize, s.Large.CacheSize}
	}
	return sizes
}

// TestTwoTransports: with automatic caches each takes half of the pools, and nothing is left for anybody else.
func TestTwoTransports(t *testing.T) {
	start := func(params map[string]any) caches {
		target := Start(t, Options{
			Socket: filepath.Join(shortTempDir(t), "spdk.sock"), CoreMask: "0x3", RDMADevices: []string{"mlx5_0"},
		})
		c := dial(t, target.Socket())
		for _, trtype := range []string{"RDMA", "TCP"} {
			p := map[string]any{"trtype": trtype}
			for k, v := range params {
				p[k] = v
			}
			c.must("nvmf_create_transport", p, nil)
		}
		return cacheSizes(c)
	}
	got := start(nil)
	if got["nvmf_RDMA"] != [2]uint32{4096, 512} || got["nvmf_TCP"] != [2]uint32{} {
		t.Errorf("automatic caches: %v", got)
	}
	got = start(map[string]any{"iobuf_small_cache_size": 512, "iobuf_large_cache_size": 64})
	if got["nvmf_RDMA"] != [2]uint32{1024, 128} || got["nvmf_TCP"] != [2]uint32{1024, 128} {
		t.Errorf("explicit caches: %v", got)
	}
}

func TestRDMATransport(t *testing.T) {
	target := Start(t, Options{Socket: filepath.Join(shortTempDir(t), "spdk.sock"), RDMADevices: []string{"rxe0"}})
	c := dial(t, target.Socket())
	c.must("nvmf_create_transport", map[string]any{"trtype": "RDMA", "max_srq_depth": 1024, "in_capsule_data_size": 16}, nil)
	var list []map[string]any
	c.must("nvmf_get_transports", nil, &list)
	want := map[string]any{
		"trtype": "RDMA", "max_srq_depth": 1024.0, "no_srq": false, "in_capsule_data_size": 256.0,
		"data_wr_pool_size": 4095.0, "acceptor_backlog": 100.0, "no_wr_batching": false,
	}
	for k, v := range want {
		if list[0][k] != v {
			t.Errorf("%s is %v, want %v", k, list[0][k], v)
		}
	}
	var stats struct {
		Groups []struct {
			Transports []struct {
				Pending *int `json:"pending_data_buffer"`
				Devices []struct{ Name string }
			}
		} `json:"poll_groups"`
	}
	c.must("nvmf_get_stats", nil, &stats)
	if tr := stats.Groups[0].Transports[0]; tr.Pending == nil || len(tr.Devices) != 1 || tr.Devices[0].Name != "rxe0" {
		t.Errorf("statistics %+v", stats)
	}
}

// TestPSK: only a TCP transport that exists when the host is added learns of its key.
func TestPSK(t *testing.T) {
	_, c, dir := withStore(t, Options{})
	c.must("keyring_file_add_key", map[string]any{"name": "k", "path": filepath.Join(dir, "key1")}, nil)
	c.must("nvmf_create_subsystem", map[string]any{"nqn": testNQN}, nil)
	add := func(host string) {
		t.Helper()
		c.must("nvmf_subsystem_add_host", map[string]any{"nqn": testNQN, "host": host, "psk": "k"}, nil)
	}
	add(testHost)
	c.must("nvmf_create_transport", map[string]any{"trtype": "TCP"}, nil)
	add(strings.ReplaceAll(testHost, "1111", "2222"))
	var calls []struct {
		Method string
		Params struct{ Host, PSK string }
	}
	c.must("framework_get_config", map[string]any{"name": "nvmf"}, &calls)
	for _, call := range calls {
		if call.Method == "nvmf_subsystem_add_host" && (call.Params.PSK == "") != (call.Params.Host == testHost) {
			t.Errorf("host %s has PSK %q", call.Params.Host, call.Params.PSK)
		}
	}
}

func TestDrives(t *testing.T) {
	dir := shortTempDir(t)
	o := Options{Socket: filepath.Join(dir, "spdk.sock"), Drives: []Drive{{
		Address: "0000:01:00.0", Path: makeDisk(t, filepath.Join(dir, "nvme0"), 1<<30), Model: "Fake", Serial: "S1",
	}}}
	target := Start(t, o)
	c := dial(t, o.Socket)
	attach := map[string]any{"name": "n0", "trtype": "PCIe", "traddr": "0000:01:00.0"}
	var names []string
	c.must("bdev_nvme_attach_controller", attach, &names)
	if fmt.Sprint(names) != "[n0n1]" {
		t.Fatalf("bdevs %v", names)
	}
	if a := c.call("bdev_nvme_attach_controller", attach); a.Error == nil || a.Error.Code != -114 {
		t.Errorf("attached twice: %+v", a)
	}
	c.must("bdev_lvol_create_lvstore", map[string]any{"bdev_name": "n0n1", "lvs_name": "pool0"}, nil)
	c.must("bdev_lvol_create", lvolParams("a"), nil)
	before := storeState(c)
	c.must("bdev_nvme_detach_controller", map[string]any{"name": "n0"}, nil)
	if got := storeState(c); got != "[] []" {
		t.Errorf("a detached drive left %s", got)
	}
	target.Kill()
	Start(t, o)
	c = dial(t, o.Socket)
	c.must("bdev_nvme_attach_controller", attach, nil)
	if got := storeState(c); got != before {
		t.Errorf("want %s, got %s", before, got)
	}
}

func TestStatistics(t *testing.T) {
	target, c, _ := withStore(t, Options{})
	c.must("nvmf_create_transport", map[string]any{"trtype": "TCP"}, nil)
	target.Starve("nvmf_TCP", 3, 1)
	target.Starve("nvmf_TCP", 1, 0)
	var stats []moduleStat
	c.must("iobuf_get_stats", nil, &stats)
	if tcp := stats[2]; tcp.Module != "nvmf_TCP" || tcp.Small.Retry != 4 || tcp.Large.Retry != 1 {
		t.Errorf("statistics %+v", stats)
	}
}
