// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kjson "sigs.k8s.io/json"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/claim"
	"github.com/weft-storage/weft/operator/internal/gather"
)

// kindless objects are hardware in short form: only a cluster's objects have apiVersion and kind.
var kindless schema.GroupVersionKind

// nodesOf reads nodes from an inventory's documents: NvmfNodes, Nodes that belong to them, and hardware in short form.
// The notes say what the file leaves open.
func nodesOf(docs []document) (nodes []claim.Node, notes []string, err error) {
	var (
		nvmfNodes []v1alpha1.NvmfNode
		kubeNodes []corev1.Node
	)
	for _, doc := range docs {
		switch gvk := doc.GroupVersionKind(); gvk {
		case v1alpha1.GroupVersion.WithKind("NvmfNode"):
			var n v1alpha1.NvmfNode
			if err := decode(doc, &n); err != nil {
				return nil, nil, err
			}
			nvmfNodes = append(nvmfNodes, n)
		case corev1.SchemeGroupVersion.WithKind("Node"):
			var n corev1.Node
			if err := decode(doc, &n); err != nil {
				return nil, nil, err
			}
			kubeNodes = append(kubeNodes, n)
		case kindless:
			var h hardware
			if err := decode(doc, &h); err != nil {
				return nil, nil, err
			}
			nvmfNode, kubeNode, err := h.nodes()
			if err != nil {
				return nil, nil, fmt.Errorf("%s: %w", doc.from, err)
			}
			nvmfNodes, kubeNodes = append(nvmfNodes, nvmfNode), append(kubeNodes, kubeNode)
		default:
			return nil, nil, fmt.Errorf("%s: unexpected object %s %s; an inventory contains NvmfNodes (kubectl get nvmfnode NODE -o yaml) and optionally their Nodes, or the short form in docs/kubectl-weft/plan.md",
				doc.from, doc.GetAPIVersion(), doc.GetKind())
		}
	}
	for _, is := range gather.Nodes(kubeNodes, nvmfNodes, nil, nil) {
		n := is.Node
		if n.Nvmf == nil {
			return nil, nil, fmt.Errorf("the inventory contains Node %s, but not its NvmfNode", n.Name)
		}
		if len(n.InternalIPs) == 0 {
			if ip, from := likelyAddress(n.Nvmf); ip != "" {
				n.InternalIPs = []string{ip}
				notes = append(notes, fmt.Sprintf("node %s: assuming that its InternalIP is %s, %s", n.Name, ip, from))
			}
		}
		if n.Allocatable == nil {
			notes = append(notes, fmt.Sprintf("node %s: the allocatable resources of its kubelet are unknown; only its hardware is considered", n.Name))
		}
		if n.Claimant() != "" {
			notes = append(notes, fmt.Sprintf("node %s: currently claimed by NvmfTarget %s", n.Name, n.Claimant()))
		}
		nodes = append(nodes, n)
	}
	return nodes, notes, nil
}

// decode reads a document into its type. Fields that the type does not have are an error, but for a Node's: it is
// Kubernetes' own.
func decode(doc document, into any) error {
	text, err := json.Marshal(doc.Object)
	if err != nil {
		return fmt.Errorf("%s: %w", doc.from, err)
	}
	unknown, err := kjson.UnmarshalStrict(text, into)
	if _, ok := into.(*corev1.Node); !ok {
		err = errors.Join(append(unknown, err)...)
	}
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		want := map[reflect.Kind]string{
			reflect.Int: "a whole number", reflect.Int32: "a whole number", reflect.Int64: "a whole number", reflect.Float64: "a number",
			reflect.String: "a string", reflect.Bool: "true or false", reflect.Slice: "a list",
		}[wrong.Type.Kind()]
		return fmt.Errorf("%s: %s is a %s; must be %s", doc.from, wrong.Field, wrong.Value, cmp.Or(want, "fields with values"))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", doc.from, err)
	}
	return nil
}

// likelyAddress stands in for the InternalIP, which only the Node tells.
func likelyAddress(n *v1alpha1.NvmfNode) (ip, from string) {
	if n.Spec.Plan != nil && len(n.Spec.Plan.Portals) > 0 {
		return n.Spec.Plan.Portals[0].Address, "the address of its current portal"
	}
	if n.Status.Inventory == nil {
		return "", ""
	}
	for _, nic := range n.Status.Inventory.NICs {
		for _, a := range nic.Addresses {
			if prefix, err := netip.ParsePrefix(a); err == nil && nic.Up {
				return prefix.Addr().String(), "the first address of " + nic.Name
			}
		}
	}
	return "", ""
}
