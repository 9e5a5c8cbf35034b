// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
)

// inSync are the replicas of a volume that its mirror's record lists as in sync.
func inSync(ctx context.Context, volume *v1alpha1.NvmfVolume) []string {
	GinkgoHelper()
	var m v1alpha1.NvmfMirror
	Expect(cluster.Get(ctx, client.ObjectKeyFromObject(volume), &m)).To(Succeed())
	return mirror.InSync(m.Spec)
}

// replicaData is the checksum of a replica's data, behind its header, as the pool of its node stores it.
func replicaData(ctx context.Context, member v1alpha1.VolumeMember) string {
	GinkgoHelper()
	return on(ctx, member.Node, `echo 3 > /proc/sys/vm/drop_caches; tail -c +%d %s | sha256sum | cut -d" " -f1`, v1alpha1.HeaderBytes+1, replicaFile(ctx, member))
}

// replicated is a volume with two replicas that a pod writes to.
type replicated struct {
	claim  *corev1.PersistentVolumeClaim
	volume *v1alpha1.NvmfVolume
	pod    *corev1.Pod
	acks   *acknowledgements
}

// onTwo is a volume with two replicas of a target that every node has. name is that of the target, and with "weft-" in
// front, of its class.
func onTwo(ctx context.Context, name string, options ...func(*v1alpha1.NvmfTarget)) *replicated {
	GinkgoHelper()
	target := everywhere(ctx, name, options...)
	newClass(ctx, "weft-"+name, map[string]string{"target": target.Name, "replicas": "2"})
	r := &replicated{claim: newClaim(ctx, newNamespace(ctx), "claim", "weft-"+name)}
	r.volume = bound(ctx, r.claim)
	Expect(r.volume.Spec.Members).To(HaveLen(2))
	return r
}

// writtenOnTwo is a volume whose two replicas are in sync on storageNode and clientNode, and a pod on clientNode that
// writes to it. The other arguments are those of onTwo.
func writtenOnTwo(ctx context.Context, name string, options ...func(*v1alpha1.NvmfTarget)) *replicated {
	GinkgoHelper()
	r := onTwo(ctx, name, options...)
	r.writtenBy(ctx, "writer", clientNode)
	return r
}

// writtenBy a new pod on a node, with both replicas in sync.
func (r *replicated) writtenBy(ctx context.Context, pod, node string) {
	GinkgoHelper()
	r.pod = runPod(ctx, r.claim, pod, node)
	r.whole(ctx)
	r.acks = startWriter(ctx, r.pod)
	r.acks.goOn(ctx, 10, time.Minute)
}

// on is the replica on a node.
func (r *replicated) on(node string) v1alpha1.VolumeMember {
	GinkgoHelper()
	i := slices.IndexFunc(r.volume.Spec.Members, func(m v1alpha1.VolumeMember) bool { return m.Node == node })
	Expect(i).To(BeNumerically(">=", 0), "no replica on %s", node)
	return r.volume.Spec.Members[i]
}

// loses waits until the record has the replica of a node not in sync any more.
func (r *replicated) loses(ctx context.Context, node string) {
	GinkgoHelper()
	Eventually(ctx, func(ctx context.Context) []string { return inSync(ctx, r.volume) }).
		WithTimeout(time.Minute).WithPolling(200 * time.Millisecond).Should(And(HaveLen(1), Not(ContainElement(r.on(node).Name))))
}

// whole waits until all replicas are in sync.
func (r *replicated) whole(ctx context.Context) {
	GinkgoHelper()
	Eventually(ctx, func(ctx context.Context) []string { return inSync(ctx, r.volume) }).
		WithTimeout(5 * time.Minute).WithPolling(time.Second).Should(HaveLen(2))
}

// stamped waits until the headers of all replicas have what the record has: from then on nothing is written to them.
func (r *replicated) stamped(ctx context.Context) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega, ctx context.Context) {
		for _, member := range r.volume.Spec.Members {
			m, _ := mirror.Get(record(ctx, r.volume), member.Name)
			g.Expect(m.Marks).NotTo(BeEmpty())
			g.Expect(on(ctx, member.Node, `dd if=$(ls /var/lib/weft/pools/*/volumes/%s) bs=8192 count=1 iflag=direct 2>/dev/null | grep -a -c -e %s || true`,
				member.UUID, m.Marks[len(m.Marks)-1])).NotTo(Equal("0"))
		}
	}).WithTimeout(time.Minute).WithPolling(time.Second).Should(Succeed())
}

// same ends the pod, and checks that both replicas have the same data, in which everything acknowledged is.
func (r *replicated) same(ctx context.Context) {
	GinkgoHelper()
	r.acks.nothingLost(ctx, r.pod)
	r.equal(ctx, r.pod)
	r.pod = runPod(ctx, r.claim, "reader", storageNode)
	r.acks.nothingLost(ctx, r.pod)
}

// equal data on both replicas, once the pod that uses them has ended.
func (r *replicated) equal(ctx context.Context, pod *corev1.Pod) {
	GinkgoHelper()
	remove(ctx, pod)
	detached(ctx, r.volume)
	Expect(replicaData(ctx, r.volume.Spec.Members[0])).To(Equal(replicaData(ctx, r.volume.Spec.Members[1])))
}

// byBitmap is what an Event of the claim says of a replica that does not get a full copy.
const byBitmap = "returns: it gets what was written meanwhile"

// What holds writes up when a replica stops answering (docs/concepts/replicas.md): the kernel notices a silent target
// within noticeBound, then the replica may be away for the grace, then its loss is recorded, and the kernel disconnects
// it. All together takes pauseBound at most.
const (
	noticeBound = 5 * time.Second
	grace       = 5 * time.Second
	pauseBound  = 11 * time.Second
	// slow is what recording the loss may take longer on emulated machines, beside others; and the 3 s of the next
	// attempt to connect, if it has begun by then.
	slow = 6 * time.Second
)

// pausedFor checks the pause of writes since acknowledgement n, after a replica stopped answering, and its parts, from
// what the kernel of the pod's node said when.
func (r *replicated) pausedFor(ctx context.Context, n int, what string) {
	GinkgoHelper()
	pause, since := r.acks.pause(what, n)
	said := on(ctx, r.pod.Spec.NodeName, `dmesg | grep -E 'starting error recovery|Removing ctrl'`)
	noticed := saidSince(said, "starting error recovery", since)
	givenUp := saidSince(said, "Removing ctrl", noticed)
	AddReportEntry("parts of the pause", fmt.Sprintf("noticed after %s, given up %s later, over %s later", noticed-since, givenUp-noticed, since+pause-givenUp),
		ReportEntryVisibilityAlways)
	Expect(noticed - since).To(BeNumerically("<", noticeBound))
	Expect(givenUp - noticed).To(BeNumerically(">=", grace))
	Expect(pause).To(BeNumerically("<=", pauseBound+slow))
}

// saidSince is when a kernel first said a text since a time, both since its start, from what dmesg printed.
func saidSince(printed, text string, since time.Duration) time.Duration {
	GinkgoHelper()
	for line := range strings.Lines(printed) {
		var seconds float64
		if _, err := fmt.Sscanf(line, "[%f]", &seconds); err != nil || !strings.Contains(line, text) {
			continue
		}
		if at := time.Duration(seconds * float64(time.Second)); at >= since {
			return at
		}
	}
	Fail(fmt.Sprintf("the kernel said no %q since %s:\n%s", text, since, printed))
	return 0
}

// goesOnWithout a node that stores a replica, and has the replica in sync again once the node is back.
func (r *replicated) goesOnWithout(ctx context.Context, node string) {
	GinkgoHelper()
	r.acks.goOnNow(ctx)

	By("powering off " + node + ", which stores one replica")
	ended := weftContainers(ctx, node)
	off := r.acks.count()
	Expect(machines.PowerOff(node)).To(Succeed())
	DeferCleanup(func(ctx context.Context) { Expect(machines.PowerOn(node)).To(Succeed()) })
	r.loses(ctx, node)
	r.acks.goOnNow(ctx)
	r.pausedFor(ctx, off, "after "+node+" lost its power")

	By("powering it on")
	Expect(machines.PowerOn(node)).To(Succeed())
	nodesReady(ctx)
	weftReady(ctx, ended)
	r.whole(ctx)
	event(ctx, r.claim, "the replica on node "+node+" "+byBitmap)
}

// thirdOf three nodes is the one that stores no replica of the volume.
func (r *replicated) thirdOf() string {
	GinkgoHelper()
	Expect(len(nodes)).To(BeNumerically(">=", 3), "start the lab with NODES=3")
	return slices.DeleteFunc(slices.Clone(nodes), func(node string) bool {
		return slices.ContainsFunc(r.volume.Spec.Members, func(m v1alpha1.VolumeMember) bool { return m.Node == node })
	})[0]
}

// replacedAfterAMinute is a replica of the volume that is lost.
func (r *replicated) replacedAfterAMinute(ctx context.Context) {
	GinkgoHelper()
	Eventually(ctx, func(ctx context.Context) error {
		if err := cluster.Get(ctx, client.ObjectKeyFromObject(r.volume), r.volume); err != nil {
			return err
		}
		r.volume.Spec.ReplaceLostReplicaAfterMinutes = 1
		return cluster.Update(ctx, r.volume)
	}).Should(Succeed())
}

var _ = Describe("A volume with two replicas", func() {
	It("goes on without a node that serves one, takes it back, and has both equal in the end", full, func(ctx SpecContext) {
		r := writtenOnTwo(ctx, "two")
		r.goesOnWithout(ctx, storageNode)
		r.same(ctx)
	}, SpecTimeout(25*time.Minute))

	It("goes on without either of its nodes, one after the other, under a pod on a third, and has both equal after each", full, thirdNode, func(ctx SpecContext) {
		r := onTwo(ctx, "third")
		without := r.thirdOf()
		for _, member := range r.volume.Spec.Members {
			r.writtenBy(ctx, "writer-"+member.Node, without)
			r.goesOnWithout(ctx, member.Node)
			r.same(ctx)
			remove(ctx, r.pod)
		}
	}, SpecTimeout(40*time.Minute))

	It("gets a new replica on a third node when one of its nodes stays off, which has nothing of it left once it is back", full, thirdNode, func(ctx SpecContext) {
		r := onTwo(ctx, "replaced")
		third := r.thirdOf()
		stays, lost := r.volume.Spec.Members[0], r.volume.Spec.Members[1]
		r.replacedAfterAMinute(ctx)
		r.writtenBy(ctx, "writer", third)
		file := replicaFile(ctx, lost)

		By("powering off " + lost.Node)
		ended := weftContainers(ctx, lost.Node)
		off := r.acks.count()
		DeferCleanup(func(ctx context.Context) { Expect(machines.PowerOn(lost.Node)).To(Succeed()) })
		Expect(machines.PowerOff(lost.Node)).To(Succeed())
		r.loses(ctx, lost.Node)
		r.acks.goOnNow(ctx)
		// The operator finds the agent silent, the CSI controller sees that within a minute, and waits for another.
		eventWithin(ctx, r.claim, "the replica on node "+lost.Node+" is lost, and is replaced by a new one", 5*time.Minute)
		Eventually(ctx, func(g Gomega, ctx context.Context) {
			g.Expect(cluster.Get(ctx, client.ObjectKeyFromObject(r.volume), r.volume)).To(Succeed())
			g.Expect(r.volume.Spec.Move).To(BeNil())
			g.Expect(r.volume.Spec.Members).To(HaveLen(2))
			g.Expect(r.volume.Spec.Members[0].Name).To(Equal(stays.Name))
			g.Expect(r.volume.Spec.Members[1].Node).To(Equal(third))
		}).WithTimeout(10 * time.Minute).WithPolling(time.Second).Should(Succeed())
		Expect(inSync(ctx, r.volume)).To(HaveLen(2))
		r.acks.goOnNow(ctx)
		r.acks.pause("while a lost replica was replaced", off)

		By("powering it on")
		Expect(machines.PowerOn(lost.Node)).To(Succeed())
		nodesReady(ctx)
		weftReady(ctx, ended)
		Eventually(ctx, func(ctx context.Context) bool {
			return apierrors.IsNotFound(cluster.Get(ctx, client.ObjectKey{Name: lost.Name}, &v1alpha1.NvmfReplica{}))
		}).WithTimeout(2*time.Minute).WithPolling(time.Second).Should(BeTrue(), "the former replica is deleted")
		Eventually(ctx, func(ctx context.Context) (string, error) {
			return tryOn(ctx, lost.Node, `ls %s 2>/dev/null || true`, file)
		}).
			WithTimeout(2 * time.Minute).WithPolling(time.Second).Should(BeEmpty())
		r.same(ctx)
	}, SpecTimeout(30*time.Minute))
})

// move the only replica of a volume to a node, and wait until it is there, and only there.
func move(ctx context.Context, volume *v1alpha1.NvmfVolume, node string) {
	GinkgoHelper()
	key := client.ObjectKeyFromObject(volume)
	former := volume.Spec.Members[0]
	Eventually(ctx, func(ctx context.Context) error {
		if err := cluster.Get(ctx, key, volume); err != nil {
			return err
		}
		volume.Spec.Move = &v1alpha1.VolumeMove{Replica: former.Name, Node: node}
		return cluster.Update(ctx, volume)
	}).Should(Succeed())
	Eventually(ctx, func(g Gomega, ctx context.Context) {
		g.Expect(cluster.Get(ctx, key, volume)).To(Succeed())
		g.Expect(volume.Spec.Move).To(BeNil())
		g.Expect(volume.Spec.Members).To(HaveLen(1))
	}).WithTimeout(5 * time.Minute).WithPolling(time.Second).Should(Succeed())
	Expect(volume.Spec.Members[0].Node).To(Equal(node))
	Eventually(ctx, func(ctx context.Context) bool {
		return apierrors.IsNotFound(cluster.Get(ctx, client.ObjectKey{Name: former.Name}, &v1alpha1.NvmfReplica{}))
	}).WithTimeout(2*time.Minute).WithPolling(time.Second).Should(BeTrue(), "the former replica is deleted")
}

// roundTripsVariable names the environment variable with how often a written volume moves to another node and back;
// once if it is not set.
const roundTripsVariable = "WEFT_ROUND_TRIPS"

func roundTrips() int {
	GinkgoHelper()
	text := os.Getenv(roundTripsVariable)
	if text == "" {
		return 1
	}
	n, err := strconv.Atoi(text)
	Expect(err).NotTo(HaveOccurred(), roundTripsVariable)
	Expect(n).To(BeNumerically(">", 0), roundTripsVariable)
	return n
}

// ioErrors counts what a node's kernel says of I/O that failed.
func ioErrors(ctx context.Context, node string) string {
	GinkgoHelper()
	return on(ctx, node, `dmesg | grep -c -E 'I/O error|EXT4-fs (error|warning)|Buffer I/O' || true`)
}

var _ = Describe("A volume with one replica", func() {
	It("moves to another node and back while a pod writes to it, and when no pod uses it", full, func(ctx SpecContext) {
		target := everywhere(ctx, "moving")
		newClass(ctx, "weft-moving", map[string]string{"target": target.Name})
		claim := newClaim(ctx, newNamespace(ctx), "claim", "weft-moving")
		pod := runPod(ctx, claim, "writer", clientNode)
		volume := bound(ctx, claim)
		there, back := nodes[0], volume.Spec.Members[0].Node
		if there == back {
			there = nodes[1]
		}
		sum := fill(ctx, pod)
		errors := ioErrors(ctx, clientNode)
		acks := startWriter(ctx, pod)
		acks.goOn(ctx, 50, time.Minute)
		for trip := range roundTrips() {
			for _, node := range []string{there, back} {
				By(fmt.Sprintf("moving it to %s, trip %d", node, trip+1))
				before := acks.count()
				move(ctx, volume, node)
				Expect(inSync(ctx, volume)).To(Equal([]string{volume.Spec.Members[0].Name}))
				acks.goOnNow(ctx)
				acks.pause("of a move to "+node, before)
			}
		}
		acks.pause("of all moves", 1)
		Expect(ioErrors(ctx, clientNode)).To(Equal(errors))
		acks.nothingLost(ctx, pod)
		on(ctx, clientNode, `echo 3 > /proc/sys/vm/drop_caches`)
		Expect(checksum(ctx, pod)).To(Equal(sum))

		By("moving it while no pod uses it")
		remove(ctx, pod)
		detached(ctx, volume)
		move(ctx, volume, there)

		By("reading it on the other node")
		pod = runPod(ctx, claim, "reader", storageNode)
		acks.nothingLost(ctx, pod)
		Expect(checksum(ctx, pod)).To(Equal(sum))
	}, SpecTimeout(90*time.Minute))
})
