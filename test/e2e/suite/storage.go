// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/test/e2e/internal/build"
	"github.com/weft-storage/weft/test/e2e/lab"
)

const (
	kubeletDir    = "/var/lib/kubelet"
	sanityPackage = "./csi-driver/node/nodetest"
	sanityProgram = "sanity.test"
	shareOnNode   = "/host-share"
)

// Sanity runs csi-sanity on a node, against the driver as it is installed: a replica of the controller, and the plugin
// of the node that it runs on. Volumes come from the target of the samples. What the program says goes to out.
func (r *Run) Sanity(ctx context.Context, out io.Writer) error {
	if err := r.builder.LabTest(ctx, sanityPackage, filepath.Join(r.Lab.ShareDir(), sanityProgram)); err != nil {
		return err
	}
	var pods corev1.PodList
	err := r.Cluster.List(ctx, &pods, client.InNamespace(Namespace), client.MatchingLabels{"app.kubernetes.io/component": "csi-controller"})
	if err != nil {
		return err
	}
	plugin := path.Join(kubeletDir, "plugins", v1alpha1.DriverName)
	for _, pod := range pods.Items {
		if pod.DeletionTimestamp != nil || !podReady(&pod) {
			continue
		}
		controller := path.Join(kubeletDir, "pods", string(pod.UID), "volumes", "kubernetes.io~empty-dir", "socket", "csi.sock")
		return r.Lab.Exec(ctx, pod.Spec.NodeName, lab.Streams{Stdout: out, Stderr: out}, path.Join(shareOnNode, sanityProgram), "-test.v", "-ginkgo.v", "-ginkgo.no-color",
			"-controller", controller, "-node", path.Join(plugin, "csi.sock"), "-folder", plugin, "-target", Target)
	}
	return errors.New("no replica of the CSI controller is ready")
}

// alwaysSkipped asks for a filesystem that two nodes write to, which weft refuses. The suite knows ReadWriteMany for
// all volumes or for none, and weft has it for block volumes.
const alwaysSkipped = `\((filesystem volmode|ext4|xfs)\)\] .*multiVolume .*should concurrently access the single volume from pods on different node`

// Specs are those of Kubernetes' storage suite that are to be run.
type Specs struct {
	// Focus and Skip are regular expressions over the specs' names; an empty Focus means all, an empty Skip leaves out
	// nothing.
	Focus, Skip string
	// Procs is how many run at once, 1 at least; disruptive ones run one at a time.
	Procs int
	// Timeout is how long all of them may take, and all disruptive ones after them.
	Timeout time.Duration
	// Out is the folder of the reports, which is emptied first. If it is empty, it is dist/storage in the repository.
	Out string
}

// StorageSpecs runs specs of Kubernetes' storage suite against the driver as it is installed, and tells out, and the
// file specs.txt in s.Out, what became of each. A spec that failed is an error.
func (r *Run) StorageSpecs(ctx context.Context, out io.Writer, s Specs) (Results, error) {
	suite, err := r.storageSuite(ctx)
	if err != nil {
		return Results{}, err
	}
	if s.Out == "" {
		s.Out = filepath.Join(r.repo, "dist", "storage")
	}
	if err := errors.Join(os.RemoveAll(s.Out), os.MkdirAll(s.Out, 0o755)); err != nil {
		return Results{}, err
	}
	var results Results
	var failed error
	// Kubelets are stopped under the disruptive specs: they run after the others, and one at a time.
	for _, pass := range []struct {
		name, labels string
		procs        int
	}{{"report", "!Disruptive", s.Procs}, {"disruptive", "Disruptive", 1}} {
		report := pass.name + ".json"
		failed = errors.Join(failed, r.storagePass(ctx, out, suite, s, "--procs", strconv.Itoa(pass.procs), "--label-filter", pass.labels,
			"--json-report", report, "--junit-report", pass.name+".xml"))
		if err := results.read(filepath.Join(s.Out, report)); err != nil {
			return Results{}, errors.Join(failed, err)
		}
	}
	if err := results.tell(out, filepath.Join(s.Out, "specs.txt")); err != nil {
		return results, err
	}
	if failed != nil {
		return results, fmt.Errorf("the suite failed; its reports are in %s", s.Out)
	}
	return results, nil
}

// storagePass runs the suite once, with more flags of Ginkgo.
func (r *Run) storagePass(ctx context.Context, out io.Writer, suite build.StorageSuite, s Specs, flags ...string) error {
	args := append([]string{
		suite.Ginkgo, "--timeout", s.Timeout.String(), "--no-color", "--output-dir", s.Out, "--skip", alwaysSkipped,
	}, flags...)
	if s.Focus != "" {
		args = append(args, "--focus", s.Focus)
	}
	if s.Skip != "" {
		args = append(args, "--skip", s.Skip)
	}
	args = append(args, suite.Tests, "--",
		"-kubeconfig", r.Cluster.Kubeconfig, "-kubectl-path", filepath.Join(r.Lab.AssetsDir(), "kubectl"), "-repo-root", r.repo,
		"-storage.testdriver", filepath.Join(r.repo, "test", "e2e", "storage", "driver.yaml"), "-dump-logs-on-failure=false")
	// Ginkgo's processes run the specs, and each of them cleans up after its own.
	return build.Cmd{Log: out, Args: args, Env: r.Lab.SSHEnv(), Group: true, Cleanup: 2 * time.Minute}.Run(ctx)
}

// storageSuite builds Kubernetes' storage suite, and gives the nodes the images that its specs ask for.
func (r *Run) storageSuite(ctx context.Context) (build.StorageSuite, error) {
	suite, err := r.builder.StorageSuite(ctx)
	if err != nil {
		return build.StorageSuite{}, err
	}
	if err := r.Lab.LoadImages(ctx, suite.Archive); err != nil {
		return build.StorageSuite{}, err
	}
	return suite, r.Lab.TagImage(ctx, suite.Agnhost, suite.Shells...)
}

// Overprovision lets the samples' target promise percent of what its drive has: several specs at once ask for more
// than that, and write next to nothing.
func (r *Run) Overprovision(ctx context.Context, percent int32) error {
	target := &v1alpha1.NvmfTarget{ObjectMeta: metav1.ObjectMeta{Name: Target}}
	patch := fmt.Sprintf(`{"spec":{"overProvisioningPercent":%d}}`, percent)
	if err := r.Cluster.Patch(ctx, target, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		return err
	}
	return r.Cluster.TargetReady(ctx, Target)
}
