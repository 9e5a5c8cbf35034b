// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/claim"
)

// hugepages that nodes lack for the targets that they serve, or are to serve, and those that a kubelet has miscounted.
func (s *survey) hugepages() []finding {
	var found []finding
	told := map[string]bool{}
	for i := range s.targets {
		target := &s.targets[i]
		if s.claims == nil || target.Spec.Engine != v1alpha1.EngineSPDK || target.DeletionTimestamp != nil {
			continue
		}
		for _, p := range claim.Prospects(target, s.targets, s.claims) {
			if !s.checks(p.Node) || !p.Matches && !p.Serves {
				continue
			}
			for _, f := range lackedBy(p) {
				f.says = fmt.Sprintf("NvmfTarget %s: %s", target.Name, f.says)
				found, told[p.Node] = append(found, f), true
			}
		}
	}
	for i := range s.nodes {
		if n := &s.nodes[i]; !told[n.Name] {
			found = append(found, s.miscounted(n)...)
		}
	}
	return found
}

// lackedBy a node that is to hold a target: hugepages, of all that it may lack. A node that another target has lacks
// nothing for this one.
func lackedBy(p claim.Prospect) []finding {
	var found []finding
	for _, r := range p.Reasons {
		switch r.Reason {
		case v1alpha1.ReasonClaimedByAnother:
			return nil
		case v1alpha1.ReasonHugepagesMissing:
			found = append(found, finding{node: p.Node, wrong: true, says: r.Message})
		}
	}
	if p.Plan == nil {
		return found
	}
	for _, c := range p.Plan.Choices {
		if c.Setting == "memoryBytes" && c.Warning != "" {
			found = append(found, finding{node: p.Node, says: c.Warning})
		}
	}
	return found
}

// miscounted hugepages: the kubelet counts them when it starts, and they can change after that.
func (s *survey) miscounted(n *corev1.Node) []finding {
	counted, has := claim.HugepageBytes(n.Status.Capacity), kernelHugepages(s.inventory(n.Name))
	var found []finding
	for _, size := range slices.Sorted(maps.Keys(counted)) {
		if pages, known := has[size]; known && pages != counted[size]/size {
			found = append(found, finding{node: n.Name, says: fmt.Sprintf("its kernel has %d hugepages of %s, and its kubelet counts %d; restart the kubelet, so that it counts them again",
				pages, binary(size), counted[size]/size)})
		}
	}
	return found
}

// kernelHugepages by the size of a page in bytes, on all NUMA nodes; a size that the kernel does not have is absent.
func kernelHugepages(inventory *v1alpha1.Inventory) map[int64]int64 {
	has := map[int64]int64{}
	if inventory == nil {
		return has
	}
	for _, n := range inventory.NUMANodes {
		for _, pool := range n.Hugepages {
			has[pool.SizeBytes] += pool.Total
		}
	}
	return has
}

// hugepagesOf a node, by their size.
func (s *survey) hugepagesOf(n *corev1.Node) []CheckedHugepages {
	counted, has := claim.HugepageBytes(n.Status.Capacity), kernelHugepages(s.inventory(n.Name))
	var needs int64 // bytes, in pages of a size
	var of resource.Quantity
	if nvmf := s.nvmf[n.Name]; nvmf != nil && nvmf.Spec.Plan != nil && nvmf.Spec.Plan.SPDK != nil {
		var err error
		if of, err = resource.ParseQuantity(string(nvmf.Spec.Plan.SPDK.Hugepages)); err == nil { // Disabled is no size
			needs = nvmf.Spec.Plan.SPDK.MemoryBytes
		}
	}
	var all []CheckedHugepages
	for _, size := range slices.Sorted(maps.Keys(counted)) {
		h := CheckedHugepages{Size: binary(size), Kubelet: counted[size] / size}
		if pages, known := has[size]; known {
			h.Kernel = &pages
		}
		if of.Value() == size {
			h.Needed = needs / size
		}
		all = append(all, h)
	}
	return all
}

// binary is a number of bytes in the largest unit that is exact.
func binary(bytes int64) string { return resource.NewQuantity(bytes, resource.BinarySI).String() }
