// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/test/e2e/suite"
)

func newDemoCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "demo",
		Short: "Start the lab, install weft, and show a pod's data on another node's drive",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			logf.SetLogger(logr.Discard())
			return runDemo(cmd.Context())
		},
	}
}

const (
	namespace = "default"
	podName   = "weft-demo"
	claimName = "weft-demo"
)

type demo struct {
	*suite.Run
	storageNode, clientNode string
	took                    []timing
}

type timing struct {
	step string
	time time.Duration
}

func runDemo(ctx context.Context) error {
	b, err := newBuilder()
	if err != nil {
		return err
	}
	built, err := b.Built()
	if err != nil {
		return err
	}
	fmt.Println(howLong(built))
	d := &demo{}
	err = d.step(ctx, suite.Step{Name: "start the lab: control plane and two nodes", Do: func(ctx context.Context) error {
		var err error
		if d.Run, err = suite.Start(ctx, os.Stdout); err != nil {
			return err
		}
		// The chart's NOTES tell how to go on by hand, which the demo does itself.
		d.Cluster.HideNotes = true
		return d.snapshots(ctx)
	}})
	if err != nil {
		return err
	}
	defer d.Lab.Close()
	nodes := d.Lab.Nodes()
	if len(nodes) < 2 {
		return fmt.Errorf("the demo needs two nodes and the lab has %d; run make lab-down first", len(nodes))
	}
	d.storageNode, d.clientNode = nodes[0], nodes[1]

	steps := append(d.Steps(d.storageNode),
		suite.Step{Name: "kubectl apply a claim and a pod that writes to it", Do: d.applyPod},
		suite.Step{Name: "wait until the pod runs", Do: d.waitPod},
	)
	for _, s := range steps {
		if err := d.step(ctx, s); err != nil {
			return d.Explain(ctx, err)
		}
	}
	return d.show(ctx)
}

// howLong the demo takes: 17 minutes were measured where nothing was built yet, with a compiler working beside it (10
// until the nodes were Ready), and 2.5 where all was.
func howLong(built bool) string {
	if built {
		return "What the lab runs on is built already, so this takes about 3 minutes on two idle cores."
	}
	return "This is the first run here: it builds Kubernetes and a Debian root filesystem, and takes 10 to 20 minutes on two cores. Later runs take about 3."
}

// step runs one step and keeps how long it took.
func (d *demo) step(ctx context.Context, s suite.Step) error {
	start := time.Now()
	err := step(ctx, s)
	d.took = append(d.took, timing{s.Name, time.Since(start)})
	return err
}

// snapshots makes the cluster able to take some. It comes before weft, whose chart looks for the API.
func (d *demo) snapshots(ctx context.Context) error {
	start := time.Now()
	if err := d.SnapshotAPI(ctx); err != nil {
		return d.Explain(ctx, fmt.Errorf("install the snapshot API: %w", err))
	}
	fmt.Printf("    installed the snapshot API and its controller in %.1fs\n", time.Since(start).Seconds())
	return nil
}

func (d *demo) applyPod(ctx context.Context) error {
	// A pod cannot be changed, so one of an earlier demo goes first; its claim, and data, stay.
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: podName}}
	zero := client.GracePeriodSeconds(0)
	if err := client.IgnoreNotFound(d.Cluster.Delete(ctx, pod, zero)); err != nil {
		return err
	}
	if err := d.Cluster.WaitGone(ctx, pod); err != nil {
		return err
	}
	return errors.Join(
		d.Cluster.ApplyFile(ctx, "config/samples/snapshots/volumesnapshotclass.yaml", "", nil),
		d.Cluster.ApplyFile(ctx, "config/samples/pvc-pod.yaml", namespace, suite.OnDrives),
	)
}

func (d *demo) waitPod(ctx context.Context) error {
	_, err := d.Cluster.PodReady(ctx, namespace, podName)
	return err
}

// show writes in the pod and reads on the other node's drive.
func (d *demo) show(ctx context.Context) error {
	pod, err := d.Cluster.PodReady(ctx, namespace, podName)
	if err != nil {
		return err
	}
	volume, err := d.Cluster.VolumeOf(ctx, namespace, claimName)
	if err != nil {
		return err
	}
	replica, err := d.Cluster.ReplicaOf(ctx, volume)
	if err != nil {
		return err
	}
	marker := fmt.Sprintf("hello from %s at %s", pod.Spec.NodeName, time.Now().UTC().Format(time.RFC3339Nano))
	write := fmt.Sprintf("echo '%s' > /data/marker && sync", marker)
	if _, err := d.Cluster.Exec(ctx, namespace, podName, "sh", "-c", write); err != nil {
		return err
	}
	find := fmt.Sprintf(`sync; f=$(ls /var/lib/weft/pools/*/volumes/%s) && echo "$f" && grep -a -o -m 1 '%s' "$f"`, replica.Spec.UUID, marker)
	found, err := d.Lab.Output(ctx, replica.Spec.Node, "sh", "-c", find)
	if err != nil {
		return fmt.Errorf("the pod's data is not on the drive of %s: %w", replica.Spec.Node, err)
	}
	file, line, _ := strings.Cut(strings.TrimSpace(found), "\n")
	paths, err := d.Lab.Output(ctx, pod.Spec.NodeName, "sh", "-c", fmt.Sprintf(
		`for c in /sys/class/nvme/nvme*; do case "$(cat $c/subsysnqn)" in '%s'*) echo "$(cat $c/transport) $(cat $c/address) $(cat $c/state)" ;; esac; done`, v1alpha1.NQNPrefix+replica.Name+":"))
	if err != nil {
		return err
	}
	fmt.Printf("\nIn the pod on %s:        echo '%s' > /data/marker\n", pod.Spec.NodeName, marker)
	fmt.Printf("On the drive of %s:      %s\n\n", replica.Spec.Node, line)

	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	for _, t := range d.took {
		_, _ = fmt.Fprintf(w, "%s\t%.1fs\n", t.step, t.time.Seconds())
	}
	// A table of its own: what follows has short names and long values.
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Println()
	_, _ = fmt.Fprintf(w, "volume\t%s (%s)\n", volume.Name, volume.Spec.Size.String())
	_, _ = fmt.Fprintf(w, "lives on\t%s, drive %s, %s\n", replica.Spec.Node, replica.Status.Device, file)
	_, _ = fmt.Fprintf(w, "used on\t%s\n", pod.Spec.NodeName)
	_, _ = fmt.Fprintf(w, "path\t%s\n", strings.ReplaceAll(strings.TrimSpace(paths), "\n", "; "))
	if err := w.Flush(); err != nil {
		return err
	}
	if pod.Spec.NodeName == replica.Spec.Node {
		return fmt.Errorf("the pod runs on %s, which has the drive itself; %s", pod.Spec.NodeName, v1alpha1.DriverName+" has nothing to show")
	}
	if err := d.kubectl(ctx, "get", "weft"); err != nil {
		return err
	}
	fmt.Print(goOn(d.Cluster.Kubeconfig, d.Cluster.Repo, replica.Spec.Node))
	return nil
}

// goOn says how to use the lab after the demo, in lines that a shell takes.
func goOn(kubeconfig, repo, node string) string {
	bin := filepath.Join(repo, "bin")
	return fmt.Sprintf(`
The lab goes on. To look around, paste these lines into a shell:

export KUBECONFIG=%s PATH=%s:%s:$PATH
export PATH=$(weft-lab assets-dir):$PATH
kubectl weft status
kubectl weft volume %s
kubectl logs %s
weft-lab exec %s -- nvme list

docs/lab.md says what else you can try: pods of your own, snapshots, replicas, SPDK, failures. `+"`make lab-down`"+` ends the lab.
`, kubeconfig, bin, filepath.Join(bin, runtime.GOARCH), claimName, podName, node)
}

// kubectl shows a command that users have, and what it prints. Its list of the cluster's types is the lab's own:
// another lab's, which had the same address, would not have weft's.
func (d *demo) kubectl(ctx context.Context, args ...string) error {
	fmt.Printf("\n$ kubectl %s\n", strings.Join(args, " "))
	types := filepath.Join(filepath.Dir(d.Cluster.Kubeconfig), "kubectl-cache")
	cmd := exec.CommandContext(ctx, filepath.Join(d.Lab.AssetsDir(), "kubectl"),
		append(args, "--kubeconfig", d.Cluster.Kubeconfig, "--cache-dir", types)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd.Run()
}
