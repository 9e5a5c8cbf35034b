// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

const (
	// planted is what pods write, and firstPassphrase and secondPassphrase what encrypts it.
	planted          = "a-pods-planted-secret"
	firstPassphrase  = "first-planted-passphrase"
	secondPassphrase = "second-planted-passphrase"
)

// encryptedClass makes a StorageClass of encrypted volumes, whose key is in a Secret, and gives the Secret.
func encryptedClass(ctx context.Context, namespace, name string) *corev1.Secret {
	GinkgoHelper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, StringData: map[string]string{"passphrase": firstPassphrase}}
	Expect(cluster.Create(ctx, secret)).To(Succeed())
	newClass(ctx, name, map[string]string{
		"target": "fast", "encrypted": "true",
		"csi.storage.k8s.io/node-stage-secret-name": name, "csi.storage.k8s.io/node-stage-secret-namespace": namespace,
		"csi.storage.k8s.io/node-publish-secret-name": name, "csi.storage.k8s.io/node-publish-secret-namespace": namespace,
	})
	return secret
}

// setKeys of a Secret.
func setKeys(ctx context.Context, secret *corev1.Secret, keys map[string]string) {
	GinkgoHelper()
	secret.Data, secret.StringData = nil, keys
	Expect(cluster.Update(ctx, secret)).To(Succeed())
}

// plantedIn are the files of a node's pools that have what pods write, as the drives have them.
func plantedIn(ctx context.Context, node string) []string {
	GinkgoHelper()
	return lines(on(ctx, node, `sync; grep -r -l -a -e %s -e %s /var/lib/weft/pools || true`, planted, firstPassphrase))
}

var _ = Describe("An encrypted volume", func() {
	It("leaves nothing readable on its drive, and is opened by its key alone, on each node, as are its copies", full, func(ctx SpecContext) {
		newSnapshotClass(ctx)
		ns := newNamespace(ctx)
		secret := encryptedClass(ctx, ns, "weft-encrypted")
		encrypted, plain := newClaim(ctx, ns, "encrypted", "weft-encrypted"), newClaim(ctx, ns, "plain", "weft-fast")
		pod := running(ctx, newPodOf(ctx, "first", clientNode, encrypted, plain))
		write := func(path string) {
			GinkgoHelper()
			sh(ctx, pod, `yes %s | head -c 4194304 >%[2]s/data; sync %[2]s/data`, planted, path)
		}
		write(mountPath)
		Expect(bound(ctx, encrypted).Spec.Encryption).To(Equal(v1alpha1.EncryptionLUKS2))
		Expect(plantedIn(ctx, storageNode)).To(BeEmpty())
		write(pathOf(mountPath, 1))
		Expect(plantedIn(ctx, storageNode)).To(HaveLen(1)) // that of the plain one
		sum := sh(ctx, pod, `sha256sum < %s/data`, mountPath)

		By("growing it, and copying it")
		grow(ctx, encrypted, "256Mi")
		hasGrown(ctx, encrypted, "256Mi")
		newSnapshot(ctx, encrypted, "snapshot")
		restored := newClaim(ctx, ns, "restored", "weft-encrypted", fromSnapshot("snapshot"), withSize("256Mi"))
		remove(ctx, pod)
		pod = running(ctx, newPodOf(ctx, "second", storageNode, encrypted, restored))
		for _, path := range []string{mountPath, pathOf(mountPath, 1)} {
			Expect(sh(ctx, pod, `sha256sum < %s/data`, path)).To(Equal(sum))
		}
		remove(ctx, pod)

		By("changing its key")
		setKeys(ctx, secret, map[string]string{"passphrase": secondPassphrase})
		pod = newPod(ctx, encrypted, "refused", clientNode)
		Eventually(ctx, func(ctx context.Context) string { return eventsOf(ctx, pod) }).WithTimeout(podTime).WithPolling(time.Second).
			Should(And(ContainSubstring("does not open the volume's LUKS header"), ContainSubstring("previousPassphrase"), Not(ContainSubstring(secondPassphrase))))
		remove(ctx, pod)
		setKeys(ctx, secret, map[string]string{"passphrase": secondPassphrase, "previousPassphrase": firstPassphrase})
		remove(ctx, runPod(ctx, encrypted, "third", clientNode))
		setKeys(ctx, secret, map[string]string{"passphrase": secondPassphrase})
		pod = runPod(ctx, encrypted, "fourth", clientNode)
		Expect(sh(ctx, pod, `sha256sum < %s/data`, mountPath)).To(Equal(sum))

		By("showing its keys to nobody")
		for _, node := range []string{clientNode, storageNode} {
			Expect(on(ctx, node, `grep -r -l -a planted-passphrase /var/log /var/lib/kubelet/plugins/csi.weft.storage || true`)).To(BeEmpty())
		}
		var volumes v1alpha1.NvmfVolumeList
		Expect(cluster.List(ctx, &volumes)).To(Succeed())
		Expect(fmt.Sprintf("%+v", volumes.Items)).To(And(ContainSubstring(string(v1alpha1.EncryptionLUKS2)), Not(ContainSubstring("planted-passphrase"))))
		nowhere(ctx, firstPassphrase, secondPassphrase)
		remove(ctx, pod)
	})

	It("is not created by a class without a Secret", full, func(ctx SpecContext) {
		newClass(ctx, "weft-no-secret", map[string]string{"target": "fast", "encrypted": "true"})
		claim := newClaim(ctx, newNamespace(ctx), "claim", "weft-no-secret")
		Eventually(ctx, func(ctx context.Context) string { return eventsOf(ctx, claim) }).WithTimeout(podTime).WithPolling(time.Second).
			Should(ContainSubstring("csi.storage.k8s.io/node-stage-secret-name is missing"))
		Expect(cluster.Get(ctx, client.ObjectKeyFromObject(claim), claim)).To(Succeed())
		Expect(claim.Spec.VolumeName).To(BeEmpty())
	})
})
