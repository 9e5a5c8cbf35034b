// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	klabels "k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/version"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/claim"
	"github.com/weft-storage/weft/operator/internal/gather"
)

// What weft needs of a node: docs/platforms/kernel.md and docs/install.md.
var (
	neededKernel   = version.MustParseGeneric("5.12")
	comparedKernel = version.MustParseGeneric("5.15")
	safeKernel     = version.MustParseGeneric("6.7")
	neededKubelet  = version.MustParseGeneric("1.32")
)

const (
	enforceLabel   = "pod-security.kubernetes.io/enforce"
	privileged     = "privileged"
	platformsPages = "docs/platforms/"
	kernelPage     = "kernel.md"
	openShiftPage  = "openshift.md"
	kubeletPage    = "k3s-rke2.md"
)

func checkCommand(at *cluster, version string) *cobra.Command {
	namespace := defaultNamespace
	var (
		format   *output
		probing  *probeOptions
		selector string
	)
	cmd := &cobra.Command{
		Use:   "check [NODE...]",
		Short: "Check whether nodes are fit for weft, and show which platform pages apply",
		Long: `Check the cluster's Linux nodes, or those named: versions of kernel, kubelet and weft, architecture, kernel modules, hugepages, MTUs, clocks,
the kubelet's directory, and whether the namespace's pods are admitted. Show each node's platforms, with the page of docs/platforms for each.

It works before weft is installed. Once it is, more is known: agents and node plugins report what their nodes have and lack, and NvmfTargets say
what they need. What is not known yet is listed. It changes nothing.

With --probe, more is known before that, too: it runs a pod on each of these nodes, which takes the inventory that an agent would take, and
deletes it. The pods are unprivileged, tolerate all taints, and mount /lib/modules of the node, which they can only read. Namespaces that enforce
the Pod Security Standards restricted or baseline refuse them, so they run in a temporary namespace, unless you choose one.

Exit codes: 0 nothing is wrong; 1 error; 2 something is wrong; 3 nothing wrong was found, but something could not be looked at.`,
		Example: `  kubectl weft check
  kubectl weft check -o wide
  kubectl weft check storage-1 storage-2
  kubectl weft check --probe --selector storage=true --image registry.example/weft:0.1.0`,
		RunE: func(cmd *cobra.Command, args []string) error {
			which, err := nodesNamed(args, selector)
			if err == nil {
				err = probing.check(cmd)
			}
			if err != nil {
				return err
			}
			api, err := at.client()
			if err != nil {
				return err
			}
			s, err := surveyOf(cmd.Context(), api, version, namespace, which)
			if err != nil {
				return err
			}
			if probing.wanted {
				p, err := at.prober(probing, api, cmd)
				if err != nil {
					return err
				}
				if err := p.probe(cmd.Context(), s); err != nil {
					return err
				}
			}
			return s.show(cmd.OutOrStdout(), format)
		},
	}
	format, probing = outputFlag(cmd), probeFlags(cmd, version)
	cmd.Flags().StringVarP(&selector, "selector", "l", "", "check only nodes with these labels, such as storage=true")
	cmd.Flags().StringVarP(&namespace, "namespace", "n", namespace, "namespace that weft is, or will be, installed in")
	return cmd
}

// whichNodes are checked: those of these names, or with these labels; all if neither is set.
type whichNodes struct {
	names    []string
	selector klabels.Selector
}

func nodesNamed(names []string, selector string) (whichNodes, error) {
	which := whichNodes{names: names}
	if selector == "" {
		return which, nil
	}
	if len(names) > 0 {
		return which, errors.New("name nodes, or select them with --selector, but not both")
	}
	var err error
	if which.selector, err = klabels.Parse(selector); err != nil {
		return which, fmt.Errorf("--selector: %w", err)
	}
	return which, nil
}

func (w whichNodes) include(n *corev1.Node) bool {
	return chosen(w.names, n.Name) && (w.selector == nil || w.selector.Matches(klabels.Set(n.Labels)))
}

// survey is one look at what weft needs of a cluster.
type survey struct {
	// nodes that run Linux and are checked, of all that there are.
	nodes, all []corev1.Node
	// targets, and what weft has of each node, by node; nil as long as no agent has made it.
	targets []v1alpha1.NvmfTarget
	nvmf    map[string]*v1alpha1.NvmfNode
	// probed is what a pod found on each node on which one was to run, now; nil: nothing, and unread says why.
	probed map[string]*v1alpha1.Inventory
	// claims is what targets need of all nodes is decided from; nil when it could not all be read.
	claims []claim.Node
	// clocks of nodes, where their Leases show them.
	clocks map[string]clockReading
	// installed: weft's node plugin is there; kubeletDir is the one that it was told.
	installed  bool
	kubeletDir string
	// version of this program, and of what is installed; "" when that is not known.
	version, installedVersion string
	// namespace: its Pod Security label, and whether it exists.
	namespace, enforce string
	namespaced         bool
	// pluginHidden, namespaceHidden: it could not be read whether there is one.
	pluginHidden, namespaceHidden bool
	// rejected service accounts may not use the security context constraint that they need.
	rejected []string
	// unread is what could not be looked at, and why.
	unread []string
}

// finding is something to mend, or to look after.
type finding struct {
	// node that it is about; "" for the cluster.
	node string
	// wrong: weft cannot work there. Otherwise it is advice.
	wrong      bool
	says, page string
}

// surveyOf some nodes. What may not be read is noted, and never taken to be absent.
func surveyOf(ctx context.Context, api client.Client, version, namespace string, which whichNodes) (*survey, error) {
	s := &survey{version: version, namespace: namespace}
	if err := s.readNodes(ctx, api, which); err != nil {
		return nil, err
	}
	s.readWeft(ctx, api)
	s.readInstalled(ctx, api)
	s.readClocks(ctx, api)
	if s.installed && slices.ContainsFunc(s.nodes, func(n corev1.Node) bool { return is(&n, openShift) }) {
		s.readConstraints(ctx, api)
	}
	return s, nil
}

func (s *survey) readNodes(ctx context.Context, api client.Reader, which whichNodes) error {
	var all corev1.NodeList
	if err := api.List(ctx, &all); err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	s.all = all.Items
	for _, n := range all.Items {
		if cmp.Or(n.Status.NodeInfo.OperatingSystem, "linux") == "linux" && which.include(&n) {
			s.nodes = append(s.nodes, n)
		}
	}
	for _, name := range which.names {
		if !s.checks(name) {
			return fmt.Errorf("there is no Linux node %s; kubectl get nodes lists those that there are", name)
		}
	}
	switch {
	case len(s.nodes) > 0:
	case which.selector != nil:
		return fmt.Errorf("no Linux node has the labels %s", which.selector)
	default:
		return errors.New("the cluster has no Linux node")
	}
	return nil
}

// checks says whether a node is one of those that are checked.
func (s *survey) checks(node string) bool {
	return slices.ContainsFunc(s.nodes, func(n corev1.Node) bool { return n.Name == node })
}

// readWeft reads what agents report of their nodes, and what targets need of them.
func (s *survey) readWeft(ctx context.Context, api client.Reader) {
	var (
		targets   v1alpha1.NvmfTargetList
		nodes     v1alpha1.NvmfNodeList
		replicas  v1alpha1.NvmfReplicaList
		snapshots v1alpha1.NvmfSnapshotList
	)
	hidden := false
	for _, kind := range []struct {
		name string
		list client.ObjectList
	}{{"NvmfTargets", &targets}, {"NvmfNodes", &nodes}, {"NvmfReplicas", &replicas}, {"NvmfSnapshots", &snapshots}} {
		hidden = s.note(kind.name, api.List(ctx, kind.list)) || hidden
	}
	s.targets, s.nvmf = targets.Items, map[string]*v1alpha1.NvmfNode{}
	for i := range nodes.Items {
		s.nvmf[nodes.Items[i].Name] = &nodes.Items[i]
	}
	if !hidden {
		s.claims = gather.Claims(gather.Nodes(s.all, nodes.Items, replicas.Items, snapshots.Items))
	}
}

// readInstalled reads what there is of weft itself.
func (s *survey) readInstalled(ctx context.Context, api client.Reader) {
	var plugin appsv1.DaemonSet
	err := api.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: "weft-csi-node"}, &plugin)
	if err == nil {
		s.installed, s.kubeletDir = true, kubeletDirOf(&plugin)
	}
	s.pluginHidden = s.note("DaemonSet weft-csi-node", err)
	var driver storagev1.CSIDriver
	if err = api.Get(ctx, client.ObjectKey{Name: v1alpha1.DriverName}, &driver); err == nil {
		s.installedVersion = driver.Labels[v1alpha1.VersionLabel]
	}
	s.note("CSIDriver "+v1alpha1.DriverName, err)
	var space corev1.Namespace
	if err = api.Get(ctx, client.ObjectKey{Name: s.namespace}, &space); err == nil {
		s.namespaced, s.enforce = true, space.Labels[enforceLabel]
	}
	s.namespaceHidden = s.note("Namespace "+s.namespace, err)
}

// readConstraints asks the API server who may use OpenShift's security context constraints.
func (s *survey) readConstraints(ctx context.Context, api client.Client) {
	for _, c := range []struct{ account, constraint string }{
		{"weft-agent", privileged}, {"weft-csi-node", privileged}, {"weft-target", privileged},
		{"weft-operator", "nonroot-v2"}, {"weft-csi-controller", "nonroot-v2"},
	} {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User:   fmt.Sprintf("system:serviceaccount:%s:%s", s.namespace, c.account),
			Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + s.namespace, "system:authenticated"},
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: s.namespace, Verb: "use", Group: "security.openshift.io", Resource: "securitycontextconstraints", Name: c.constraint,
			},
		}}
		if err := api.Create(ctx, review); err != nil {
			s.unread = append(s.unread, fmt.Sprintf("whether ServiceAccount %s may use %s: %v", c.account, c.constraint, err))
		} else if !review.Status.Allowed {
			s.rejected = append(s.rejected, fmt.Sprintf("%s (%s)", c.account, c.constraint))
		}
	}
}

// note what could not be read, and say whether that is so. What is not found is not there: weft is not installed, or
// not in this namespace.
func (s *survey) note(what string, err error) bool {
	hidden := err != nil && !apierrors.IsNotFound(err)
	if hidden {
		s.unread = append(s.unread, fmt.Sprintf("%s: %v", what, err))
	}
	return hidden
}

// kubeletDirOf a node plugin: what it was told, or the default.
func kubeletDirOf(plugin *appsv1.DaemonSet) string {
	for _, c := range plugin.Spec.Template.Spec.Containers {
		for _, arg := range c.Args {
			if dir, ok := strings.CutPrefix(arg, "--kubelet-dir="); ok {
				return dir
			}
		}
	}
	return defaultKubeletDir
}

func is(n *corev1.Node, name string) bool {
	return slices.ContainsFunc(platformsOf(n), func(p platform) bool { return p.name == name })
}

// findings of all nodes, and of the cluster.
func (s *survey) findings() []finding {
	found := s.admission()
	for i := range s.nodes {
		n := &s.nodes[i]
		found = append(found, versions(n)...)
		found = append(found, s.kubeletDirectory(n)...)
		found = append(found, s.modules(n)...)
		found = append(found, s.reported(n)...)
		found = append(found, s.clock(n)...)
		for _, p := range platformsOf(n) {
			if p.advice != "" {
				found = append(found, finding{node: n.Name, says: p.advice, page: p.page})
			}
		}
	}
	return slices.Concat(found, s.hugepages(), s.mtus(), s.ownVersion())
}

// versions that weft needs, and the architectures that it is built for.
func versions(n *corev1.Node) []finding {
	var found []finding
	say := func(wrong bool, page, format string, args ...any) {
		found = append(found, finding{node: n.Name, wrong: wrong, says: fmt.Sprintf(format, args...), page: page})
	}
	info := n.Status.NodeInfo
	kernel, err := version.ParseGeneric(info.KernelVersion)
	switch {
	case err != nil:
		say(false, kernelPage, "its kernel's version, %q, cannot be read; weft needs Linux %s or newer", info.KernelVersion, comparedKernel)
	case kernel.LessThan(neededKernel):
		say(true, kernelPage, "its kernel is Linux %s; upgrade to %s or newer", info.KernelVersion, comparedKernel)
	case kernel.LessThan(comparedKernel):
		say(false, kernelPage, "its kernel is Linux %s; weft was not compared with kernels before %s", info.KernelVersion, comparedKernel)
	}
	if err == nil && kernel.LessThan(safeKernel) && !kernel.LessThan(neededKernel) {
		say(false, kernelPage, "its kernel is Linux %s; before %s, I/O over NVMe/TCP that times out can corrupt the host's memory", info.KernelVersion, safeKernel)
	}
	switch kubelet, err := version.ParseGeneric(info.KubeletVersion); {
	case err != nil:
		say(false, "", "its kubelet's version, %q, cannot be read; weft needs Kubernetes %s or newer", info.KubeletVersion, neededKubelet)
	case kubelet.LessThan(neededKubelet):
		say(true, "", "its kubelet is %s; upgrade to Kubernetes %s or newer", info.KubeletVersion, neededKubelet)
	}
	if info.Architecture != "amd64" && info.Architecture != "arm64" {
		say(true, "arm64.md", "its architecture is %q; weft is built for amd64 and arm64", info.Architecture)
	}
	return found
}

// kubeletDirectory compares the node plugin's with that of the node's distribution.
func (s *survey) kubeletDirectory(n *corev1.Node) []finding {
	for _, p := range platformsOf(n) {
		switch {
		case p.kubeletDir == "":
		case s.installed && s.kubeletDir != p.kubeletDir:
			return []finding{{node: n.Name, wrong: true, page: kubeletPage, says: fmt.Sprintf(
				"weft looks for the kubelet in %s, and by default %s has it in %s; unless you moved it, upgrade weft with --set kubeletDir=%s",
				s.kubeletDir, p.name, p.kubeletDir, p.kubeletDir)}}
		case !s.installed && !s.pluginHidden && p.kubeletDir != defaultKubeletDir:
			return []finding{{node: n.Name, page: kubeletPage, says: "install weft with --set kubeletDir=" + p.kubeletDir}}
		}
	}
	return nil
}

// modules that a node's agent, or a probe, did not find. Where neither has reported, nothing is known.
func (s *survey) modules(n *corev1.Node) []finding {
	inventory := s.inventory(n.Name)
	if inventory == nil {
		return nil
	}
	lacks := func(module string) bool { return !slices.Contains(inventory.Modules, module) }
	page, where := kernelPage, ""
	if is(n, ubuntu) {
		page, where = "ubuntu.md", "; on the node: apt-get install linux-modules-extra-$(uname -r)"
	}
	// Where a node plugin runs, it says of the next ones what it could not load. Not every version of agents looks for
	// them.
	unsaid := func(kind corev1.NodeConditionType) bool {
		return s.probed[n.Name] != nil && v1alpha1.NodeCondition(n, kind) == nil
	}
	var found []finding
	if unsaid(v1alpha1.ConditionMirrorsUnavailable) && lacks("dm_mod") {
		found = append(found, finding{node: n.Name, wrong: true, page: page, says: "its kernel has no dm_mod, so its pods cannot use volumes" + where})
	}
	if unsaid(v1alpha1.ConditionMirrorsUnavailable) && (lacks("md_mod") || lacks("raid1")) {
		found = append(found, finding{node: n.Name, page: page, says: "its kernel has no md_mod or no raid1, so its pods cannot use volumes with two replicas, and volumes that they use cannot move" + where})
	}
	if unsaid(v1alpha1.ConditionEncryptionUnavailable) && lacks("dm_crypt") {
		found = append(found, finding{node: n.Name, page: page, says: "its kernel has no dm_crypt, so its pods cannot use encrypted volumes" + where})
	}
	if lacks("nvme_tcp") {
		found = append(found, finding{node: n.Name, wrong: true, page: page, says: "its kernel has no nvme_tcp, so its pods cannot use volumes over TCP" + where})
	}
	if lacks("nvmet") || lacks("nvmet_tcp") {
		found = append(found, finding{node: n.Name, page: page, says: "its kernel has no nvmet_tcp, so it cannot serve over TCP with engine: Nvmet" + where})
	}
	if len(inventory.RDMADevices) > 0 && lacks("nvme_rdma") {
		found = append(found, finding{node: n.Name, page: page, says: "it has an RDMA device, but no nvme_rdma, so its pods cannot use volumes over RDMA" + where})
	}
	return found
}

// admission of weft's pods, some of which are privileged.
func (s *survey) admission() []finding {
	var found []finding
	label := fmt.Sprintf("kubectl label namespace %s --overwrite %s=privileged", s.namespace, enforceLabel)
	onTalos := slices.ContainsFunc(s.nodes, func(n corev1.Node) bool { return is(&n, talos) })
	switch {
	case s.namespaced && s.enforce != "" && s.enforce != privileged:
		found = append(found, finding{wrong: true, says: fmt.Sprintf("namespace %s does not admit privileged pods (it enforces %s); run %s", s.namespace, s.enforce, label)})
	case s.namespaced && s.enforce == "" && onTalos:
		found = append(found, finding{wrong: true, page: "talos.md", says: fmt.Sprintf("Talos Linux enforces the baseline Pod Security Standard by default; run %s", label)})
	case !s.namespaced && !s.namespaceHidden && onTalos:
		found = append(found, finding{page: "talos.md", says: fmt.Sprintf("Talos Linux enforces the baseline Pod Security Standard by default; create namespace %s before you install weft, and run %s", s.namespace, label)})
	}
	if len(s.rejected) > 0 {
		found = append(found, finding{wrong: true, page: openShiftPage, says: fmt.Sprintf(
			"these service accounts may not use the security context constraint that they need: %s; upgrade weft with --set openshift.securityContextConstraints=true", strings.Join(s.rejected, ", "))})
	}
	if !s.installed && !s.pluginHidden && slices.ContainsFunc(s.nodes, func(n corev1.Node) bool { return is(&n, openShift) }) {
		found = append(found, finding{page: openShiftPage, says: "install weft with --set openshift.securityContextConstraints=true"})
	}
	return found
}
