// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/test/e2e/internal/build"
	"github.com/weft-storage/weft/test/e2e/lab"
)

// Run is a lab with weft on it, or on its way there.
type Run struct {
	Lab     *lab.Lab
	Cluster *Cluster

	repo    string
	out     io.Writer
	builder *build.Builder
}

// Start starts the lab, or takes the one that runs. It tells out what it does.
func Start(ctx context.Context, out io.Writer) (*Run, error) {
	return StartWith(ctx, out, lab.Options{})
}

// StartWith starts a lab with these options, and with Kubernetes and weft's image.
func StartWith(ctx context.Context, out io.Writer, options lab.Options) (*Run, error) {
	repo, err := build.Repo()
	if err != nil {
		return nil, err
	}
	cache, err := build.DefaultCacheDir()
	if err != nil {
		return nil, err
	}
	dir, err := lab.DefaultDir()
	if err != nil {
		return nil, err
	}
	options.Weft, options.NoCluster = true, false
	b := &build.Builder{Repo: repo, Cache: build.Cache{Dir: cache}, Progress: build.NewProgress(out)}
	machines, err := lab.Up(ctx, dir, b, options)
	if err != nil {
		return nil, err
	}
	cluster, err := Open(machines.Kubeconfig(), repo)
	if err != nil {
		return nil, err
	}
	// What a user installs: the packed chart, not the checkout's folder.
	if cluster.Chart, err = b.PackedChart(ctx, cluster.Helm, dir); err != nil {
		return nil, err
	}
	return &Run{Lab: machines, Cluster: cluster, repo: repo, out: out, builder: b}, nil
}

// Explain collects the logs of every component after a failure, and adds to its error where they are, and whether a
// node's kernel failed.
func (r *Run) Explain(ctx context.Context, cause error) error {
	dir := os.Getenv("ARTIFACTS")
	if dir == "" {
		dir = filepath.Join(r.repo, "dist", "logs")
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
	defer cancel()
	oopses, oopsErr := r.Lab.Oopses()
	if len(oopses) > 0 {
		cause = errors.Join(cause, fmt.Errorf("a node's kernel failed:\n%s", strings.Join(oopses, "\n")))
	}
	err := errors.Join(oopsErr, os.RemoveAll(dir), r.Lab.CollectLogs(ctx, dir))
	return errors.Join(cause, err, fmt.Errorf("logs of every component are in %s", dir))
}

// LoadTarget builds the image of target pods and loads it into the nodes. The SPDK in it is program, a real nvmf_tgt,
// or, when program is empty, the fake.
func (r *Run) LoadTarget(ctx context.Context, program string) error {
	return r.Lab.LoadTarget(ctx, r.builder, program)
}

// LoadWeft builds the project's image and loads it into the nodes.
func (r *Run) LoadWeft(ctx context.Context) error { return r.Lab.LoadWeft(ctx, r.builder) }

// LoadFio makes the image with fio and loads it into the nodes.
func (r *Run) LoadFio(ctx context.Context) error { return r.loadImage(ctx, r.builder.FioImage) }

// LoadRestic makes the image with restic and loads it into the nodes.
func (r *Run) LoadRestic(ctx context.Context) error { return r.loadImage(ctx, r.builder.ResticImage) }

// LoadVelero builds Velero and a server of S3, and loads their images into the nodes.
func (r *Run) LoadVelero(ctx context.Context) (build.Velero, error) {
	velero, err := r.builder.Velero(ctx)
	if err != nil {
		return build.Velero{}, err
	}
	return velero, r.Lab.LoadImages(ctx, velero.Archives...)
}

func (r *Run) loadImage(ctx context.Context, build func(context.Context) (string, error)) error {
	archive, err := build(ctx)
	if err != nil {
		return err
	}
	return r.Lab.LoadImages(ctx, archive)
}

// Install installs or upgrades weft with the chart's values for a lab. set are more of them, in helm's --set form.
func (r *Run) Install(ctx context.Context, set ...string) error {
	if _, err := fmt.Fprintln(r.out, "    waiting until all pods of weft run; on emulated nodes, that takes a minute or two"); err != nil {
		return err
	}
	// Emulated nodes answer slowly when the machine is busy.
	return r.Cluster.Install(ctx, r.out, append(set, "operator.webhook.timeoutSeconds=30")...)
}

// TellStarts tells how long each pod of weft took to start.
func (r *Run) TellStarts(ctx context.Context) error {
	var pods corev1.PodList
	if err := r.Cluster.List(ctx, &pods, client.InNamespace(Namespace)); err != nil {
		return fmt.Errorf("list the pods of weft: %w", err)
	}
	_, err := fmt.Fprintf(r.out, "How long each pod took to start:\n%s", starts(pods.Items))
	return err
}

// Step is one part of the way to a pod with a volume.
type Step struct {
	Name string
	Do   func(context.Context) error
}

// Target is the NvmfTarget of the samples; its nodes carry the label TargetLabel with its name.
const (
	Target      = "fast"
	TargetLabel = "weft.storage/target"
	// ToolsImage has a shell, coreutils and blockdev; every node of the lab has it.
	ToolsImage = build.ToolsImage
)

// Steps install weft and make a target on node: what README.md tells a user to do. set are more values of the chart, in
// helm's --set form.
func (r *Run) Steps(node string, set ...string) []Step {
	return []Step{
		{"build weft's image and load it into the nodes", r.LoadWeft},
		{"helm install weft", func(ctx context.Context) error {
			return r.Install(ctx, set...)
		}},
		{"kubectl apply the target and the storage classes", func(ctx context.Context) error {
			return errors.Join(
				r.Cluster.LabelNode(ctx, node, TargetLabel, Target),
				r.Cluster.ApplyFile(ctx, "config/samples/target-drives.yaml", "", ofTheLab(lab.DriveSerial(node, 0))),
				r.Cluster.ApplyFile(ctx, "config/samples/storageclass.yaml", "", nil),
				r.Cluster.ApplyFile(ctx, "config/samples/storageclass-rdma.yaml", "", nil),
			)
		}},
		{"wait until the target serves", func(ctx context.Context) error {
			return r.Cluster.TargetReady(ctx, Target)
		}},
	}
}

// setImage of containers, if the object has some there, to one that the nodes have.
func setImage(object *unstructured.Unstructured, image string, containersAt ...string) {
	containers, found, err := unstructured.NestedSlice(object.Object, containersAt...)
	if err != nil || !found {
		return
	}
	for _, c := range containers {
		if container, ok := c.(map[string]any); ok {
			container["image"], container["imagePullPolicy"] = image, "Never"
		}
	}
	// What was read as a list can be written as one.
	_ = unstructured.SetNestedSlice(object.Object, containers, containersAt...)
}

// OnDrives makes a sample's claim one of the StorageClass of the drives.
func OnDrives(object *unstructured.Unstructured) {
	if object.GetKind() == "PersistentVolumeClaim" {
		// The sample is a fixed file with a spec, so this cannot fail.
		_ = unstructured.SetNestedField(object.Object, "weft-"+Target, "spec", "storageClassName")
	}
}

// ofTheLab makes a sample's target select one drive, so that the node's others are free for tests, and serve over RDMA
// too, which the sample has in a comment: the lab's nodes have a device.
func ofTheLab(serial string) func(*unstructured.Unstructured) {
	return func(object *unstructured.Unstructured) {
		selector := map[string]any{"byID": []any{"nvme-*_" + serial}}
		devices := map[string]any{"selector": selector}
		// The sample is a fixed file with a spec and transports, so none of this can fail.
		_ = unstructured.SetNestedMap(object.Object, devices, "spec", "devices")
		transports, _, _ := unstructured.NestedSlice(object.Object, "spec", "transports")
		transports = append(transports, map[string]any{"type": "RDMA", "port": int64(4421)})
		_ = unstructured.SetNestedSlice(object.Object, transports, "spec", "transports")
	}
}

// TargetReady waits until the target's condition Ready is True.
func (c *Cluster) TargetReady(ctx context.Context, name string) error {
	var last string
	err := wait.PollUntilContextTimeout(ctx, 500*time.Millisecond, 5*time.Minute, true, func(ctx context.Context) (bool, error) {
		var target v1alpha1.NvmfTarget
		if err := c.Get(ctx, client.ObjectKey{Name: name}, &target); err != nil {
			return false, err
		}
		ready := meta.FindStatusCondition(target.Status.Conditions, v1alpha1.ConditionReady)
		if ready == nil {
			last = "no status yet"
			return false, nil
		}
		last = ready.Reason + ": " + ready.Message
		return ready.Status == "True" && ready.ObservedGeneration == target.Generation, nil
	})
	if err != nil {
		return fmt.Errorf("NvmfTarget %s is not ready: %s: %w", name, last, err)
	}
	return nil
}

// PodReady waits until the pod is ready, and returns it.
func (c *Cluster) PodReady(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	err := wait.PollUntilContextTimeout(ctx, 500*time.Millisecond, 5*time.Minute, true, func(ctx context.Context) (bool, error) {
		if err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, pod); err != nil {
			return false, client.IgnoreNotFound(err)
		}
		return podReady(pod), nil
	})
	if err != nil {
		return nil, fmt.Errorf("pod %s/%s is not ready (phase %q): %w", namespace, name, pod.Status.Phase, err)
	}
	return pod, nil
}

func podReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}
