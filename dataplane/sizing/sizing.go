// SPDX-License-Identifier: Apache-2.0

// Package sizing turns what a node has and what an NvmfTarget asks for into
// the node's plan, or into the reasons why the node cannot serve.
//
// It is pure: no clock, no I/O, and the same input gives the same answer
// whatever the order of its lists. It never fails in another way than by
// reasons, so the operator and kubectl weft plan say the same of a node before anything
// is started on it.
package sizing

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// Node is what Plan knows of a node.
type Node struct {
	// Name of the node.
	Name string
	// InternalIPs of the Kubernetes Node, in its order: the first is the
	// default address of a transport.
	InternalIPs []string
	// Inventory as the agent reported it; nil when it has not yet.
	Inventory *v1alpha1.Inventory
	// Current is the plan that the node follows for this target; nil when it
	// follows none. Its drives hold volumes, so they stay in every later
	// plan.
	Current *v1alpha1.Plan
	// Dropped are the IDs of drives that were given up: they leave the plan, and are not taken again.
	Dropped []string
	// ClusterBytes is the largest cluster of the pools that the node has; 0 where none is known.
	ClusterBytes int64
	// Allocatable is what the kubelet has to give to pods; nil when that is not known.
	Allocatable *Allocatable
}

// Allocatable of a Kubernetes Node, in all: what running pods hold is not taken off.
type Allocatable struct {
	// CPUs, whole ones.
	CPUs int64
	// HugepageBytes by the size of a page in bytes.
	HugepageBytes map[int64]int64
	// MemoryBytes of ordinary memory.
	MemoryBytes int64
}

// Reason says one thing that keeps a node from serving.
type Reason struct {
	// Reason is one of the api package's constants for NvmfNode, such as KernelModuleMissing.
	Reason string
	// Message is a full sentence that says what would mend it.
	Message string
}

// Plan resolves a target's spec for one node. It returns either a plan or at
// least one reason, never both: every reason that it can find, not only the
// first, in the order kernel modules, transports, devices, then settings, and for SPDK then cores, queues and buffers,
// memory. Of these last three it goes on to the next only when the ones before are found.
//
// What spec.tuning comes to is part of the plan of either engine.
//
// A plan for SPDK tells of each number where it came from and why, and of its memory line by line; both are
// for the version of SPDK that weft is built for.
//
// The spec is one that the API server accepted. Fields that it would have defaulted may be zero.
func Plan(node Node, spec v1alpha1.NvmfTargetSpec) (*v1alpha1.Plan, []Reason) {
	switch spec.Engine {
	case v1alpha1.EngineNvmet:
		plan, reasons := planNvmet(node, spec)
		return withTuning(node, spec, withSecurity(spec, plan), reasons)
	case v1alpha1.EngineSPDK:
		plan, reasons := planSPDK(node, spec)
		return withTuning(node, spec, withSecurity(spec, plan), reasons)
	default:
		return nil, []Reason{reasonf(v1alpha1.ReasonEngineUnavailable,
			"engine %q is unknown; use engine: Nvmet or SPDK", spec.Engine)}
	}
}

func planNvmet(node Node, spec v1alpha1.NvmfTargetSpec) (*v1alpha1.Plan, []Reason) {
	if node.Inventory == nil {
		return nil, []Reason{noInventory(node)}
	}
	reasons := missingModules(node.Inventory, spec)
	portals, why := planPortals(node, spec.Engine, spec.Transports)
	reasons = append(reasons, why...)
	pool, why := planPool(node, spec)
	reasons = append(reasons, why...)
	var words explanation
	modules, why := planModules(node, spec, portals, &words)
	reasons = append(reasons, why...)
	if len(reasons) > 0 {
		return nil, reasons
	}
	words.sort()
	return &v1alpha1.Plan{Engine: spec.Engine, Portals: portals, Drives: pool.drives, File: pool.file, OverProvisioningPercent: pool.promisePercent, Nvmet: modules, Choices: words.choices}, nil
}

func noInventory(node Node) Reason {
	return reasonf(v1alpha1.ReasonNoInventory,
		"the agent of node %s has not reported an inventory yet; check that a weft-agent pod runs on the node and is Ready", node.Name)
}

// A module that an engine needs, and what brings it to a node that lacks it.
type module struct{ name, config string }

// missingModules checks for what the engine needs of the kernel.
func missingModules(inv *v1alpha1.Inventory, spec v1alpha1.NvmfTargetSpec) []Reason {
	needed := nvmetModules(spec)
	if spec.Engine == v1alpha1.EngineSPDK {
		needed = spdkModules(spec)
	}
	var reasons []Reason
	for _, m := range needed {
		if !slices.Contains(inv.Modules, m.name) {
			reasons = append(reasons, reasonf(v1alpha1.ReasonModuleMissing,
				"kernel module %s is neither loaded, built in nor installed for the node's kernel %s; install the package with the kernel's extra modules, or a kernel with %s",
				m.name, cmp.Or(inv.KernelVersion, "(of unknown version)"), m.config))
		}
	}
	return reasons
}

// spdkModules are those of the drives' driver; the rest of SPDK is not in the kernel.
func spdkModules(spec v1alpha1.NvmfTargetSpec) []module {
	switch spec.Devices.Driver {
	case v1alpha1.DriverVFIO:
		return []module{{"vfio_pci", "CONFIG_VFIO_PCI"}}
	case v1alpha1.DriverUIO:
		return []module{{"uio_pci_generic", "CONFIG_UIO_PCI_GENERIC"}}
	}
	return nil
}

// nvmetModules are the kernel's target itself, its transports, XFS
// (volumes are files on it) and, for a pool in a file, loop.
func nvmetModules(spec v1alpha1.NvmfTargetSpec) []module {
	needed := []module{{"nvmet", "CONFIG_NVME_TARGET"}}
	uses := func(t v1alpha1.TransportType) bool {
		return slices.ContainsFunc(spec.Transports, func(have v1alpha1.Transport) bool { return have.Type == t })
	}
	if uses(v1alpha1.TransportTCP) {
		needed = append(needed, module{"nvmet_tcp", "CONFIG_NVME_TARGET_TCP"})
	}
	if uses(v1alpha1.TransportRDMA) {
		needed = append(needed, module{"nvmet_rdma", "CONFIG_NVME_TARGET_RDMA"})
	}
	needed = append(needed, module{"xfs", "CONFIG_XFS_FS"})
	if spec.Devices.File != nil {
		needed = append(needed, module{"loop", "CONFIG_BLK_DEV_LOOP"})
	}
	return needed
}

func reasonf(reason, format string, args ...any) Reason {
	return Reason{Reason: reason, Message: fmt.Sprintf(format, args...)}
}
