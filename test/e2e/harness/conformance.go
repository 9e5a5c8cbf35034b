// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/test/e2e/internal/build"
	"github.com/weft-storage/weft/test/e2e/lab"
)

const (
	kubeletDir    = "/var/lib/kubelet"
	sanityPackage = "./csi-driver/internal/sanitytest"
	sanityProgram = "sanity.test"
	shareOnNode   = "/host-share"
)

// Sanity runs csi-sanity on a node, against the driver as it is installed: the node's own plugin, and the replica of the
// controller that runs there. Volumes come from the target of the samples. What the program says goes to out.
func (r *Run) Sanity(ctx context.Context, out io.Writer, node string) error {
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
		if pod.Spec.NodeName != node || pod.Status.Phase != corev1.PodRunning {
			continue
		}
		controller := path.Join(kubeletDir, "pods", string(pod.UID), "volumes", "kubernetes.io~empty-dir", "socket", "csi.sock")
		return r.Lab.Exec(ctx, node, lab.Streams{Stdout: out, Stderr: out}, path.Join(shareOnNode, sanityProgram), "-test.v", "-ginkgo.v", "-ginkgo.no-color",
			"-controller", controller, "-node", path.Join(plugin, "csi.sock"), "-folder", plugin, "-target", Target)
	}
	return fmt.Errorf("no replica of the CSI controller runs on %s", node)
}

// StorageSuite builds Kubernetes' storage suite, and gives the nodes the images that its specs ask for.
func (r *Run) StorageSuite(ctx context.Context) (build.StorageSuite, error) {
	suite, err := r.builder.StorageSuite(ctx)
	if err != nil {
		return build.StorageSuite{}, err
	}
	err = errors.Join(r.Lab.LoadImages(ctx, suite.Agnhost), r.Lab.TagImage(ctx, ToolsImage, suite.Shells...))
	return suite, err
}
