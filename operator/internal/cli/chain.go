// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// maxEvents that are shown of a volume, the newest.
const maxEvents = 10

func volumeCommand(at *cluster, now clock.PassiveClock) *cobra.Command {
	var namespace, weftNamespace string
	cmd := &cobra.Command{
		Use:   "volume CLAIM",
		Short: "Show everything about a volume, from its claim to its drives and pods",
		Long: `Show everything about a volume: its claim, its PersistentVolume and NvmfVolume, where each replica is stored and whether it has all data,
how it is served, which node uses it as which device for which pods, recent Events, what is wrong, and what to do.

Instead of CLAIM, specify whatever you have of the volume: NAMESPACE/CLAIM, the name of its PersistentVolume, NvmfVolume or an NvmfReplica, the NQN
of a subsystem or host, an NGUID, or another UUID of it, alone or in the path of a device. To make clear what you mean, write pvc/NAME, pv/NAME,
nv/NAME or nr/NAME. What no object records is shown as unknown.

The device is what the node plugin of the node names in its metrics, which the command reads through the API server's port-forward.

Exit codes:
  0  no problems
  1  error
  2  there are problems`,
		Example: `  kubectl weft volume data -n databases
  kubectl weft volume nqn.2026-11.storage.weft:pvc-1-0:6a5d0d4e-2b3f-4f0f-9c63-d7c1f37e1f10
  kubectl weft volume /dev/disk/by-id/nvme-uuid.9d1f8b8e-2c55-4c7f-a6de-5bb2f2f0a4f1 -o yaml`,
		Args: takes(1),
	}
	format := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		api, err := at.client()
		if err != nil {
			return err
		}
		if namespace, err = at.namespaceOf(namespace); err != nil {
			return err
		}
		c, err := follow(cmd.Context(), api, now.Now(), namespace, args[0])
		if err != nil {
			return err
		}
		ask, err := at.asker(api, weftNamespace)
		if err != nil {
			return err
		}
		c.readDevices(cmd.Context(), ask.ask)
		return c.report().show(cmd.OutOrStdout(), format)
	}
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "namespace of the claim (default: the namespace of the kubeconfig context)")
	cmd.Flags().StringVar(&weftNamespace, "weft-namespace", defaultNamespace, "namespace that weft is installed in")
	return cmd
}

// addKindsOfUsers of volumes, and of what tells of them.
func addKindsOfUsers(mapper *meta.DefaultRESTMapper) {
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Pod"), meta.RESTScopeNamespace)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Event"), meta.RESTScopeNamespace)
	mapper.Add(storagev1.SchemeGroupVersion.WithKind("VolumeAttachment"), meta.RESTScopeRoot)
	mapper.Add(snapshotContents, meta.RESTScopeRoot)
}

// namespaceOf a claim: as given, or that of the kubeconfig's context.
func (c *cluster) namespaceOf(given string) (string, error) {
	if given != "" {
		return given, nil
	}
	namespace, _, err := c.config().Namespace()
	if err != nil {
		return "", fmt.Errorf("read the kubeconfig: %w", err)
	}
	return namespace, nil
}

// chain is what there is between a claim and its data, gathered from its middle to both ends. What is nil does not
// exist, or was not found.
type chain struct {
	*fleet
	note string
	// claimKey is set when the volume has, or had, a claim, also if that does not exist.
	claimKey client.ObjectKey
	claim    *corev1.PersistentVolumeClaim
	pv       *corev1.PersistentVolume
	v        *v1alpha1.NvmfVolume
	// members are the replicas of the volume in the order of spec.members, then those that it does not list.
	members []v1alpha1.VolumeMember
	// machines are the Kubernetes Nodes that store or use the volume.
	machines map[string]*corev1.Node
	// attached are the VolumeAttachments of the PersistentVolume.
	attached []storagev1.VolumeAttachment
	pods     []corev1.Pod
	events   []corev1.Event
	// devices of the volume, by the nodes that use it.
	devices map[string]namedDevice
	// classes of the cluster; nil if the claim has a volume, or they could not be read.
	classes *storagev1.StorageClassList
}

// follow the chain of what an argument names.
func follow(ctx context.Context, api client.Reader, now time.Time, namespace, arg string) (*chain, error) {
	f, err := lookAtFleet(ctx, api, now)
	if err != nil {
		return nil, err
	}
	of, err := f.find(ctx, api, namespace, arg)
	if err != nil {
		return nil, err
	}
	c := &chain{fleet: f, note: of.note, machines: map[string]*corev1.Node{}}
	if err := c.link(ctx, api, of); err != nil {
		return nil, err
	}
	c.listMembers()
	c.readClasses(ctx, api)
	c.readUsers(ctx, api)
	c.readMachines(ctx, api)
	c.readEvents(ctx, api)
	return c, nil
}

// link claim, PersistentVolume and NvmfVolume, from the one that was named.
func (c *chain) link(ctx context.Context, api client.Reader, of named) error {
	switch {
	case of.nv != "":
		if c.v = c.volume(of.nv); c.v == nil {
			return fmt.Errorf("NvmfVolume %s not found", of.nv)
		}
		c.pv = c.persistent[c.v.Name]
	case of.persistent != "":
		if err := c.readPersistent(ctx, api, of.persistent); err != nil {
			return err
		}
		if c.pv == nil {
			return fmt.Errorf("PersistentVolume %s not found", of.persistent)
		}
	default:
		c.claimKey = of.claim
	}
	if c.pv != nil && c.pv.Spec.ClaimRef != nil {
		c.claimKey = client.ObjectKey{Namespace: c.pv.Spec.ClaimRef.Namespace, Name: c.pv.Spec.ClaimRef.Name}
	}
	if c.v != nil && c.claimKey.Name == "" {
		c.claimKey = client.ObjectKey{Namespace: c.v.Annotations[v1alpha1.PVCNamespaceKey], Name: c.v.Annotations[v1alpha1.PVCNameKey]}
	}
	if err := c.readClaim(ctx, api, of.claim.Name != ""); err != nil {
		return err
	}
	if c.v == nil && c.pv != nil {
		c.v = c.volume(c.pv.Spec.CSI.VolumeHandle)
	}
	if c.v == nil && c.pv == nil { // of a claim that is not bound yet
		c.v = find(c.volumes, func(v *v1alpha1.NvmfVolume) bool {
			return v.Annotations[v1alpha1.PVCNamespaceKey] == c.claimKey.Namespace && v.Annotations[v1alpha1.PVCNameKey] == c.claimKey.Name
		})
	}
	return nil
}

// readClaim of the chain, and its PersistentVolume. One that was asked for must exist.
func (c *chain) readClaim(ctx context.Context, api client.Reader, required bool) error {
	if c.claimKey.Name == "" {
		return nil
	}
	claim := &corev1.PersistentVolumeClaim{}
	err := api.Get(ctx, c.claimKey, claim)
	switch {
	case apierrors.IsNotFound(err) && !required:
		return nil
	case apierrors.IsNotFound(err):
		return fmt.Errorf("PersistentVolumeClaim %s not found in namespace %s; set its namespace with -n", c.claimKey.Name, c.claimKey.Namespace)
	case err != nil && required:
		return fmt.Errorf("read PersistentVolumeClaim %s: %w", c.claimKey, err)
	case err != nil:
		c.unread = append(c.unread, fmt.Sprintf("PersistentVolumeClaim %s: %v", c.claimKey, err))
		return nil
	}
	c.claim = claim
	if c.pv == nil && c.v == nil && claim.Spec.VolumeName != "" {
		return c.readPersistent(ctx, api, claim.Spec.VolumeName)
	}
	return nil
}

// readPersistent reads a PersistentVolume, which must be weft's. One that does not exist stays nil.
func (c *chain) readPersistent(ctx context.Context, api client.Reader, name string) error {
	pv := &corev1.PersistentVolume{}
	err := api.Get(ctx, client.ObjectKey{Name: name}, pv)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read PersistentVolume %s: %w", name, err)
	}
	if pv.Spec.CSI == nil || pv.Spec.CSI.Driver != v1alpha1.DriverName {
		return fmt.Errorf("PersistentVolume %s is not a volume of weft: it has another driver than %s", pv.Name, v1alpha1.DriverName)
	}
	c.pv = pv
	return nil
}

// listMembers of the volume, and its replicas that it does not list.
func (c *chain) listMembers() {
	if c.v == nil {
		return
	}
	c.members = slices.Clone(c.v.Spec.Members)
	for i := range c.replicas {
		if r := &c.replicas[i]; r.Spec.Volume.Name == c.v.Name && memberOf(c.v, r.Name) == nil {
			c.members = append(c.members, v1alpha1.VolumeMember{Name: r.Name, UUID: r.Spec.UUID, Node: r.Spec.Node})
		}
	}
}

// readClasses that the claim may be of, as long as it has no volume.
func (c *chain) readClasses(ctx context.Context, api client.Reader) {
	if c.claim == nil || c.claim.Status.Phase == corev1.ClaimBound {
		return
	}
	var classes storagev1.StorageClassList
	if c.read(ctx, api, "StorageClasses", &classes) {
		c.classes = &classes
	}
}

// readUsers of the volume: VolumeAttachments, and pods that name the claim.
func (c *chain) readUsers(ctx context.Context, api client.Reader) {
	if c.pv != nil {
		var all storagev1.VolumeAttachmentList
		c.read(ctx, api, "VolumeAttachments", &all)
		for _, a := range all.Items {
			if name := a.Spec.Source.PersistentVolumeName; name != nil && *name == c.pv.Name {
				c.attached = append(c.attached, a)
			}
		}
	}
	if c.claimKey.Name == "" {
		return
	}
	var pods corev1.PodList
	c.read(ctx, api, "pods", &pods, client.InNamespace(c.claimKey.Namespace))
	for _, pod := range pods.Items {
		if usesClaim(&pod, c.claimKey.Name) {
			c.pods = append(c.pods, pod)
		}
	}
}

// usesClaim tells whether one of the pod's volumes is the claim, which a generic ephemeral volume has under a name of
// its own.
func usesClaim(pod *corev1.Pod, claim string) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim || v.Ephemeral != nil && pod.Name+"-"+v.Name == claim
	})
}

// readMachines that store or use the volume. One that does not exist stays out.
func (c *chain) readMachines(ctx context.Context, api client.Reader) {
	var names []string
	for _, m := range c.members {
		names = append(names, m.Node)
	}
	if c.v != nil {
		for _, h := range c.v.Spec.Attachments {
			names = append(names, h.Node)
		}
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		node := &corev1.Node{}
		switch err := api.Get(ctx, client.ObjectKey{Name: name}, node); {
		case err == nil:
			c.machines[name] = node
		case !apierrors.IsNotFound(err):
			c.unread = append(c.unread, fmt.Sprintf("Node %s: %v", name, err))
		}
	}
}

// eventsOf selects Events by the UID of what they are about.
const eventsOf = "involvedObject.uid"

// readEvents about all objects of the chain.
func (c *chain) readEvents(ctx context.Context, api client.Reader) {
	var about []types.UID
	if c.claim != nil {
		about = append(about, c.claim.UID)
	}
	if c.pv != nil {
		about = append(about, c.pv.UID)
	}
	if c.v != nil {
		about = append(about, c.v.UID)
	}
	for _, m := range c.members {
		if r := c.replica(m.Name); r != nil {
			about = append(about, r.UID)
		}
	}
	for _, pod := range c.pods {
		about = append(about, pod.UID)
	}
	for _, id := range slices.DeleteFunc(about, func(id types.UID) bool { return id == "" }) {
		var events corev1.EventList
		if !c.read(ctx, api, "Events", &events, client.MatchingFields{eventsOf: string(id)}) {
			break
		}
		c.events = append(c.events, events.Items...)
	}
	c.events = telling(c.events)
}

// telling are the Events that tell most: Warnings, then others, each the newest last.
func telling(events []corev1.Event) []corev1.Event {
	byTime(events)
	var warnings, others []corev1.Event
	for _, e := range events {
		switch {
		case noise(&e):
		case e.Type == corev1.EventTypeWarning:
			warnings = append(warnings, e)
		default:
			others = append(others, e)
		}
	}
	warnings = warnings[max(0, len(warnings)-maxEvents):]
	return append(warnings, others[max(0, len(others)-(maxEvents-len(warnings))):]...)
}

// byTime sorts Events, the newest last.
func byTime(events []corev1.Event) {
	slices.SortStableFunc(events, func(a, b corev1.Event) int { return lastSeen(&a).Compare(lastSeen(&b)) })
}

// noise is an Event that says nothing about volumes, and comes again and again.
func noise(e *corev1.Event) bool { return e.Reason == "MissingClusterDNS" }

// lastSeen is when an Event happened last.
func lastSeen(e *corev1.Event) time.Time {
	switch {
	case e.Series != nil && !e.Series.LastObservedTime.IsZero():
		return e.Series.LastObservedTime.Time
	case !e.LastTimestamp.IsZero():
		return e.LastTimestamp.Time
	case !e.EventTime.IsZero():
		return e.EventTime.Time
	}
	return e.CreationTimestamp.Time
}
