// SPDX-License-Identifier: Apache-2.0

package spdktest

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"
)

// allocation of every volume, and the store's free clusters.
func allocation(c *client) (byName map[string]uint64, free uint64) {
	c.t.Helper()
	var list []struct {
		Name      string
		Allocated uint64 `json:"num_allocated_clusters"`
	}
	c.must("bdev_lvol_get_lvols", nil, &list)
	var stores []struct {
		Free uint64 `json:"free_clusters"`
	}
	c.must("bdev_lvol_get_lvstores", nil, &stores)
	byName = map[string]uint64{}
	for _, v := range list {
		byName[v.Name] = v.Allocated
	}
	return byName, stores[0].Free
}

// TestWrite follows clusters through writes, snapshots, clones and the merge of a deleted snapshot.
func TestWrite(t *testing.T) {
	target, c, _ := withStore(t, Options{})
	const total = 2039
	want := func(free uint64, volumes map[string]uint64) {
		t.Helper()
		got, left := allocation(c)
		if fmt.Sprint(got) != fmt.Sprint(volumes) || left != free {
			t.Errorf("want %v and %d free, got %v and %d", volumes, free, got, left)
		}
	}
	write := func(volume string, first, n uint64) {
		t.Helper()
		if err := target.Write(volume, first, n); err != nil {
			t.Fatal(err)
		}
	}
	c.must("bdev_lvol_create", lvolParams("a"), nil)
	want(total, map[string]uint64{"a": 0})
	write("pool0/a", 0, 4)
	write("pool0/a", 2, 3)
	want(total-5, map[string]uint64{"a": 5})
	c.must("bdev_lvol_snapshot", map[string]any{"lvol_name": "pool0/a", "snapshot_name": "s"}, nil)
	want(total-5, map[string]uint64{"a": 0, "s": 5})
	write("pool0/a", 4, 2)
	want(total-7, map[string]uint64{"a": 2, "s": 5})
	c.must("bdev_lvol_clone", map[string]any{"snapshot_name": "pool0/s", "clone_name": "c"}, nil)
	write("pool0/c", 7, 1)
	c.must("bdev_lvol_decouple_parent", map[string]any{"name": "pool0/c"}, nil)
	want(total-13, map[string]uint64{"a": 2, "s": 5, "c": 6})
	// a takes over what it shared, but for the cluster that it had written itself.
	c.must("bdev_lvol_delete", map[string]any{"name": "pool0/s"}, nil)
	want(total-12, map[string]uint64{"a": 6, "c": 6})

	for what, err := range map[string]error{
		"past the end": target.Write("pool0/a", 7, 2), "nowhere": target.Write("pool0/nope", 0, 1),
	} {
		if !errors.Is(err, syscall.EIO) && !errors.Is(err, ErrNoVolume) {
			t.Errorf("write %s: %v", what, err)
		}
	}
	c.must("bdev_lvol_create", map[string]any{"lvs_name": "pool0", "lvol_name": "fill", "size_in_mib": total - 12}, nil)
	if err := target.Write("pool0/a", 6, 1); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("write to a full store: %v", err)
	}
}

// TestTooManyDeletions: what fails is forgotten until the next start.
func TestTooManyDeletions(t *testing.T) {
	target, c, dir := withStore(t, Options{})
	const n = 500
	var create, remove []step
	for i := range n {
		name := fmt.Sprintf("v%d", i)
		params, err := json.Marshal(lvolParams(name))
		if err != nil {
			t.Fatal(err)
		}
		create = append(create, step{Method: "bdev_lvol_create", Params: params})
		remove = append(remove, step{Method: "bdev_lvol_delete", Params: json.RawMessage(`{"name":"pool0/` + name + `"}`)})
	}
	none := newComparison("")
	c.together(none, create)
	failed := 0
	for _, a := range c.together(none, remove) {
		if a.Error != nil {
			failed++
		}
	}
	if got := volumes(c); failed == 0 || len(got) != 0 {
		t.Fatalf("%d deletions failed, and %d volumes are listed", failed, len(got))
	}
	target.Kill()
	Start(t, Options{Socket: target.Socket()})
	c = dial(t, target.Socket())
	attachDisk(c, dir)
	if got := volumes(c); len(got) != failed {
		t.Errorf("%d volumes came back, want the %d whose deletion failed", len(got), failed)
	}
}

// TestVolumeComesAfterItsAnswer: a call that needs a volume waits for the answer of the one that makes it.
func TestVolumeComesAfterItsAnswer(t *testing.T) {
	_, c, _ := withStore(t, Options{})
	params, err := json.Marshal(lvolParams("a"))
	if err != nil {
		t.Fatal(err)
	}
	c.must("nvmf_create_subsystem", map[string]any{"nqn": testNQN}, nil)
	answers := c.together(newComparison(""), []step{
		{Method: "bdev_lvol_create", Params: params},
		{Method: "nvmf_subsystem_add_ns", Params: json.RawMessage(`{"nqn":"` + testNQN + `","namespace":{"bdev_name":"pool0/a"}}`)},
	})
	if answers[0].Error != nil || answers[1].Error == nil {
		t.Errorf("got %+v", answers)
	}
}

func TestLvolTime(t *testing.T) {
	const each, n = 5 * time.Millisecond, 10
	_, c, _ := withStore(t, Options{LvolTime: each})
	var steps []step
	for i := range n {
		params, err := json.Marshal(lvolParams(fmt.Sprintf("v%d", i)))
		if err != nil {
			t.Fatal(err)
		}
		steps = append(steps, step{Method: "bdev_lvol_create", Params: params})
	}
	began := time.Now()
	c.together(newComparison(""), steps)
	if took := time.Since(began); took < n*each {
		t.Errorf("%d operations took %v", n, took)
	}
}

func TestClusterSets(t *testing.T) {
	var c clusters
	c.addRange(60, 10)
	c.add(200)
	c.add(1000)
	if got := c.runs(); !slices.Equal(got, [][2]uint64{{60, 10}, {200, 1}, {1000, 1}}) || c.count() != 12 {
		t.Errorf("runs %v, count %d", got, c.count())
	}
	if got := c.pages(); got != 2 {
		t.Errorf("%d pages", got)
	}
	c.truncate(65)
	if got := c.runs(); !slices.Equal(got, [][2]uint64{{60, 5}}) {
		t.Errorf("truncated: %v", got)
	}
	c.remove(61)
	c.addRange(0, 60)
	if got := c.firstFree(); got != 61 {
		t.Errorf("first free is %d", got)
	}
}

// TestWords: what was written is read through snapshots and clones, after deletions, an inflation and the target's end.
func TestWords(t *testing.T) {
	target, c, dir := withStore(t, Options{})
	write := func(volume string, cluster, word uint64) {
		t.Helper()
		if err := target.WriteWord(volume, cluster, word); err != nil {
			t.Fatal(err)
		}
	}
	reads := func(volume string, want ...uint64) {
		t.Helper()
		for cluster, w := range want {
			if got, err := target.ReadWord(volume, uint64(cluster)); err != nil || got != w {
				t.Errorf("cluster %d of %s reads %d, %v; want %d", cluster, volume, got, err, w)
			}
		}
	}
	snapshot := func(name string) {
		c.must("bdev_lvol_snapshot", map[string]any{"lvol_name": "pool0/a", "snapshot_name": name}, nil)
	}
	c.must("bdev_lvol_create", lvolParams("a"), nil)
	write("a", 0, 10)
	write("pool0/a", 1, 11)
	snapshot("s1")
	write("a", 1, 12)
	snapshot("s2")
	write("a", 2, 13)
	c.must("bdev_lvol_clone", map[string]any{"snapshot_name": "pool0/s2", "clone_name": "c"}, nil)
	write("c", 0, 14)
	for range 2 {
		reads("s1", 10, 11, 0)
		reads("s2", 10, 12, 0)
		reads("a", 10, 12, 13)
		reads("c", 14, 12, 0)
		target.Kill()
		target = Start(t, Options{Socket: target.Socket()})
		c = dial(t, target.Socket())
		attachDisk(c, dir)
	}
	c.must("bdev_lvol_delete", map[string]any{"name": "pool0/s1"}, nil)
	reads("s2", 10, 12, 0)
	c.must("bdev_lvol_decouple_parent", map[string]any{"name": "pool0/c"}, nil)
	c.must("bdev_lvol_delete", map[string]any{"name": "pool0/s2"}, nil)
	reads("a", 10, 12, 13)
	reads("c", 14, 12, 0)
	if err := target.WriteWord("b", 0, 1); !errors.Is(err, ErrNoVolume) {
		t.Error(err)
	}
	if _, err := target.ReadWord("a", 1<<20); !errors.Is(err, syscall.EIO) {
		t.Error(err)
	}
}
