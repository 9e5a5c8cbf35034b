// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/test/e2e/lab"
)

// carried are claims of the suite's cluster whose drives go to another one.
type carried struct {
	ns string
	// r has two replicas, of which that on the first node is older; mirrored is the checksum of what the other one has.
	r        *replicated
	mirrored string
	// plain has one replica, on node, and a snapshot. The checksums are of what both have.
	plain       *corev1.PersistentVolumeClaim
	volume      *v1alpha1.NvmfVolume
	node        string
	kept, later string
	snapshot    string
}

// selects makes a target select drives by their serial numbers.
func selects(ctx context.Context, target string, serials ...string) {
	GinkgoHelper()
	var byID []string
	for _, serial := range serials {
		byID = append(byID, "nvme-*_"+serial)
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"devices": map[string]any{"selector": map[string]any{"byID": byID}}}})
	Expect(err).NotTo(HaveOccurred())
	is := &v1alpha1.NvmfTarget{ObjectMeta: metav1.ObjectMeta{Name: target}}
	Expect(cluster.Patch(ctx, is, client.RawPatch(types.MergePatchType, patch))).To(Succeed())
}

// writtenToCarry are claims with data on a drive of each node, as the first cluster leaves them.
func writtenToCarry(ctx context.Context) *carried {
	GinkgoHelper()
	newSnapshotClass(ctx)
	selects(ctx, Target, lab.DriveSerial(storageNode, 0), lab.DriveSerial(clientNode, 0))
	Expect(cluster.LabelNode(ctx, clientNode, TargetLabel, Target)).To(Succeed())
	for _, node := range nodes {
		servedBy(ctx, node)
	}
	newClass(ctx, "weft-pair", map[string]string{"target": Target, "replicas": "2"})
	c := &carried{ns: newNamespace(ctx)}
	c.r = &replicated{claim: newClaim(ctx, c.ns, "claim", "weft-pair")}
	c.plain = newClaim(ctx, c.ns, "plain", "weft-fast-xfs", withSize(xfsSize))
	c.r.volume, c.volume = bound(ctx, c.r.claim), bound(ctx, c.plain)
	c.node = replicaOf(ctx, c.volume).Spec.Node
	writer := running(ctx, newPodOf(ctx, "writer", clientNode, c.r.claim, c.plain))
	c.r.whole(ctx)
	fill(ctx, writer)
	c.kept = fillAt(ctx, writer, pathOf(mountPath, 1))
	c.snapshot = newSnapshot(ctx, c.plain, "moment").GetName()
	c.later = fillAt(ctx, writer, pathOf(mountPath, 1))
	remove(ctx, writer)
	detached(ctx, c.r.volume)
	detached(ctx, c.volume)

	By("losing one of two replicas, which stays older")
	writer = runPod(ctx, c.r.claim, "second", clientNode)
	c.r.whole(ctx)
	Expect(machines.CutNetwork(storageNode)).To(Succeed())
	c.r.loses(ctx, storageNode)
	c.mirrored = fill(ctx, writer)
	remove(ctx, writer)
	detached(ctx, c.r.volume)
	return c
}

// carryDrives ends the cluster, and starts another one with other nodes. The first of them gets the drive of the former
// second one, and the second that of the first.
func carryDrives(ctx context.Context) {
	GinkgoHelper()
	for _, node := range nodes {
		Expect(machines.Shutdown(ctx, node)).To(Succeed())
	}
	names, drives := []string{"second1", "second2"}, map[string][]lab.Drive{}
	dir := filepath.Join(machines.Dir, "carried")
	for i, node := range nodes {
		drive, err := machines.TakeDrive(node, 0, dir)
		Expect(err).NotTo(HaveOccurred())
		drives[names[len(names)-1-i]] = []lab.Drive{drive}
	}
	machines.Close()
	Expect(lab.Down(ctx, machines.Dir)).To(Succeed())
	run, cluster, machines = nil, nil, nil
	started, err := StartWith(ctx, GinkgoWriter, lab.Options{Names: names, Carried: drives})
	Expect(err).NotTo(HaveOccurred())
	use(started)
	Expect(nodes).To(Equal(names))
}

// installAgain weft, in the second cluster, with a target on its own drives that both nodes serve.
func installAgain(ctx context.Context, target string) {
	GinkgoHelper()
	Expect(run.SnapshotAPI(ctx)).To(Succeed())
	Expect(run.LoadWeft(ctx)).To(Succeed())
	Expect(run.Install(ctx)).To(Succeed())
	newSnapshotClass(ctx)
	for _, node := range nodes {
		label(ctx, node, target)
	}
	t := tryOut(target, v1alpha1.TransportTCP)
	t.Spec.Devices = v1alpha1.Devices{Selector: &v1alpha1.DeviceSelector{ByID: []string{"nvme-*_weft-second*-0"}}}
	newTarget(ctx, t)
	for _, node := range nodes {
		servedBy(ctx, node)
	}
	newClass(ctx, "weft-fast-xfs", map[string]string{"target": target, "csi.storage.k8s.io/fstype": "xfs"})
	newClass(ctx, "weft-pair", map[string]string{"target": target, "replicas": "2"})
}

var _ = Describe("Drives put into nodes of another cluster", func() {
	const target = "second"
	It("have their claims there, with a snapshot and the newest replica of a mirror, beside a claim of the same name", full, secondCluster, func(ctx SpecContext) {
		c := writtenToCarry(ctx)
		serials := []string{lab.DriveSerial(storageNode, 0), lab.DriveSerial(clientNode, 0)}
		older, newest := 1, 0
		holder := map[string]int{storageNode: older, clientNode: newest}[c.node]

		By("shutting down the machines, and putting the drives into those of another cluster")
		carryDrives(ctx)
		installAgain(ctx, target)
		weft := kubectlWeft(ctx)
		lost := func(ctx context.Context, args ...string) (string, error) {
			out, err := weft(ctx, append([]string{"recover", "--lost"}, args...)...)
			AddReportEntry(fmt.Sprint("kubectl weft recover --lost ", args), out)
			return out, err
		}

		By("writing to a claim of the second cluster, which has the name of a carried one")
		DeferCleanup(nothingLeft)
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: c.ns}}
		Expect(cluster.Create(ctx, ns)).To(Succeed())
		DeferCleanup(remove, ns)
		own := newClaim(ctx, c.ns, "plain", "weft-fast-xfs", withSize(xfsSize))
		ownPod := runPod(ctx, own, "own", nodes[0])
		ownSum := fill(ctx, ownPod)

		By("recovering nothing while no target has the drives")
		Eventually(ctx, func(g Gomega, ctx context.Context) {
			out, err := weft(ctx, "recover", "--lost", "--all", "--claims")
			g.Expect(err).To(HaveOccurred(), out)
			for i, node := range nodes {
				g.Expect(out).To(ContainSubstring("node %s, drive %s has a pool that is not open", node, "nvme-QEMU_NVMe_Ctrl_"+serials[1-i]))
			}
		}).WithTimeout(podTime).WithPolling(time.Second).Should(Succeed())
		_, err := lost(ctx)
		Expect(err).NotTo(HaveOccurred())

		By("adding the drives to the target")
		selects(ctx, target, append(serials, lab.DriveSerial(nodes[0], 0), lab.DriveSerial(nodes[1], 0))...)
		counts := map[string]int{nodes[older]: 1, nodes[newest]: 1}
		counts[nodes[holder]] += 2
		described(ctx, counts)
		Eventually(ctx, func(g Gomega, ctx context.Context) {
			out, err := weft(ctx, "recover", "--lost", "-o", "json")
			g.Expect(err).NotTo(HaveOccurred(), out)
			var report struct{ Incomplete []string }
			g.Expect(json.Unmarshal([]byte(out), &report)).To(Succeed())
			g.Expect(report.Incomplete).To(BeEmpty())
		}).WithTimeout(podTime).WithPolling(time.Second).Should(Succeed())
		out, err := lost(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(out).To(MatchRegexp(`(?m)^%s/claim +nv/%s .*in doubt *$`, c.ns, c.r.volume.Name))
		Expect(out).To(MatchRegexp(`(?m)^%s/plain +nv/%s .*by name *$`, c.ns, c.volume.Name))

		By("recovering what no claim of the second cluster is in the way of, twice")
		for range 2 {
			out, err = lost(ctx, "--all", "--claims")
			Expect(err).To(HaveOccurred())
			Expect(out).To(MatchRegexp(`(?m)^left out, for the reasons above: nv/%s \(only by name\)$`, c.volume.Name))
		}
		out, err = lost(ctx, "nv/"+c.volume.Name)
		Expect(err).NotTo(HaveOccurred(), out)
		Expect(out).To(ContainSubstring("kubectl patch pv %s -p", c.volume.Name))
		c.suspected(ctx)
		declareRestored(ctx)
		becomes(ctx, c.volume.Spec.Members[0].Name, v1alpha1.ReasonAsExpected)
		described(ctx, map[string]int{nodes[0]: 0, nodes[1]: 0})

		By("giving the other one to a claim of another name")
		patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"claimRef":{"name":"carried"}}}`))
		Expect(cluster.Patch(ctx, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: c.volume.Name}}, patch)).To(Succeed())
		c.plain = newClaim(ctx, c.ns, "carried", "weft-fast-xfs", withSize(xfsSize), func(claim *corev1.PersistentVolumeClaim) {
			claim.Spec.VolumeName = c.volume.Name
		})
		Expect(bound(ctx, c.plain).Spec.UUID).To(Equal(c.volume.Spec.UUID))
		c.r.volume = bound(ctx, c.r.claim)
		for _, name := range []string{c.volume.Name, c.r.volume.Name} {
			noLongerRetained(ctx, name)
		}
		out, err = lost(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(out).To(ContainSubstring("no volumes or snapshots without objects were found"))

		By("reading everything on the node with the older replica")
		eventWithin(ctx, c.r.claim, "current: the replica on node "+nodes[newest]+". All others are filled", podTime)
		c.restores(ctx)
		c.reads(ctx, nodes[older])
		Expect(checksum(ctx, ownPod)).To(Equal(ownSum))
	}, SpecTimeout(60*time.Minute))
})

// suspected waits until all replicas have objects again, and their nodes, which have no records of them, suspect a
// restore.
func (c *carried) suspected(ctx context.Context) {
	GinkgoHelper()
	for _, member := range append(c.r.volume.Spec.Members, c.volume.Spec.Members...) {
		Eventually(ctx, func(ctx context.Context) ([]metav1.Condition, error) {
			var replica v1alpha1.NvmfReplica
			err := cluster.Get(ctx, client.ObjectKey{Name: member.Name}, &replica)
			return replica.Status.Conditions, client.IgnoreNotFound(err)
		}).WithTimeout(podTime).WithPolling(time.Second).Should(ContainElement(HaveField("Reason", v1alpha1.ReasonRestoreSuspected)))
	}
}

// restores the snapshot of the plain claim, in the second cluster.
func (c *carried) restores(ctx context.Context) {
	GinkgoHelper()
	snapshotOf(ctx, c.ns, c.snapshot)
	newClaim(ctx, c.ns, "restored", "weft-fast-xfs", fromSnapshot(c.snapshot), withSize(xfsSize))
}

// reads on a node what was written in the first cluster, and has both replicas equal in the end.
func (c *carried) reads(ctx context.Context, node string) {
	GinkgoHelper()
	restored := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: c.ns, Name: "restored"}}
	bound(ctx, restored)
	reader := running(ctx, newPodOf(ctx, "reader", node, c.r.claim, c.plain, restored))
	Expect(checksum(ctx, reader)).To(Equal(c.mirrored))
	Expect(checksumAt(ctx, reader, pathOf(mountPath, 1))).To(Equal(c.later))
	Expect(checksumAt(ctx, reader, pathOf(mountPath, 2))).To(Equal(c.kept))
	c.r.whole(ctx)
	c.r.equal(ctx, reader)
}
