// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-storage/weft/api/v1alpha1"
)

const (
	nodesDir = "sys/devices/system/node"
	cpusDir  = "sys/devices/system/cpu"
)

// numaNodes lists the NUMA nodes. A kernel without NUMA has no folder for them; it
// is one node, with all CPUs and all memory.
func numaNodes(t tree) ([]v1alpha1.NUMANode, error) {
	entries, err := t.listIfThere(nodesDir)
	if err != nil {
		return nil, err
	}
	var nodes []v1alpha1.NUMANode
	for _, name := range entries {
		id, isNode := strings.CutPrefix(name, "node")
		n, err := strconv.ParseInt(id, 10, 32)
		if !isNode || err != nil {
			continue // a file such as "online"
		}
		node, err := numaNode(t, int32(n), path.Join(nodesDir, name, "cpulist"), path.Join(nodesDir, name, "meminfo"), path.Join(nodesDir, name, "hugepages"))
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, node)
	}
	if len(nodes) == 0 {
		node, err := numaNode(t, 0, path.Join(cpusDir, "online"), "proc/meminfo", "sys/kernel/mm/hugepages")
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, node)
	}
	slices.SortFunc(nodes, func(a, b v1alpha1.NUMANode) int { return cmp.Compare(a.ID, b.ID) })
	return nodes, nil
}

func numaNode(t tree, id int32, cpuFile, memFile, hugeDir string) (v1alpha1.NUMANode, error) {
	node := v1alpha1.NUMANode{ID: id}
	var err error
	if node.CPUs, err = t.read(cpuFile); err != nil {
		return node, err
	}
	cpus, err := cpuList(node.CPUs)
	if err != nil {
		return node, fmt.Errorf("%s: %w", cpuFile, err)
	}
	if node.Cores, err = cores(t, cpus); err != nil {
		return node, err
	}
	if node.LLCBytes, err = lastLevelCaches(t, cpus); err != nil {
		return node, err
	}
	if node.MemoryBytes, err = memory(t, memFile); err != nil {
		return node, err
	}
	node.Hugepages, err = hugepages(t, hugeDir)
	return node, err
}

// cores lists the hardware threads of each core that has one of the CPUs, by the
// core's first thread.
func cores(t tree, cpus []int) ([]string, error) {
	var found []string
	for _, cpu := range cpus {
		threads, err := t.readIfSaid(cpusDir, fmt.Sprintf("cpu%d", cpu), "topology/thread_siblings_list")
		if err != nil {
			return nil, err
		}
		if threads != "" && !slices.Contains(found, threads) {
			found = append(found, threads)
		}
	}
	return found, nil
}

// lastLevelCaches sums the distinct caches of the highest level that the CPUs
// share. A cache that other CPUs share too (several NUMA nodes on one die) counts
// in proportion.
func lastLevelCaches(t tree, cpus []int) (int64, error) {
	seen := map[string]bool{}
	var sum int64
	for _, cpu := range cpus {
		c, err := lastLevelCache(t, cpu)
		if err != nil {
			return 0, err
		}
		if c.sharedBy == "" || seen[c.sharedBy] {
			continue
		}
		seen[c.sharedBy] = true
		sharing, err := cpuList(c.sharedBy)
		if err != nil {
			return 0, err
		}
		own := 0
		for _, other := range sharing {
			if _, ok := slices.BinarySearch(cpus, other); ok {
				own++
			}
		}
		sum += c.bytes * int64(own) / int64(len(sharing))
	}
	return sum, nil
}

type cache struct {
	level, bytes int64
	sharedBy     string
}

// lastLevelCache is the CPU's data or unified cache of the highest level; the zero value when it tells none.
func lastLevelCache(t tree, cpu int) (cache, error) {
	dir := path.Join(cpusDir, fmt.Sprintf("cpu%d", cpu), "cache")
	indices, err := t.listIfThere(dir)
	if err != nil {
		return cache{}, err
	}
	var last cache
	for _, index := range indices {
		level, ok, err := t.number(dir, index, "level")
		if err != nil {
			return cache{}, err
		}
		kind, err := t.readIfSaid(dir, index, "type")
		if err != nil {
			return cache{}, err
		}
		if !ok || kind == "Instruction" || level <= last.level {
			continue
		}
		size, err := t.readIfSaid(dir, index, "size")
		if err != nil {
			return cache{}, err
		}
		sharedBy, err := t.readIfSaid(dir, index, "shared_cpu_list")
		if err != nil {
			return cache{}, err
		}
		if size == "" || sharedBy == "" {
			continue
		}
		bytes, err := kibibytes(size)
		if err != nil {
			return cache{}, fmt.Errorf("%s: %w", t.path(dir, index, "size"), err)
		}
		last = cache{level: level, bytes: bytes, sharedBy: sharedBy}
	}
	return last, nil
}

// kibibytes parses a cache's size: the kernel always writes it as 32768K.
func kibibytes(size string) (int64, error) {
	n, err := strconv.ParseInt(strings.TrimSuffix(size, "K"), 10, 64)
	return n << 10, err
}

// memory reads MemTotal of a meminfo, a node's ("Node 0 MemTotal: 131900000 kB") or
// the machine's ("MemTotal: 131900000 kB").
func memory(t tree, file string) (int64, error) {
	text, err := t.read(file)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		_, value, ok := strings.Cut(line, "MemTotal:")
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", t.path(file), err)
		}
		return n << 10, nil
	}
	return 0, fmt.Errorf("%s: no MemTotal", t.path(file))
}

// hugepages reads the pools of a folder with hugepages-2048kB and the like.
func hugepages(t tree, dir string) ([]v1alpha1.HugepagePool, error) {
	entries, err := t.listIfThere(dir)
	if err != nil {
		return nil, err
	}
	var pools []v1alpha1.HugepagePool
	for _, name := range entries {
		size, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimPrefix(name, "hugepages-"), "kB"), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", t.path(dir, name), err)
		}
		pool := v1alpha1.HugepagePool{SizeBytes: size << 10}
		if pool.Total, _, err = t.number(dir, name, "nr_hugepages"); err != nil {
			return nil, err
		}
		if pool.Free, _, err = t.number(dir, name, "free_hugepages"); err != nil {
			return nil, err
		}
		pools = append(pools, pool)
	}
	slices.SortFunc(pools, func(a, b v1alpha1.HugepagePool) int { return cmp.Compare(a.SizeBytes, b.SizeBytes) })
	return pools, nil
}
