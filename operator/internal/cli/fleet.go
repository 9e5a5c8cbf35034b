// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/internal/text"
)

// volumePrefix of an NvmfVolume's name in an argument that can also be a claim's.
const volumePrefix = "nv/"

// fleet is one look at everything that decides which replicas can move where.
type fleet struct {
	*status
	snapshots []v1alpha1.NvmfSnapshot
	// persistent volumes by the NvmfVolume that they refer to.
	persistent map[string]*corev1.PersistentVolume
	// cordoned Kubernetes Nodes.
	cordoned map[string]bool
	// labels of Kubernetes Nodes.
	labels map[string]map[string]string
}

func lookAtFleet(ctx context.Context, api client.Reader, now time.Time) (*fleet, error) {
	var (
		snapshots  v1alpha1.NvmfSnapshotList
		persistent corev1.PersistentVolumeList
		nodes      corev1.NodeList
	)
	for _, list := range []client.ObjectList{&snapshots, &persistent, &nodes} {
		if err := api.List(ctx, list); err != nil {
			return nil, fmt.Errorf("list %T: %w", list, unread(err))
		}
	}
	s, err := look(ctx, api, now)
	if err != nil {
		return nil, unread(err)
	}
	f := &fleet{status: s, snapshots: snapshots.Items, persistent: map[string]*corev1.PersistentVolume{}, cordoned: map[string]bool{}, labels: map[string]map[string]string{}}
	for i, pv := range persistent.Items {
		if csi := pv.Spec.CSI; csi != nil && csi.Driver == v1alpha1.DriverName {
			f.persistent[csi.VolumeHandle] = &persistent.Items[i]
		}
	}
	for _, n := range nodes.Items {
		f.cordoned[n.Name], f.labels[n.Name] = n.Spec.Unschedulable, n.Labels
	}
	f.claims = map[string]string{}
	for name, pv := range f.persistent {
		if ref := pv.Spec.ClaimRef; ref != nil && pv.Status.Phase == corev1.VolumeBound {
			f.claims[name] = ref.Namespace + "/" + ref.Name
		}
	}
	return f, nil
}

// called is the volume as a person calls it: by its claim, or by the name of the NvmfVolume if it has none.
func (s *status) called(v *v1alpha1.NvmfVolume) string {
	claim := s.claims[v.Name]
	if namespace, name := v.Annotations[v1alpha1.PVCNamespaceKey], v.Annotations[v1alpha1.PVCNameKey]; s.claims == nil && namespace != "" && name != "" {
		claim = namespace + "/" + name
	}
	if claim != "" {
		return claim
	}
	return volumePrefix + v.Name
}

// arguments that make a command mean this volume.
func (s *status) arguments(v *v1alpha1.NvmfVolume) string {
	called := s.called(v)
	if strings.HasPrefix(called, volumePrefix) {
		return called
	}
	namespace, name, _ := strings.Cut(called, "/")
	return name + " -n " + namespace
}

func (s *status) node(name string) *v1alpha1.NvmfNode {
	return find(s.nodes, func(n *v1alpha1.NvmfNode) bool { return n.Name == name })
}

func (s *status) volume(name string) *v1alpha1.NvmfVolume {
	return find(s.volumes, func(v *v1alpha1.NvmfVolume) bool { return v.Name == name })
}

func (s *status) replica(name string) *v1alpha1.NvmfReplica {
	return find(s.replicas, func(r *v1alpha1.NvmfReplica) bool { return r.Name == name })
}

// mirrorMember is what the NvmfMirror of a volume says of a replica; nil: nothing.
func (s *status) mirrorMember(volume, replica string) *v1alpha1.MirrorMember {
	m := find(s.mirrors, func(m *v1alpha1.NvmfMirror) bool { return m.Name == volume })
	if m == nil {
		return nil
	}
	return find(m.Spec.Members, func(member *v1alpha1.MirrorMember) bool { return member.Replica == replica })
}

// find the first of items that is as wanted; nil: there is none.
func find[T any](items []T, wanted func(*T) bool) *T {
	for i := range items {
		if wanted(&items[i]) {
			return &items[i]
		}
	}
	return nil
}

func memberOf(v *v1alpha1.NvmfVolume, replica string) *v1alpha1.VolumeMember {
	return find(v.Spec.Members, func(m *v1alpha1.VolumeMember) bool { return m.Name == replica })
}

func memberOn(v *v1alpha1.NvmfVolume, node string) *v1alpha1.VolumeMember {
	return find(v.Spec.Members, func(m *v1alpha1.VolumeMember) bool { return m.Node == node })
}

// resolve the argument of a command, a claim's name or nv/NAME, to the name of an NvmfVolume.
func resolve(ctx context.Context, api client.Reader, namespace, arg string) (string, error) {
	if name, ok := strings.CutPrefix(arg, volumePrefix); ok {
		return name, nil
	}
	var claim corev1.PersistentVolumeClaim
	err := api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: arg}, &claim)
	switch {
	case apierrors.IsNotFound(err):
		return "", fmt.Errorf("PersistentVolumeClaim %s not found in namespace %s; set its namespace with -n, or specify nv/NAME with the name of an NvmfVolume (kubectl get nv)", arg, namespace)
	case err != nil:
		return "", fmt.Errorf("read PersistentVolumeClaim %s/%s: %w", namespace, arg, err)
	case claim.Spec.VolumeName == "":
		return "", fmt.Errorf("PersistentVolumeClaim %s/%s is not bound, so it has no volume yet; see why with: kubectl describe pvc %s -n %s", namespace, arg, arg, namespace)
	}
	var pv corev1.PersistentVolume
	if err := api.Get(ctx, client.ObjectKey{Name: claim.Spec.VolumeName}, &pv); err != nil {
		return "", fmt.Errorf("read PersistentVolume %s of PersistentVolumeClaim %s/%s: %w", claim.Spec.VolumeName, namespace, arg, err)
	}
	if pv.Spec.CSI == nil || pv.Spec.CSI.Driver != v1alpha1.DriverName {
		return "", fmt.Errorf("PersistentVolumeClaim %s/%s is not a volume of weft: PersistentVolume %s has another driver than %s", namespace, arg, pv.Name, v1alpha1.DriverName)
	}
	return pv.Spec.CSI.VolumeHandle, nil
}

// movable refuses a volume none of whose replicas can move, and says what to do.
func (f *fleet) movable(v *v1alpha1.NvmfVolume) error {
	if v.DeletionTimestamp != nil {
		return errors.New("the volume is being deleted")
	}
	var on []string
	for _, a := range v.Spec.Attachments {
		if a.Access == v1alpha1.AccessSharedWrite || a.Access == v1alpha1.AccessSharedRead {
			on = append(on, a.Node)
		}
	}
	if len(on) > 0 {
		return fmt.Errorf("the volume is attached for shared access (nodes %s), and a volume that moves can be used by one node at a time only; "+
			"detach it, and use it with access mode ReadWriteOnce, or copy its data to a new volume", text.Few(on, maxNamed, ", "))
	}
	if pv := f.persistent[v.Name]; pv != nil {
		for _, mode := range pv.Spec.AccessModes {
			if mode == corev1.ReadWriteMany || mode == corev1.ReadOnlyMany {
				return fmt.Errorf("the volume has access mode %s, and a volume that moves can be used by one node at a time only; copy its data to a new volume", mode)
			}
		}
	}
	return nil
}

// takes refuses a node that cannot take a replica of the volume, and says why.
func (f *fleet) takes(v *v1alpha1.NvmfVolume, node string) error {
	n := f.node(node)
	if n == nil || n.Spec.Target != v.Spec.Target {
		return fmt.Errorf("node %s does not serve NvmfTarget %s, which the volume belongs to", node, v.Spec.Target)
	}
	if m := memberOn(v, node); m != nil {
		return fmt.Errorf("node %s already stores a replica of the volume, %s", node, m.Name)
	}
	if n.DeletionTimestamp != nil {
		return fmt.Errorf("node %s is being removed", node)
	}
	if _, why := n.Unschedulable(f.cordoned[node]); why != "" {
		return fmt.Errorf("node %s gets no new replicas: %s", node, why)
	}
	if c := notReady(n); c != "" {
		return fmt.Errorf("node %s is not ready: %s; see kubectl weft status %s", node, c, node)
	}
	class := v.Spec.DeviceClass
	if class != "" && !slices.ContainsFunc(n.Status.Pools, func(p v1alpha1.PoolStatus) bool { return p.DeviceClass == class }) {
		return fmt.Errorf("node %s has no drive of device class %s, which the volume requires", node, class)
	}
	if f.outside(v, node) {
		return fmt.Errorf("node %s is not in zone %s, which the volume requires", node, strings.Join(v.Spec.Zones, " or "))
	}
	return nil
}

// outside of the zones that the volume requires is a node.
func (f *fleet) outside(v *v1alpha1.NvmfVolume, node string) bool {
	return len(v.Spec.Zones) > 0 && !slices.Contains(v.Spec.Zones, f.labels[node][v.Spec.ZoneKey()])
}

// takers are the nodes that can take a replica of the volume.
func (f *fleet) takers(v *v1alpha1.NvmfVolume) []string {
	var names []string
	for _, n := range f.nodes {
		if f.takes(v, n.Name) == nil {
			names = append(names, n.Name)
		}
	}
	slices.Sort(names)
	return names
}

// notReady says why a node does not serve; empty: it does.
func notReady(n *v1alpha1.NvmfNode) string {
	if c := meta.FindStatusCondition(n.Status.Conditions, v1alpha1.ConditionAgentAlive); c != nil && c.Status == metav1.ConditionFalse {
		return c.Type + " is False: " + c.Message
	}
	c := meta.FindStatusCondition(n.Status.Conditions, v1alpha1.ConditionReady)
	switch {
	case c == nil:
		return "its agent has not reported yet"
	case c.Status != metav1.ConditionTrue:
		return c.Reason + ": " + c.Message
	}
	return ""
}
