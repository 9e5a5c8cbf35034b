// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/internal/text"
)

const (
	// ownRepository of the image that the chart runs by default, whose tag is the version.
	ownRepository = "ghcr.io/weft-storage/weft"
	// probeTimeout by default: a node may have to pull the image, of about 100 MB.
	probeTimeout = 2 * time.Minute
	// outlives is how much longer than that a pod may run, so that it is still there to say why it did not.
	outlives = time.Minute
	// lookAtPodsEvery so often.
	lookAtPodsEvery = time.Second
	// changeTimeout of a request that makes or deletes something.
	changeTimeout = 30 * time.Second
	// unversioned is the version of a program that was built without one.
	unversioned = "development"
	// probeName of the pods and of their temporary namespace, which have more behind it.
	probeName = "weft-check"
	// whatProbesTell of a node.
	whatProbesTell = "kernel modules, MTUs, and the hugepages of the kernel"
)

// probeOptions are the flags of a probe.
type probeOptions struct {
	wanted            bool
	image, pullPolicy string
	// namespace of the pods; empty: one that is made for them.
	namespace string
	timeout   time.Duration
}

// probeFlags of a command. Only with the first, the others have a meaning.
func probeFlags(cmd *cobra.Command, version string) *probeOptions {
	o := &probeOptions{}
	image := ownRepository + ":" + version
	if version == unversioned {
		image = ""
	}
	flags := cmd.Flags()
	flags.BoolVar(&o.wanted, "probe", false, "run an unprivileged pod on each of these nodes, for a moment, to find out what no agent reports yet")
	flags.StringVar(&o.image, "image", image, "image of weft for --probe")
	flags.StringVar(&o.pullPolicy, "image-pull-policy", string(corev1.PullIfNotPresent), "when --probe pulls the image: Always, IfNotPresent or Never")
	flags.StringVar(&o.namespace, "probe-namespace", "", "existing namespace for the pods of --probe, which must admit hostPath volumes (default: a temporary one)")
	flags.DurationVar(&o.timeout, "timeout", probeTimeout, "how long --probe waits for the pods, at most 1h")
	pulls := []string{string(corev1.PullAlways), string(corev1.PullIfNotPresent), string(corev1.PullNever)}
	_ = cmd.RegisterFlagCompletionFunc("image-pull-policy", cobra.FixedCompletions(pulls, cobra.ShellCompDirectiveNoFileComp)) // the flag exists
	return o
}

func (o *probeOptions) check(cmd *cobra.Command) error {
	for _, flag := range []string{"image", "image-pull-policy", "probe-namespace", "timeout"} {
		if cmd.Flags().Changed(flag) && !o.wanted {
			return fmt.Errorf("--%s is about the pods of --probe; set --probe too", flag)
		}
	}
	switch {
	case !o.wanted:
	case o.image == "":
		return errors.New("this kubectl weft has no version, and so names no image; set --image")
	case o.timeout <= 0 || o.timeout > time.Hour:
		return fmt.Errorf("--timeout is %s; must be more than 0 and at most 1h", o.timeout)
	}
	return nil
}

// prober runs a pod on each of some nodes, and deletes all of them.
type prober struct {
	*probeOptions
	api client.Client
	// logs of a pod that ended.
	logs func(ctx context.Context, pod *corev1.Pod) (string, error)
	// run is what its pods have in common, and no others.
	run   string
	now   func() time.Time
	pause func(ctx context.Context) error
	// bars of how many nodes have answered; on a terminal only.
	bars *screen

	// temporary: the namespace was made for the pods.
	temporary bool
	// has and lacks, by node: what was found there, or why nothing was.
	has   map[string]*v1alpha1.Inventory
	lacks map[string]string
}

func newProber(o *probeOptions, api client.Client, bars io.Writer) *prober {
	return &prober{probeOptions: o, api: api, run: utilrand.String(5), now: time.Now, bars: newScreen(bars, io.Discard),
		pause: func(ctx context.Context) error { return pauseFor(ctx, lookAtPodsEvery) },
		has:   map[string]*v1alpha1.Inventory{}, lacks: map[string]string{}}
}

// prober of this cluster.
func (c *cluster) prober(o *probeOptions, api client.Client, cmd *cobra.Command) (*prober, error) {
	config, err := c.config().ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	typed, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	p := newProber(o, api, cmd.ErrOrStderr())
	p.logs = func(ctx context.Context, pod *corev1.Pod) (string, error) {
		log, err := typed.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{}).DoRaw(ctx)
		return string(log), err
	}
	return p, nil
}

// probe the nodes of a survey, and add to it what they have. Whatever happens, nothing of it stays in the cluster.
func (p *prober) probe(ctx context.Context, s *survey) (err error) {
	defer func() { err = errors.Join(err, p.bars.bars(nil), p.undo(ctx)) }()
	if err := p.makeNamespace(ctx); err != nil {
		return err
	}
	var starting errgroup.Group
	starting.SetLimit(askedAtOnce)
	failed := make([]string, len(s.nodes))
	for i := range s.nodes {
		starting.Go(func() error {
			failed[i] = p.start(ctx, &s.nodes[i])
			return nil
		})
	}
	_ = starting.Wait() // every failure is kept beside its node
	for i, why := range failed {
		if why != "" {
			p.lacks[s.nodes[i].Name] = why
		}
	}
	if err := p.wait(ctx, s.nodes); err != nil {
		return err
	}
	s.probed = p.has
	nodes := map[string][]string{}
	for i := range s.nodes {
		if why, lacks := p.lacks[s.nodes[i].Name]; lacks {
			nodes[why], s.probed[s.nodes[i].Name] = append(nodes[why], s.nodes[i].Name), nil
		}
	}
	for _, why := range slices.Sorted(maps.Keys(nodes)) {
		s.unread = append(s.unread, fmt.Sprintf("%s: %s: %s", text.Few(nodes[why], maxNamed, ", "), whatProbesTell, why))
	}
	return nil
}

// lasting is a context for a request that is finished even if the person interrupts the command: what is asked for must
// be there, or not, when it is deleted.
func lasting(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), changeTimeout)
}

// makeNamespace for the pods, unless the person chose one.
func (p *prober) makeNamespace(ctx context.Context) error {
	if p.namespace != "" {
		return nil
	}
	ctx, cancel := lasting(ctx)
	defer cancel()
	p.namespace, p.temporary = probeName+"-"+p.run, true
	space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: p.namespace, Labels: map[string]string{
		"app.kubernetes.io/name": probeName, enforceLabel: privileged, "pod-security.kubernetes.io/audit": privileged, "pod-security.kubernetes.io/warn": privileged}}}
	if err := p.api.Create(ctx, space); err != nil {
		if apierrors.IsForbidden(err) { // so there is nothing to delete
			p.namespace = ""
		}
		return fmt.Errorf("create a temporary namespace: %w; to use an existing one, set --probe-namespace", err)
	}
	// The API server admits no pod before its service account exists, which a controller makes soon.
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: "default"}}
	if err := p.api.Create(ctx, account); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create the service account of the temporary namespace: %w", err)
	}
	return nil
}

// mine are the labels of the pods of this run.
func (p *prober) mine() client.MatchingLabels {
	return client.MatchingLabels{"app.kubernetes.io/name": probeName, "app.kubernetes.io/instance": p.run}
}

// start a pod on a node, or say why not.
func (p *prober) start(ctx context.Context, n *corev1.Node) (why string) {
	if ctx.Err() != nil {
		return ctx.Err().Error()
	}
	if ready := v1alpha1.NodeCondition(n, corev1.NodeReady); ready != nil && ready.Status != corev1.ConditionTrue {
		return fmt.Sprintf("the Kubernetes Node is not Ready: %s: %s", ready.Reason, oneLine(ready.Message))
	}
	ctx, cancel := lasting(ctx)
	defer cancel()
	err := p.api.Create(ctx, p.pod(n.Name))
	if err == nil {
		return ""
	}
	_, why, is := strings.Cut(err.Error(), " is forbidden: ") // before that is the name of the pod
	if !is {
		why = err.Error()
	}
	why = fmt.Sprintf("namespace %s does not admit its pod: %s", p.namespace, oneLine(why))
	if strings.Contains(why, "PodSecurity") {
		why += fmt.Sprintf("; set --probe-namespace to one with the label %s=%s, or leave the flag out, so that a temporary one is made", enforceLabel, privileged)
	}
	return why
}

// pod that takes the inventory of a node. It is bound to the node without the scheduler, so that it runs where no other
// pods may. It has no rights, and sees of the node its network, what all pods see in /sys and /proc, and /lib/modules.
func (p *prober) pod(node string) *corev1.Pod {
	modules := corev1.HostPathDirectory
	small := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("32Mi")}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, GenerateName: probeName + "-", Labels: p.mine()},
		Spec: corev1.PodSpec{
			NodeName: node, HostNetwork: true, DNSPolicy: corev1.DNSDefault, RestartPolicy: corev1.RestartPolicyNever,
			ActiveDeadlineSeconds: new(int64((p.timeout + outlives) / time.Second)), TerminationGracePeriodSeconds: new(int64(1)),
			AutomountServiceAccountToken: new(false), EnableServiceLinks: new(false),
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: new(true), RunAsUser: new(int64(65534)), RunAsGroup: new(int64(65534)),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
			Containers: []corev1.Container{{
				Name: probeName, Image: p.image, ImagePullPolicy: corev1.PullPolicy(p.pullPolicy), Command: []string{"/usr/local/bin/weft-agent", "inventory"},
				Resources: corev1.ResourceRequirements{Requests: small, Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("128Mi")}},
				SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true),
					Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
				TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
				VolumeMounts:             []corev1.VolumeMount{{Name: "modules", MountPath: "/lib/modules", ReadOnly: true}},
			}},
			Volumes: []corev1.Volume{{Name: "modules", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/lib/modules", Type: &modules}}}},
		},
	}
}

// wait until every node has answered, or the time is up.
func (p *prober) wait(ctx context.Context, nodes []corev1.Node) error {
	until := p.now().Add(p.timeout)
	for {
		var pods corev1.PodList
		if err := p.api.List(ctx, &pods, client.InNamespace(p.namespace), p.mine()); err != nil {
			return fmt.Errorf("list the pods of the probe: %w", err)
		}
		late, answered := !p.now().Before(until), 0
		for i := range nodes {
			name := nodes[i].Name
			if p.has[name] == nil && p.lacks[name] == "" {
				p.look(ctx, name, find(pods.Items, func(pod *corev1.Pod) bool { return pod.Spec.NodeName == name }), late)
			}
			if p.has[name] != nil || p.lacks[name] != "" {
				answered++
			}
		}
		if ctx.Err() == nil && answered == len(nodes) {
			return nil
		}
		if err := p.bars.bars([]string{countBar(answered, len(nodes), "nodes")}); err != nil {
			return err
		}
		if err := p.pause(ctx); err != nil {
			return err
		}
	}
}

// look at the pod of a node; nil: it is gone.
func (p *prober) look(ctx context.Context, node string, pod *corev1.Pod, late bool) {
	if pod == nil {
		p.lacks[node] = "its pod was deleted"
		return
	}
	switch container, image := lacksImage(pod); {
	case pod.Status.Phase == corev1.PodSucceeded:
		log, err := p.logs(ctx, pod)
		is := &v1alpha1.Inventory{}
		if err == nil {
			err = json.Unmarshal([]byte(log), is)
		}
		if err != nil {
			p.lacks[node] = "read the log of its pod: " + err.Error()
			return
		}
		p.has[node] = is
	case pod.Status.Phase == corev1.PodFailed:
		p.lacks[node] = "its pod failed: " + failure(pod)
	case container != "":
		p.lacks[node] = fmt.Sprintf("its pod cannot pull the image %s: %s", p.image, image)
	case late:
		p.lacks[node] = fmt.Sprintf("its pod did not end within %s: %s", p.timeout, p.waiting(ctx, pod))
	}
}

// failure of a pod: what the kubelet says, or else its container.
func failure(pod *corev1.Pod) string {
	if pod.Status.Reason != "" {
		return strings.TrimSuffix(pod.Status.Reason+": "+oneLine(pod.Status.Message), ": ")
	}
	for _, c := range pod.Status.ContainerStatuses {
		if is := c.State.Terminated; is != nil {
			return oneLine(cmp.Or(strings.TrimSpace(is.Message), fmt.Sprintf("%s, exit code %d", is.Reason, is.ExitCode)))
		}
	}
	return "without a reason"
}

// waiting says what a pod waits for: as its newest Warning Event says, else as its status does.
func (p *prober) waiting(ctx context.Context, pod *corev1.Pod) string {
	var events corev1.EventList
	err := p.api.List(ctx, &events, client.InNamespace(pod.Namespace), client.MatchingFields{eventsOf: string(pod.UID)})
	if warning := newestWarning(events.Items); err == nil && warning != "" {
		return warning
	}
	return cmp.Or(reportPod(pod).Waiting, "it is "+string(cmp.Or(pod.Status.Phase, corev1.PodPending)))
}

// undo what was made: the pods at once, because one whose node does not answer would stay for long.
func (p *prober) undo(ctx context.Context) error {
	if p.namespace == "" {
		return nil
	}
	ctx, cancel := lasting(ctx)
	defer cancel()
	err := p.api.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(p.namespace), p.mine(), client.GracePeriodSeconds(0))
	instead := fmt.Sprintf("kubectl delete pods -n %s -l app.kubernetes.io/name=%s", p.namespace, probeName)
	if p.temporary {
		instead = "kubectl delete namespace " + p.namespace
		err = errors.Join(err, client.IgnoreNotFound(p.api.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: p.namespace}})))
	}
	if client.IgnoreNotFound(err) == nil {
		return nil
	}
	return fmt.Errorf("delete what the probe made: %w; run: %s", err, instead)
}
