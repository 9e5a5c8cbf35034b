// SPDX-License-Identifier: Apache-2.0

package spdktest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// withStore starts a fake that has an lvstore.
func withStore(t *testing.T, o Options) (*Target, *client, string) {
	t.Helper()
	dir := shortTempDir(t)
	makeRecordedFiles(t, dir)
	o.Socket = filepath.Join(dir, "spdk.sock")
	target := Start(t, o)
	c := dial(t, o.Socket)
	makeStore(c, dir)
	return target, c, dir
}

func volumes(c *client) []string {
	c.t.Helper()
	var list []struct{ Name string }
	c.must("bdev_lvol_get_lvols", nil, &list)
	names := make([]string, len(list))
	for i, v := range list {
		names[i] = v.Name
	}
	return names
}

func lost(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) }

func TestFaultAnswersError(t *testing.T) {
	target, c, _ := withStore(t, Options{})
	full := &AnswerError{codeInvalidParams, "No space left on device"}
	target.Inject(Fault{Method: "bdev_lvol_create", Skip: 1, Times: 2, Error: full})
	c.must("bdev_lvol_create", lvolParams("a"), nil)
	c.fails("bdev_lvol_create", lvolParams("b"), full.Code, full.Message)
	c.must("keyring_get_keys", nil, nil)
	c.fails("bdev_lvol_create", lvolParams("b"), full.Code, full.Message)
	if got := volumes(c); len(got) != 1 {
		t.Errorf("volumes %v: a fault before a call let it happen", got)
	}
	c.must("bdev_lvol_create", lvolParams("b"), nil)
	target.Inject(Fault{Method: "bdev_lvol_create", When: After, Error: full})
	c.fails("bdev_lvol_create", lvolParams("c"), full.Code, full.Message)
	if got := volumes(c); len(got) != 3 {
		t.Errorf("volumes %v: a fault after a call undid it", got)
	}
	withdraw := target.Inject(Fault{Times: -1, Error: full, Match: func(p json.RawMessage) bool {
		return bytes.Contains(p, []byte("pool0/a"))
	}})
	for range 3 {
		c.fails("bdev_lvol_delete", map[string]any{"name": "pool0/a"}, full.Code, full.Message)
	}
	c.must("bdev_lvol_delete", map[string]any{"name": "pool0/b"}, nil)
	withdraw()
	c.must("bdev_lvol_delete", map[string]any{"name": "pool0/a"}, nil)
	if calls := target.Calls(); calls["bdev_lvol_create"] != 5 {
		t.Errorf("counted %v", calls)
	}
}

func TestFaultDelays(t *testing.T) {
	const delay = 50 * time.Millisecond
	for _, when := range []When{Before, After} {
		target, c, _ := withStore(t, Options{})
		target.Inject(Fault{Method: "keyring_get_keys", When: when, Delay: delay})
		began := time.Now()
		slow := c.send("keyring_get_keys", nil)
		quick := c.send("spdk_get_version", nil)
		for _, want := range []int{quick, slow} {
			a, err := c.receive()
			var id int
			if err := errors.Join(err, json.Unmarshal(a.ID, &id)); err != nil || id != want {
				t.Fatalf("want the answer of %d, got %+v, %v", want, a, err)
			}
		}
		if took := time.Since(began); took < delay {
			t.Errorf("delayed by %v only", took)
		}
	}
}

func TestFaultDropsConnection(t *testing.T) {
	for _, when := range []When{Before, After} {
		target, c, _ := withStore(t, Options{})
		target.Inject(Fault{Method: "bdev_lvol_create", When: when, Do: DropConnection})
		c.send("bdev_lvol_create", lvolParams("a"))
		if a, err := c.receive(); !lost(err) {
			t.Fatalf("want the connection dropped, got %+v, %v", a, err)
		}
		want := 0
		if when == After {
			want = 1
		}
		if got := volumes(dial(t, target.Socket())); len(got) != want {
			t.Errorf("when %v: volumes %v, want %d", when, got, want)
		}
	}
}

func TestFaultKills(t *testing.T) {
	for _, f := range []Fault{
		{Do: Die}, {Do: DieClean}, {Do: Die, When: After}, {Do: DieClean, When: After},
	} {
		target, c, dir := withStore(t, Options{})
		other := dial(t, target.Socket())
		other.must("keyring_get_keys", nil, nil)
		f.Method = "bdev_lvol_create"
		target.Inject(f)
		var both bytes.Buffer
		both.Write(encodeCall(t, 101, "bdev_lvol_create", lvolParams("a")))
		both.Write(encodeCall(t, 102, "bdev_lvol_create", lvolParams("never")))
		if _, err := c.conn.Write(both.Bytes()); err != nil {
			t.Fatal(err)
		}
		for _, client := range []*client{c, other} {
			if a, err := client.receive(); !lost(err) {
				t.Fatalf("%+v: want every connection cut, got %+v, %v", f, a, err)
			}
		}
		<-target.Done()
		if _, err := os.Lstat(target.Socket()); (err == nil) != (f.Do == Die) {
			t.Errorf("%+v: socket: %v", f, err)
		}
		again := Start(t, Options{Socket: target.Socket()})
		c = dial(t, again.Socket())
		attachDisk(c, dir)
		if got := volumes(c); f.When == Before && len(got) != 0 || len(got) > 0 && got[0] != "a" {
			t.Errorf("%+v: volumes %v", f, got)
		}
	}
}
