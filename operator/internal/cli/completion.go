// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// completionTimeout of one look at the cluster: a person waits for it at the prompt.
const completionTimeout = 3 * time.Second

// completer reads from the cluster what arguments and flags can be.
type completer struct {
	client    func() (client.Client, error)
	namespace func(given string) (string, error)
	// contexts of the kubeconfig.
	contexts func() ([]string, error)
}

// candidates for the next argument, after these.
type candidates func(ctx context.Context, api client.Reader, cmd *cobra.Command, args []string) ([]string, error)

// addCompletions to the commands whose arguments are names of the cluster.
func (c completer) addCompletions(root *cobra.Command) {
	node := once(listed[v1alpha1.NvmfNodeList])
	for name, of := range map[string]candidates{
		"status": once(targetsAndNodes), "check": listed[corev1.NodeList],
		"cordon": listed[v1alpha1.NvmfNodeList], "uncordon": listed[v1alpha1.NvmfNodeList], "drain": node,
		"volumes": listed[v1alpha1.NvmfNodeList], "pools": listed[v1alpha1.NvmfNodeList], "drives": listed[v1alpha1.NvmfNodeList], "snapshots": listed[v1alpha1.NvmfNodeList],
		"retire": nodeAndDrive, "drop": nodeAndDrive, "rebalance": once(listed[v1alpha1.NvmfTargetList]),
		"volume": once(c.allClaims), "move": once(c.claims), "recover": once(c.recoverable), "rotate": once(c.claims),
		"delete":    kindAndName,
		"top nodes": listed[v1alpha1.NvmfNodeList], "top targets": listed[v1alpha1.NvmfTargetList], "top volumes": c.claims,
	} {
		if cmd, _, err := root.Find(strings.Fields(name)); err == nil {
			cmd.ValidArgsFunction = c.complete(of)
		}
	}
	for name, flags := range map[string]map[string]candidates{
		"check": {"namespace": listed[corev1.NamespaceList], "probe-namespace": listed[corev1.NamespaceList]}, "report": {"namespace": weftNamespaces},
		"volumes": {"namespace": c.namespaces}, "snapshots": {"namespace": c.namespaces},
		"top nodes": {"weft-namespace": weftNamespaces}, "top targets": {"weft-namespace": weftNamespaces},
		"move":        {"to": listed[v1alpha1.NvmfNodeList], "from": listed[v1alpha1.NvmfNodeList], "namespace": c.namespaces},
		"rotate":      {"target": listed[v1alpha1.NvmfTargetList], "namespace": c.namespaces},
		"top volumes": {"node": listed[corev1.NodeList], "namespace": c.namespaces, "weft-namespace": weftNamespaces},
		"plan":        {"node": listed[v1alpha1.NvmfNodeList]}, "volume": {"namespace": c.namespaces}, "recover": {"namespace": c.namespaces, "current": c.replicas},
	} {
		cmd, _, err := root.Find(strings.Fields(name))
		if err != nil {
			continue
		}
		for flag, of := range flags {
			// It fails only for a flag that the command does not have, or that has a completion already.
			_ = cmd.RegisterFlagCompletionFunc(flag, c.complete(of))
		}
	}
	_ = root.RegisterFlagCompletionFunc("context", func(_ *cobra.Command, _ []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
		names, err := c.contexts()
		return fitting(names, err, word, nil)
	})
}

// complete a word with those candidates that begin with it and were not given yet. A cluster that cannot be read has
// none: the prompt is no place for errors.
func (c completer) complete(of candidates) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
		api, err := c.client()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
		defer cancel()
		names, err := of(ctx, api, cmd, args)
		return fitting(names, err, word, args)
	}
}

// fitting are the names that begin with a word and were not given yet, in order.
func fitting(names []string, err error, word string, given []string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, word) || slices.Contains(given, name) })
	slices.Sort(names)
	return slices.Compact(names), cobra.ShellCompDirectiveNoFileComp
}

// once: only the first argument has candidates.
func once(of candidates) candidates {
	return func(ctx context.Context, api client.Reader, cmd *cobra.Command, args []string) ([]string, error) {
		if len(args) > 0 {
			return nil, nil
		}
		return of(ctx, api, cmd, args)
	}
}

// listed are the names of all objects of a kind, by the type of its list.
func listed[L any, P interface {
	*L
	client.ObjectList
}](ctx context.Context, api client.Reader, _ *cobra.Command, _ []string) ([]string, error) {
	var all L
	if err := api.List(ctx, P(&all)); err != nil {
		return nil, err
	}
	return namesIn(P(&all))
}

func targetsAndNodes(ctx context.Context, api client.Reader, cmd *cobra.Command, args []string) ([]string, error) {
	targets, err := listed[v1alpha1.NvmfTargetList](ctx, api, cmd, args)
	if err != nil {
		return nil, err
	}
	nodes, err := listed[v1alpha1.NvmfNodeList](ctx, api, cmd, args)
	return append(targets, nodes...), err
}

// nodeAndDrive: a node, and then one of its planned drives or pools.
func nodeAndDrive(ctx context.Context, api client.Reader, cmd *cobra.Command, args []string) ([]string, error) {
	if len(args) != 1 {
		return once(listed[v1alpha1.NvmfNodeList])(ctx, api, cmd, args)
	}
	n := &v1alpha1.NvmfNode{}
	if err := api.Get(ctx, client.ObjectKey{Name: args[0]}, n); err != nil {
		return nil, err
	}
	var ids []string
	for _, p := range n.Status.Pools {
		ids = append(ids, p.Device)
	}
	if n.Spec.Plan != nil {
		for _, d := range n.Spec.Plan.Drives {
			ids = append(ids, d.ID)
		}
	}
	return ids, nil
}

// kindAndName of what kubectl weft delete deletes.
func kindAndName(ctx context.Context, api client.Reader, cmd *cobra.Command, args []string) ([]string, error) {
	switch {
	case len(args) == 0:
		return []string{"volume", "snapshot"}, nil
	case len(args) == 1 && args[0] == "volume":
		return listed[v1alpha1.NvmfVolumeList](ctx, api, cmd, args)
	case len(args) == 1 && args[0] == "snapshot":
		return listed[v1alpha1.NvmfSnapshotList](ctx, api, cmd, args)
	}
	return nil, nil
}

// claims of weft's volumes in the namespace that the command is about.
func (c completer) claims(ctx context.Context, api client.Reader, cmd *cobra.Command, _ []string) ([]string, error) {
	namespace, err := c.namespaceFor(cmd)
	if err != nil {
		return nil, err
	}
	return boundClaims(ctx, api, func(ref *corev1.ObjectReference) (string, bool) { return ref.Name, ref.Namespace == namespace })
}

// namespaceFor is the namespace that a command is about.
func (c completer) namespaceFor(cmd *cobra.Command) (string, error) {
	given, err := cmd.Flags().GetString("namespace")
	if err != nil {
		return "", err
	}
	return c.namespace(given)
}

// allClaims are those of weft's volumes, and the Pending ones of its StorageClasses. Who may not list the latter gets
// the former.
func (c completer) allClaims(ctx context.Context, api client.Reader, cmd *cobra.Command, args []string) ([]string, error) {
	words, err := c.claims(ctx, api, cmd, args)
	if err != nil {
		return nil, err
	}
	namespace, err := c.namespaceFor(cmd)
	if err != nil {
		return nil, err
	}
	if pending, err := pendingClaims(ctx, api, namespace); err == nil {
		words = append(words, pending...)
	}
	return words, nil
}

// pendingClaims of weft's StorageClasses in a namespace.
func pendingClaims(ctx context.Context, api client.Reader, namespace string) ([]string, error) {
	var classes storagev1.StorageClassList
	var all corev1.PersistentVolumeClaimList
	if err := errors.Join(api.List(ctx, &classes), api.List(ctx, &all, client.InNamespace(namespace))); err != nil {
		return nil, err
	}
	var words []string
	for _, claim := range all.Items {
		if class := classOf(&claim, classes.Items); claim.Status.Phase == corev1.ClaimPending && class != nil && class.Provisioner == v1alpha1.DriverName {
			words = append(words, claim.Name)
		}
	}
	return words, nil
}

// recoverable are claims of weft's volumes. With --lost, they are the volumes that can be recovered: by claim if that
// is in the namespace, else nv/NAME.
func (c completer) recoverable(ctx context.Context, api client.Reader, cmd *cobra.Command, args []string) ([]string, error) {
	if lost, err := cmd.Flags().GetBool("lost"); err != nil || !lost {
		return c.claims(ctx, api, cmd, args)
	}
	namespace, err := c.namespaceFor(cmd)
	if err != nil {
		return nil, err
	}
	f, err := lookAtFleet(ctx, api, time.Now())
	if err != nil {
		return nil, err
	}
	claims, err := claimsByName(ctx, api)
	if err != nil {
		return nil, err
	}
	var words []string
	for _, v := range f.lost(claims).Volumes {
		of, name, _ := strings.Cut(v.Claim, "/")
		switch {
		case len(v.Refused) > 0:
		case name != "" && of == namespace:
			words = append(words, name)
		default:
			words = append(words, volumePrefix+v.Name)
		}
	}
	return words, nil
}

// replicas of the volume in the argument, and their nodes.
func (c completer) replicas(ctx context.Context, api client.Reader, cmd *cobra.Command, args []string) ([]string, error) {
	if len(args) == 0 {
		return nil, nil
	}
	namespace, err := c.namespaceFor(cmd)
	if err != nil {
		return nil, err
	}
	name, err := resolve(ctx, api, namespace, args[0])
	if err != nil {
		return nil, err
	}
	var v v1alpha1.NvmfVolume
	if err := api.Get(ctx, client.ObjectKey{Name: name}, &v); err != nil {
		return nil, err
	}
	var words []string
	for _, m := range v.Spec.Members {
		words = append(words, m.Name, m.Node)
	}
	return words, nil
}

// weftNamespaces are those with pods of weft itself.
func weftNamespaces(ctx context.Context, api client.Reader, _ *cobra.Command, _ []string) ([]string, error) {
	var all corev1.PodList
	if err := api.List(ctx, &all, client.MatchingLabels{"app.kubernetes.io/name": "weft"}); err != nil {
		return nil, err
	}
	names := make([]string, len(all.Items))
	for i := range all.Items {
		names[i] = all.Items[i].Namespace
	}
	return names, nil
}

// namespaces with claims of weft's volumes.
func (c completer) namespaces(ctx context.Context, api client.Reader, _ *cobra.Command, _ []string) ([]string, error) {
	return boundClaims(ctx, api, func(ref *corev1.ObjectReference) (string, bool) { return ref.Namespace, true })
}

// boundClaims of weft's PersistentVolumes, each as a word.
func boundClaims(ctx context.Context, api client.Reader, word func(*corev1.ObjectReference) (string, bool)) ([]string, error) {
	var all corev1.PersistentVolumeList
	if err := api.List(ctx, &all); err != nil {
		return nil, err
	}
	var words []string
	for _, pv := range all.Items {
		if pv.Spec.CSI == nil || pv.Spec.CSI.Driver != v1alpha1.DriverName || pv.Spec.ClaimRef == nil {
			continue
		}
		if w, ok := word(pv.Spec.ClaimRef); ok {
			words = append(words, w)
		}
	}
	return words, nil
}

// namesIn a list.
func namesIn(list client.ObjectList) ([]string, error) {
	items, err := meta.ExtractList(list)
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(items))
	for _, item := range items {
		if o, err := meta.Accessor(item); err == nil {
			names = append(names, o.GetName())
		}
	}
	return names, nil
}
