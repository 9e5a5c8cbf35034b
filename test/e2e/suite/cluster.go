// SPDX-License-Identifier: Apache-2.0

// Package suite is the end-to-end suite: weft, installed by its chart, on the lab's cluster. Every part but weft is
// somebody else's: kernel, kubelet, containerd, API server, sidecars. The specs are its tests. What drives the cluster
// for them (install the chart, apply manifests, run commands in pods) drives the demo and others' suites as well.
package suite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/remotecommand"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// Namespace is where weft is installed.
const Namespace = "weft-system"

// Cluster is a Kubernetes cluster that weft is, or will be, installed on.
type Cluster struct {
	client.WithWatch
	// Kube is the typed client, for logs and the like.
	Kube kubernetes.Interface
	// Kubeconfig is the path of the file this was opened from, for helm and kubectl.
	Kubeconfig string
	// Repo is the root of the repository.
	Repo string
	// Helm is the path of the helm program.
	Helm string
	// Chart to install: a packed one, or the folder of the checkout's.
	Chart string
	// HideNotes of the chart, where something else says how to go on.
	HideNotes bool

	config *rest.Config
}

// Open connects to the cluster of a kubeconfig file.
func Open(kubeconfig, repo string) (*Cluster, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", kubeconfig, err)
	}
	config.QPS, config.Burst = 200, 400
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	c, err := client.NewWithWatch(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, err
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	helm := os.Getenv("HELM")
	if helm == "" {
		helm = filepath.Join(repo, "bin", "helm")
	}
	if _, err := os.Stat(helm); err != nil {
		return nil, fmt.Errorf("helm is not built (%w); run this through make, or set HELM to a helm program", err)
	}
	return &Cluster{WithWatch: c, Kube: kube, Kubeconfig: kubeconfig, Repo: repo, Helm: helm, Chart: filepath.Join(repo, "charts", "weft"), config: config}, nil
}

// Client is one that hears the API server's warnings.
func (c *Cluster) Client(warned func(text string)) (client.Client, error) {
	config := rest.CopyConfig(c.config)
	config.WarningHandlerWithContext = warningFunc(warned)
	return client.New(config, client.Options{Scheme: c.Scheme()})
}

type warningFunc func(string)

// HandleWarningHeaderWithContext passes the text on.
func (f warningFunc) HandleWarningHeaderWithContext(_ context.Context, _ int, _, text string) {
	f(text)
}

// Install installs or upgrades the chart and waits until everything of it runs.
// set are values in helm's --set form.
func (c *Cluster) Install(ctx context.Context, out io.Writer, set ...string) error {
	args := []string{
		"upgrade", "--install", "weft", c.Chart,
		"--kubeconfig", c.Kubeconfig, "--namespace", Namespace, "--create-namespace",
		"--wait", "--timeout", "10m",
	}
	if c.HideNotes {
		args = append(args, "--hide-notes")
	}
	for _, s := range set {
		args = append(args, "--set", s)
	}
	cmd := exec.CommandContext(ctx, c.Helm, args...)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("helm %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

// ApplyFile applies each object of a YAML file, by its path in the repository or from the root, after edit if it is
// given. Namespaced objects without a namespace go to namespace.
func (c *Cluster) ApplyFile(ctx context.Context, path, namespace string, edit func(*unstructured.Unstructured)) error {
	file := path
	if !filepath.IsAbs(file) {
		file = filepath.Join(c.Repo, path)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096)
	for {
		var object unstructured.Unstructured
		if err := decoder.Decode(&object.Object); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if len(object.Object) == 0 {
			continue
		}
		namespaced, err := c.IsObjectNamespaced(&object)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if namespaced && object.GetNamespace() == "" {
			object.SetNamespace(namespace)
		}
		if edit != nil {
			edit(&object)
		}
		apply := client.ApplyConfigurationFromUnstructured(&object)
		if err := c.Apply(ctx, apply, client.FieldOwner("weft-e2e"), client.ForceOwnership); err != nil {
			return fmt.Errorf("%s: %s %s: %w", path, object.GetKind(), object.GetName(), err)
		}
	}
}

// LabelNode sets, or with an empty value removes, a label of a node.
func (c *Cluster) LabelNode(ctx context.Context, node, key, value string) error {
	patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, key, value)
	if value == "" {
		patch = fmt.Sprintf(`{"metadata":{"labels":{%q:null}}}`, key)
	}
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
	return c.Patch(ctx, n, client.RawPatch("application/merge-patch+json", []byte(patch)))
}

// Exec runs a command in the first container of a pod and returns what it
// wrote to its standard output.
func (c *Cluster) Exec(ctx context.Context, namespace, pod string, command ...string) (string, error) {
	request := c.Kube.CoreV1().RESTClient().Post().Resource("pods").Namespace(namespace).Name(pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Command: command, Stdout: true, Stderr: true}, clientgoscheme.ParameterCodec)
	executor, err := remotecommand.NewWebSocketExecutor(c.config, "GET", request.URL().String())
	if err != nil {
		return "", err
	}
	var stdout, stderr bytes.Buffer
	if err := executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &stdout, Stderr: &stderr}); err != nil {
		return stdout.String(), fmt.Errorf("in pod %s/%s, %q: %w: %s", namespace, pod, command, err, stderr.String())
	}
	return stdout.String(), nil
}

// Gone reports whether an object does not exist any more.
func (c *Cluster) Gone(ctx context.Context, object client.Object) (bool, error) {
	err := c.Get(ctx, client.ObjectKeyFromObject(object), object)
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	return false, err
}

// VolumeOf returns the NvmfVolume behind a bound claim.
func (c *Cluster) VolumeOf(ctx context.Context, namespace, claim string) (*v1alpha1.NvmfVolume, error) {
	var pvc corev1.PersistentVolumeClaim
	if err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: claim}, &pvc); err != nil {
		return nil, err
	}
	if pvc.Spec.VolumeName == "" {
		return nil, fmt.Errorf("claim %s/%s is not bound: %s", namespace, claim, pvc.Status.Phase)
	}
	var pv corev1.PersistentVolume
	if err := c.Get(ctx, client.ObjectKey{Name: pvc.Spec.VolumeName}, &pv); err != nil {
		return nil, err
	}
	if pv.Spec.CSI == nil || pv.Spec.CSI.Driver != v1alpha1.DriverName {
		return nil, fmt.Errorf("volume %s is not of driver %s", pv.Name, v1alpha1.DriverName)
	}
	var volume v1alpha1.NvmfVolume
	err := c.Get(ctx, client.ObjectKey{Name: pv.Spec.CSI.VolumeHandle}, &volume)
	return &volume, err
}

// ReplicaOf returns the one replica of a volume.
func (c *Cluster) ReplicaOf(ctx context.Context, volume *v1alpha1.NvmfVolume) (*v1alpha1.NvmfReplica, error) {
	if n := len(volume.Spec.Members); n != 1 {
		return nil, fmt.Errorf("NvmfVolume %s has %d members, want 1", volume.Name, n)
	}
	var replica v1alpha1.NvmfReplica
	err := c.Get(ctx, client.ObjectKey{Name: volume.Spec.Members[0].Name}, &replica)
	return &replica, err
}

// WaitGone waits until an object does not exist any more.
func (c *Cluster) WaitGone(ctx context.Context, object client.Object) error {
	return wait.PollUntilContextTimeout(ctx, 500*time.Millisecond, 5*time.Minute, true, func(ctx context.Context) (bool, error) {
		return c.Gone(ctx, object)
	})
}
