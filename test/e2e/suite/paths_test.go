// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// The port of the samples' target for TCP on the cluster's network, and one on the nodes' second network.
const (
	tcpPort         = 4420
	secondPort      = 4422
	secondInterface = "mgmt0"
)

// cutNVMe drops what comes in through eth0 of NVMe over TCP and over RDMA (RoCE v2 is UDP to port 4791). On both ends,
// the network is silent for them, and nothing else notices. What goes out is let go: a soft RDMA device whose sender is
// told that its packet was dropped makes no connection any more.
const cutNVMe = `nft -f - <<'END'
table inet weft-cut {
	chain input {
		type filter hook input priority filter;
		iifname "eth0" tcp sport %[1]d drop
		iifname "eth0" tcp dport %[1]d drop
		iifname "eth0" udp dport 4791 drop
	}
}
END`

// healNVMe undoes cutNVMe, if it was done.
const healNVMe = `nft destroy table inet weft-cut`

// pathStates of a volume on a node, each as "transport port state", from what the kernel shows.
func pathStates(ctx context.Context, node string, volume *v1alpha1.NvmfVolume) ([]string, error) {
	out, err := tryOn(ctx, node, `
		for c in /sys/class/nvme/nvme*; do
			case "$(cat $c/subsysnqn 2>/dev/null)" in '%s'*) ;; *) continue ;; esac
			echo "$(cat $c/transport) $(sed 's/.*trsvcid=//; s/,.*//' $c/address) $(cat $c/state)"
		done`, subsystemsOf(volume))
	return lines(out), err
}

// transports sets those of the samples' target, and waits until its node serves them; others may be open still, for the
// hosts that use them.
func transports(ctx context.Context, list []v1alpha1.Transport) {
	GinkgoHelper()
	target := &v1alpha1.NvmfTarget{}
	Expect(cluster.Get(ctx, client.ObjectKey{Name: Target}, target)).To(Succeed())
	before := target.DeepCopy()
	target.Spec.Transports = list
	Expect(cluster.Patch(ctx, target, client.MergeFrom(before))).To(Succeed())
	Eventually(ctx, func(g Gomega, ctx context.Context) {
		node := &v1alpha1.NvmfNode{}
		g.Expect(cluster.Get(ctx, client.ObjectKey{Name: storageNode}, node)).To(Succeed())
		for _, t := range list {
			g.Expect(node.Status.Portals).To(ContainElement(And(HaveField("Transport", t.Type), HaveField("Port", t.Port))))
		}
	}).WithTimeout(time.Minute).WithPolling(500 * time.Millisecond).Should(Succeed())
}

var _ = Describe("A volume with paths over both transports and two networks", func() {
	It("is written on, without an error, while one network is lost, and has all its paths again after that", full, func(ctx SpecContext) {
		target := &v1alpha1.NvmfTarget{}
		Expect(cluster.Get(ctx, client.ObjectKey{Name: Target}, target)).To(Succeed())
		DeferCleanup(transports, target.Spec.Transports)
		transports(ctx, append(target.DeepCopy().Spec.Transports, v1alpha1.Transport{
			Type: v1alpha1.TransportTCP, Port: secondPort, Network: &v1alpha1.Network{Interface: secondInterface},
		}))
		Expect(cluster.ApplyFile(ctx, "config/samples/storageclass-multipath.yaml", "", nil)).To(Succeed())
		class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "weft-fast-multipath"}}
		DeferCleanup(remove, class)

		claim := newClaim(ctx, newNamespace(ctx), "claim", class.Name)
		pod := runPod(ctx, claim, "writer", clientNode)
		volume := bound(ctx, claim)
		paths := func(ctx context.Context) ([]string, error) { return pathStates(ctx, clientNode, volume) }
		all := ConsistOf("rdma 4421 live", "tcp 4420 live", "tcp 4422 live")
		Eventually(ctx, paths).WithTimeout(time.Minute).WithPolling(time.Second).Should(all)
		// The kernel's default is to use one path: the loss of another would show nothing.
		on(ctx, clientNode, `
			for s in /sys/class/nvme-subsystem/nvme-subsys*; do
				case "$(cat $s/subsysnqn)" in '%s'*) echo round-robin > $s/iopolicy ;; esac
			done`, subsystemsOf(volume))
		acks := startWriter(ctx, pod)
		acks.goOn(ctx, 5, time.Minute)

		By("cut the network of two of its three paths")
		ends := []string{clientNode, storageNode}
		heal := func(ctx context.Context) {
			for _, node := range ends {
				on(ctx, node, healNVMe)
			}
		}
		DeferCleanup(heal)
		for _, node := range ends {
			on(ctx, node, cutNVMe, tcpPort)
		}
		written := acks.count()
		Eventually(ctx, paths).WithTimeout(time.Minute).WithPolling(time.Second).
			Should(ConsistOf("rdma 4421 connecting", "tcp 4420 connecting", "tcp 4422 live"))
		acks.goOn(ctx, written+5, time.Minute)
		event(ctx, pod, "PathLost: not all paths to its target are live")

		By("heal it")
		heal(ctx)
		Eventually(ctx, paths).WithTimeout(time.Minute).WithPolling(time.Second).Should(all)
		acks.goOnNow(ctx)
		acks.nothingLost(ctx, pod)
	}, SpecTimeout(10*time.Minute))
})

var _ = Describe("A volume whose target moves to another network", func() {
	It("is written on through the new address, without an error", full, func(ctx SpecContext) {
		target := &v1alpha1.NvmfTarget{}
		Expect(cluster.Get(ctx, client.ObjectKey{Name: Target}, target)).To(Succeed())
		DeferCleanup(transports, target.Spec.Transports)
		claim := newClaim(ctx, newNamespace(ctx), "claim", "weft-fast")
		pod := runPod(ctx, claim, "writer", clientNode)
		volume := bound(ctx, claim)
		paths := func(ctx context.Context) ([]string, error) { return pathStates(ctx, clientNode, volume) }
		Eventually(ctx, paths).WithTimeout(time.Minute).WithPolling(time.Second).Should(ConsistOf("tcp 4420 live"))
		acks := startWriter(ctx, pod)
		acks.goOn(ctx, 5, time.Minute)

		transports(ctx, []v1alpha1.Transport{{
			Type: v1alpha1.TransportTCP, Port: secondPort, Network: &v1alpha1.Network{Interface: secondInterface},
		}})
		By("lose the former address")
		ends := []string{clientNode, storageNode}
		DeferCleanup(func(ctx context.Context) {
			for _, node := range ends {
				on(ctx, node, healNVMe)
			}
		})
		for _, node := range ends {
			on(ctx, node, cutNVMe, tcpPort)
		}
		Eventually(ctx, paths).WithTimeout(2 * time.Minute).WithPolling(time.Second).Should(ConsistOf("tcp 4420 connecting", "tcp 4422 live"))
		acks.goOnNow(ctx)
		acks.nothingLost(ctx, pod)
	}, SpecTimeout(10*time.Minute))
})
