// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/kubernetes-csi/external-snapshot-metadata/pkg/api"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/util/cert"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// backupTool asks the sidecar of the CSI controller for blocks of snapshots in a namespace.
type backupTool struct {
	api.SnapshotMetadataClient
	namespace, token string
}

// newBackupTool for snapshots of a namespace. Weft serves it until the test ends.
func newBackupTool(ctx context.Context, namespace string) *backupTool {
	GinkgoHelper()
	const name = "weft-snapshot-metadata"
	host := name + "." + Namespace
	chain, key, err := cert.GenerateSelfSignedCertKey(host, nil, nil)
	Expect(err).NotTo(HaveOccurred())
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{corev1.TLSCertKey: chain, corev1.TLSPrivateKeyKey: key},
	}
	Expect(cluster.Create(ctx, secret)).To(Succeed())
	DeferCleanup(func(ctx context.Context) {
		Expect(run.Install(ctx)).To(Succeed())
		remove(ctx, secret)
	})
	Expect(run.Install(ctx, "snapshotMetadata.enabled=true", "snapshotMetadata.tls.secretName="+name, "snapshotMetadata.tls.caCert="+string(chain))).To(Succeed())

	roots := x509.NewCertPool()
	Expect(roots.AppendCertsFromPEM(chain)).To(BeTrue())
	// The lab has no DNS.
	address := net.JoinHostPort(componentPods(ctx, "csi-controller")[0].Status.PodIP, "50051")
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(credentials.NewClientTLSFromCert(roots, host)))
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(connection.Close)

	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "backup"}}
	for _, object := range []client.Object{
		account,
		&rbacv1.Role{ObjectMeta: account.ObjectMeta, Rules: []rbacv1.PolicyRule{{APIGroups: []string{snapshotGroup}, Resources: []string{"volumesnapshots"}, Verbs: []string{"get"}}}},
		&rbacv1.RoleBinding{
			ObjectMeta: account.ObjectMeta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: account.Name},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: account.Name}},
		},
	} {
		Expect(cluster.Create(ctx, object)).To(Succeed())
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{v1alpha1.DriverName}}}
	Expect(cluster.SubResource("token").Create(ctx, account, request)).To(Succeed())
	return &backupTool{SnapshotMetadataClient: api.NewSnapshotMetadataClient(connection), namespace: namespace, token: request.Status.Token}
}

// collect the blocks of a stream, in units of 4 KiB.
func collect[R interface {
	GetBlockMetadata() []*api.BlockMetadata
}](stream interface{ Recv() (R, error) }, err error) ([]int64, error) {
	var all []int64
	for err == nil {
		var message R
		if message, err = stream.Recv(); err != nil {
			break
		}
		for _, b := range message.GetBlockMetadata() {
			if b.ByteOffset%4096 != 0 || b.SizeBytes%4096 != 0 {
				return nil, fmt.Errorf("%d bytes from %d on", b.SizeBytes, b.ByteOffset)
			}
			for n := range b.SizeBytes / 4096 {
				all = append(all, b.ByteOffset/4096+n)
			}
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return all, err
}

func (b *backupTool) allocated(ctx context.Context, snapshot string) ([]int64, error) {
	return collect(b.GetMetadataAllocated(ctx, &api.GetMetadataAllocatedRequest{SecurityToken: b.token, Namespace: b.namespace, SnapshotName: snapshot, MaxResults: 2}))
}

func (b *backupTool) changed(ctx context.Context, base, snapshot string) ([]int64, error) {
	return collect(b.GetMetadataDelta(ctx, &api.GetMetadataDeltaRequest{SecurityToken: b.token, Namespace: b.namespace, BaseSnapshotId: base, TargetSnapshotName: snapshot}))
}

// handleOf a snapshot, by which its driver knows it.
func handleOf(ctx context.Context, snapshot *unstructured.Unstructured) string {
	GinkgoHelper()
	name, _, _ := unstructured.NestedString(snapshot.Object, "status", "boundVolumeSnapshotContentName")
	content := snapshotObject("VolumeSnapshotContent", "", name)
	Expect(cluster.Get(ctx, client.ObjectKeyFromObject(content), content)).To(Succeed())
	handle, _, _ := unstructured.NestedString(content.Object, "status", "snapshotHandle")
	return handle
}

var _ = Describe("Changed blocks", func() {
	It("between two snapshots make the later one of the earlier one, and are told for a token alone", full, func(ctx SpecContext) {
		newSnapshotClass(ctx)
		ns := newNamespace(ctx)
		tool := newBackupTool(ctx, ns)
		small := withSize("32Mi")
		claim := newClaim(ctx, ns, "volume", "weft-fast", asBlock, small)
		writer := runPod(ctx, claim, "writer", clientNode)
		write := func(blocks ...int64) {
			GinkgoHelper()
			for _, n := range blocks {
				sh(ctx, writer, `head -c 4096 /dev/urandom | dd of=%s bs=4096 seek=%d count=1 iflag=fullblock oflag=direct conv=notrunc status=none`, devicePath, n)
			}
		}
		write(0, 5, 6, 8191)
		base := newSnapshot(ctx, claim, "base")
		write(6, 7, 4000)
		later := newSnapshot(ctx, claim, "later")

		Eventually(ctx, func(ctx context.Context) ([]int64, error) { return tool.allocated(ctx, "base") }).
			WithTimeout(podTime).WithPolling(time.Second).Should(Equal([]int64{0, 5, 6, 8191}))
		changed, err := tool.changed(ctx, handleOf(ctx, base), "later")
		Expect(err).NotTo(HaveOccurred())
		Expect(changed).To(Equal([]int64{6, 7, 4000}))
		everything, err := tool.allocated(ctx, "later")
		Expect(err).NotTo(HaveOccurred())

		By("making the later one: of the earlier one, and of nothing")
		restored := newClaim(ctx, ns, "restored", "weft-fast", asBlock, small, fromSnapshot("base"))
		blank := newClaim(ctx, ns, "blank", "weft-fast", asBlock, small)
		is := newClaim(ctx, ns, "is", "weft-fast", asBlock, small, fromSnapshot("later"))
		remove(ctx, writer)
		pod := running(ctx, newPodOf(ctx, "restore", clientNode, is, restored, blank))
		for i, blocks := range [][]int64{changed, everything} {
			sh(ctx, pod, `for n in %s; do dd if=%s of=%s bs=4096 skip=$n seek=$n count=1 conv=notrunc,fsync status=none; done`,
				strings.Trim(fmt.Sprint(blocks), "[]"), devicePath, pathOf(devicePath, i+1))
			sh(ctx, pod, `cmp %s %s`, devicePath, pathOf(devicePath, i+1))
		}

		By("asking what cannot be answered")
		_, err = tool.changed(ctx, "none", "later")
		Expect(status.Code(err)).To(Equal(codes.NotFound), "%v", err)
		tool.token = tokenOf(ctx, "not-a-backup-tool")
		_, err = tool.allocated(ctx, "later")
		Expect(status.Code(err)).To(Equal(codes.Unauthenticated), "%v", err)
		remove(ctx, later)
	}, SpecTimeout(15*time.Minute))
})
