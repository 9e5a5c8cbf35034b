// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
)

// record of a volume's mirror.
func record(ctx context.Context, volume *v1alpha1.NvmfVolume) mirror.Record {
	GinkgoHelper()
	var m v1alpha1.NvmfMirror
	Expect(cluster.Get(ctx, client.ObjectKeyFromObject(volume), &m)).To(Succeed())
	return m.Spec
}

// cut the network of a node, from which the test restores it at its end.
func cut(node string) {
	GinkgoHelper()
	DeferCleanup(func(ctx context.Context) {
		Expect(machines.RestoreNetwork(node)).To(Succeed())
		nodesReady(ctx)
		weftReady(ctx, nil)
	})
	Expect(machines.CutNetwork(node)).To(Succeed())
}

// legStates of a replica on the node that uses its volume, one for each controller, from what the kernel shows.
func legStates(ctx context.Context, node string, member v1alpha1.VolumeMember) ([]string, error) {
	out, err := tryOn(ctx, node, `
		for c in /sys/class/nvme/nvme*; do
			case "$(cat $c/subsysnqn 2>/dev/null)" in '%s%s:'*) cat $c/state ;; esac
		done`, v1alpha1.NQNPrefix, member.Name)
	return lines(out), err
}

// copies counts how often the mirrors of a node have begun to copy to a member, or to make members equal.
func copies(ctx context.Context, node string) string {
	GinkgoHelper()
	return on(ctx, node, `dmesg | grep -c -E 'md: (recovery|resync) of RAID array' || true`)
}

var _ = Describe("A pod that writes to a volume with two replicas", func() {
	It("pauses for seconds when the network of a storage node is cut, which then gets what it lacks", full, func(ctx SpecContext) {
		r := writtenOnTwo(ctx, "cut")
		r.acks.goOn(ctx, 50, time.Minute)

		By("cutting the network")
		before := r.acks.count()
		cut(storageNode)
		r.loses(ctx, storageNode)
		r.acks.goOnNow(ctx)
		r.pausedFor(ctx, before, "after the network of a storage node was cut")

		By("restoring it")
		Expect(machines.RestoreNetwork(storageNode)).To(Succeed())
		r.whole(ctx)
		event(ctx, r.claim, byBitmap)
		r.same(ctx)
	}, SpecTimeout(20*time.Minute))

	It("goes on with both when a target is away for less than the grace, and nothing is copied", full, func(ctx SpecContext) {
		r := writtenOnTwo(ctx, "grace")
		before, copied := record(ctx, r.volume), copies(ctx, clientNode)
		n := r.acks.count()

		By("killing the agents, and taking the target away for a moment")
		kill(ctx, "agent")
		// The kernel's target ends the connections of what it does not serve. The host comes back after 2 s.
		Expect(on(ctx, storageNode, `
			for link in /sys/kernel/config/nvmet/ports/*/subsystems/%s%s:*; do
				of=/sys/kernel/config/nvmet/subsystems/${link##*/}
				rm "$link" && ln -s "$of" "$link" && echo away
			done`, v1alpha1.NQNPrefix, r.on(storageNode).Name)).To(ContainSubstring("away"))
		r.acks.goOnNow(ctx)
		pause, _ := r.acks.pause("when a target was away for a moment", n)
		Expect(pause).To(BeNumerically(">=", time.Second), "the target was not away")
		weftReady(ctx, nil)
		Eventually(ctx, legStates).WithArguments(clientNode, r.on(storageNode)).WithTimeout(time.Minute).WithPolling(time.Second).
			Should(ConsistOf("live"))
		after := record(ctx, r.volume)
		Expect(after.Epoch).To(Equal(before.Epoch), mirror.String(after))
		Expect(mirror.InSync(after)).To(HaveLen(2))
		Expect(copies(ctx, clientNode)).To(Equal(copied))
		r.same(ctx)
	}, SpecTimeout(20*time.Minute))

	It("finds everything acknowledged on another node after its own lost its power, once both replicas can be compared", full, func(ctx SpecContext) {
		r := writtenOnTwo(ctx, "writer")
		r.acks.goOn(ctx, 50, time.Minute)

		By("powering off the pod's node, which stores a replica as well")
		ended := weftContainers(ctx, clientNode)
		DeferCleanup(func(ctx context.Context) {
			Expect(machines.PowerOn(clientNode)).To(Succeed())
			outOfService(ctx, clientNode, false)
		})
		Expect(machines.PowerOff(clientNode)).To(Succeed())
		outOfService(ctx, clientNode, true)
		Expect(client.IgnoreNotFound(cluster.Delete(ctx, r.pod, client.GracePeriodSeconds(0)))).To(Succeed())
		pod := newPod(ctx, r.claim, "second", storageNode)
		eventWithin(ctx, pod, "declare one current", podTime)

		By("powering it on")
		Expect(machines.PowerOn(clientNode)).To(Succeed())
		outOfService(ctx, clientNode, false)
		nodesReady(ctx)
		weftReady(ctx, ended)
		r.pod = runningWithin(ctx, pod, 2*podTime)
		r.whole(ctx)
		r.same(ctx)
	}, SpecTimeout(25*time.Minute))

	It("finds everything acknowledged on another node while its own stays off, which stored no replica", full, thirdNode, func(ctx SpecContext) {
		r := onTwo(ctx, "away")
		without := r.thirdOf()
		r.writtenBy(ctx, "writer", without)
		r.acks.goOn(ctx, 50, time.Minute)

		By("powering off the pod's node, for good as far as the volume is concerned")
		ended := weftContainers(ctx, without)
		DeferCleanup(func(ctx context.Context) {
			Expect(machines.PowerOn(without)).To(Succeed())
			outOfService(ctx, without, false)
			nodesReady(ctx)
			weftReady(ctx, ended)
		})
		Expect(machines.PowerOff(without)).To(Succeed())
		outOfService(ctx, without, true)
		Expect(client.IgnoreNotFound(cluster.Delete(ctx, r.pod, client.GracePeriodSeconds(0)))).To(Succeed())
		r.pod = runningWithin(ctx, newPod(ctx, r.claim, "second", r.volume.Spec.Members[0].Node), 2*podTime)
		r.whole(ctx)
		r.acks.nothingLost(ctx, r.pod)
		r.equal(ctx, r.pod)
		r.pod = runPod(ctx, r.claim, "third", r.volume.Spec.Members[1].Node)
		r.acks.nothingLost(ctx, r.pod)
	}, SpecTimeout(25*time.Minute))

	It("waits while a replica is lost and the API server does not answer, and goes on when it does", full, func(ctx SpecContext) {
		r := writtenOnTwo(ctx, "frozen")
		before := r.acks.count()

		By("freezing the API server, and cutting the network of a storage node")
		cut(storageNode)
		DeferCleanup(machines.ThawAPI)
		Expect(machines.FreezeAPI(ctx)).To(Succeed())
		stalled := r.acks.stall(ctx, 3*pauseBound)
		Eventually(ctx, legStates).WithArguments(clientNode, r.on(storageNode)).Should(ConsistOf("connecting"))

		By("letting the API server go on")
		Expect(machines.ThawAPI()).To(Succeed())
		r.acks.goOn(ctx, stalled+10, 2*time.Minute)
		r.acks.pause("while the API server did not answer", before)
		r.loses(ctx, storageNode)

		By("restoring the network")
		Expect(machines.RestoreNetwork(storageNode)).To(Succeed())
		r.whole(ctx)
		r.same(ctx)
	}, SpecTimeout(20*time.Minute))

	It("goes on when the node plugin is killed as a replica is lost, and as it returns", full, func(ctx SpecContext) {
		r := writtenOnTwo(ctx, "killed")
		state := func(ctx context.Context) v1alpha1.MirrorMemberState {
			return mirror.StateOf(record(ctx, r.volume), r.on(storageNode).Name)
		}
		hangs := func(ctx context.Context) {
			Eventually(ctx, legStates).WithArguments(clientNode, r.on(storageNode)).WithTimeout(time.Minute).WithPolling(200 * time.Millisecond).
				Should(ConsistOf("connecting"))
		}
		recorded := func(ctx context.Context) { r.loses(ctx, storageNode) }
		connected := func(ctx context.Context) {
			Eventually(ctx, legStates).WithArguments(clientNode, r.on(storageNode)).WithTimeout(3 * time.Minute).WithPolling(200 * time.Millisecond).
				Should(ConsistOf("live"))
		}
		returning := func(ctx context.Context) {
			Eventually(ctx, state).WithTimeout(3 * time.Minute).WithPolling(100 * time.Millisecond).Should(Not(Equal(v1alpha1.MemberOut)))
		}
		for _, moments := range []struct {
			name       string
			lost, back func(context.Context)
		}{
			{"as the replica hangs, and as it is connected again", hangs, connected},
			{"as the replica is recorded out, and as it is recorded to return", recorded, returning},
		} {
			By("killing it " + moments.name)
			r.stamped(ctx) // a process that writes a header as the network goes does not end before that is back
			before := r.acks.count()
			cut(storageNode)
			moments.lost(ctx)
			killPlugin(ctx, clientNode)
			r.loses(ctx, storageNode)
			r.acks.goOnNow(ctx)
			// Copying takes a while.
			fill(ctx, r.pod)
			Expect(machines.RestoreNetwork(storageNode)).To(Succeed())
			moments.back(ctx)
			killPlugin(ctx, clientNode)
			r.acks.goOnNow(ctx)
			r.whole(ctx)
			r.acks.pause("when the node plugin is killed "+moments.name, before)
		}
		weftReady(ctx, nil)
		r.same(ctx)
	}, SpecTimeout(30*time.Minute))
})

// killPlugin kills the process of a node's node plugin. The kubelet starts it again.
func killPlugin(ctx context.Context, node string) {
	GinkgoHelper()
	on(ctx, node, `kill -9 $(grep -l -a -e '--kubelet-di[r]=' /proc/[0-9]*/cmdline | cut -d/ -f3)`)
}
