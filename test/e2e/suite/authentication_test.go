// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// adminTimeout of a node's kernel: how long a host waits after some proofs that failed, 60 s by default.
const adminTimeout = "/sys/module/nvme_core/parameters/admin_timeout"

// login is what somebody needs to connect to a replica: who he is, what to, and the keys. A node's kernel shows root
// the keys of its controllers.
type login struct {
	host, subsystem, key, controllerKey string
	portal                              v1alpha1.Portal
}

// loginOf a volume with one replica, as the node that uses it has it.
func loginOf(ctx context.Context, node string, volume *v1alpha1.NvmfVolume) login {
	GinkgoHelper()
	found := loginsOf(ctx, node, subsystemsOf(volume))
	Expect(found).To(HaveLen(1), "one controller")
	replica := replicaOf(ctx, volume)
	Expect(replica.Status.Portals).NotTo(BeEmpty())
	found[0].portal = replica.Status.Portals[0]
	return found[0]
}

// loginsOf all subsystems whose NQN begins so, without portals, as the node that uses them has them.
func loginsOf(ctx context.Context, node, subsystems string) []login {
	GinkgoHelper()
	found := lines(on(ctx, node, `
		for c in /sys/class/nvme/nvme*; do
			case "$(cat $c/subsysnqn 2>/dev/null)" in '%s'*) ;; *) continue ;; esac
			cat $c/hostnqn $c/subsysnqn $c/dhchap_secret $c/dhchap_ctrl_secret
		done`, subsystems))
	var logins []login
	for is := range slices.Chunk(found, 4) {
		Expect(is).To(HaveLen(4), "controllers have both keys")
		logins = append(logins, login{host: is[0], subsystem: is[1], key: is[2], controllerKey: is[3]})
	}
	return logins
}

// rotations of a volume's keys: how many of its replicas are being rotated, with the next host admitted, and how many
// have been.
func rotations(ctx context.Context, g Gomega, volume *v1alpha1.NvmfVolume) (running, done int) {
	g.Expect(cluster.Get(ctx, client.ObjectKeyFromObject(volume), volume)).To(Succeed())
	for _, m := range volume.Spec.Members {
		var replica v1alpha1.NvmfReplica
		g.Expect(cluster.Get(ctx, client.ObjectKey{Name: m.Name}, &replica)).To(Succeed())
		g.Expect(replica.Spec.Hosts).NotTo(BeEmpty())
		switch latest := replica.Spec.Hosts[len(replica.Spec.Hosts)-1]; {
		case replica.Admitted(latest.NQN) == nil:
		case replica.Rotating():
			running++
		case latest.KeyRotation == volume.Spec.KeyRotation && len(replica.Status.Hosts) == 1:
			done++
		}
	}
	return running, done
}

// connects a node by what somebody has. A controller that was made is deleted again.
func (l login) connects(ctx context.Context, node string) error {
	keys := ""
	if l.key != "" {
		keys = ",dhchap_secret=" + l.key + ",dhchap_ctrl_secret=" + l.controllerKey
	}
	// The error that tryOn returns has the script in it, so it is not shown.
	out, err := tryOn(ctx, node, `
		exec 3<>/dev/nvme-fabrics
		echo 'transport=tcp,traddr=%s,trsvcid=%d,nqn=%s,hostnqn=%s,hostid=%s%s' >&3 2>/dev/null || exit 1
		read answer <&3
		instance=${answer#instance=}
		echo 1 > /sys/class/nvme/nvme${instance%%%%,*}/delete_controller`,
		l.portal.Address, l.portal.Port, l.subsystem, l.host, strings.TrimPrefix(l.host, v1alpha1.HostNQNPrefix), keys)
	if err != nil {
		return fmt.Errorf("not connected: %d bytes printed", len(out))
	}
	return nil
}

// secrets of a login, as they would be found in a text.
func (l login) secrets() []string {
	return []string{strings.Split(l.key, ":")[2], strings.Split(l.controllerKey, ":")[2]}
}

// requireAuthentication of the samples' target, until the spec ends.
func requireAuthentication(ctx context.Context) {
	GinkgoHelper()
	set := func(ctx context.Context, security *v1alpha1.Security) {
		target := &v1alpha1.NvmfTarget{}
		Expect(cluster.Get(ctx, client.ObjectKey{Name: Target}, target)).To(Succeed())
		before := target.DeepCopy()
		target.Spec.Security = security
		Expect(cluster.Patch(ctx, target, client.MergeFrom(before))).To(Succeed())
	}
	target := &v1alpha1.NvmfTarget{}
	Expect(cluster.Get(ctx, client.ObjectKey{Name: Target}, target)).To(Succeed())
	DeferCleanup(set, target.Spec.Security)
	set(ctx, &v1alpha1.Security{Authentication: v1alpha1.AuthenticationRequired})
	Eventually(ctx, func(g Gomega, ctx context.Context) {
		g.Expect(cluster.Get(ctx, client.ObjectKey{Name: Target}, target)).To(Succeed())
		c := meta.FindStatusCondition(target.Status.Conditions, v1alpha1.ConditionAuthenticationReady)
		g.Expect(c).To(HaveValue(And(HaveField("Reason", v1alpha1.ReasonAsExpected), HaveField("ObservedGeneration", target.Generation))))
	}).WithTimeout(time.Minute).WithPolling(time.Second).Should(Succeed())
}

var _ = Describe("An authenticated volume", func() {
	It("is used by its own node alone, whose keys nobody is told, and no earlier one of it", full, func(ctx SpecContext) {
		requireAuthentication(ctx)
		was := on(ctx, storageNode, "cat %[1]s; echo 5 > %[1]s", adminTimeout)
		DeferCleanup(func(ctx context.Context) { on(ctx, storageNode, "echo %s > %s", was, adminTimeout) })
		ns := newNamespace(ctx)
		claim, other := newClaim(ctx, ns, "claim", "weft-fast"), newClaim(ctx, ns, "other", "weft-fast")

		By("attach it while the agent is restarted")
		pod := newPodOf(ctx, "pod", clientNode, claim, other)
		kill(ctx, "agent")
		running(ctx, pod)
		sh(ctx, pod, `echo data >%s/data && sync`, mountPath)
		volume := bound(ctx, claim)
		own, others := loginOf(ctx, clientNode, volume), loginOf(ctx, clientNode, bound(ctx, other))
		Expect(replicaOf(ctx, volume).Status.Hosts).To(ConsistOf(HaveField("Keys", Not(BeEmpty()))))

		By("try the name without a key, with another volume's, and with a target that has another")
		wrong := map[string]login{"no key": own, "another volume's keys": own, "the target's proof": own}
		for name, l := range wrong {
			switch name {
			case "no key":
				l.key, l.controllerKey = "", ""
			case "another volume's keys":
				l.key, l.controllerKey = others.key, others.controllerKey
			default:
				l.controllerKey = others.controllerKey
			}
			Expect(l.connects(ctx, storageNode)).NotTo(Succeed(), name)
			Expect(controllersOf(ctx, storageNode, volume)).To(BeEmpty(), name)
		}
		// Else what was refused might have been refused for another reason.
		Expect(own.connects(ctx, storageNode)).To(Succeed())

		By("replay an attachment that has ended")
		remove(ctx, pod)
		detached(ctx, volume)
		pod = runPod(ctx, claim, "next", clientNode)
		now := loginOf(ctx, clientNode, volume)
		Expect(now.secrets()).NotTo(ContainElements(own.secrets()))
		Expect(own.connects(ctx, storageNode)).NotTo(Succeed())
		replayed := own
		replayed.subsystem = now.subsystem
		Expect(replayed.connects(ctx, storageNode)).NotTo(Succeed())
		Expect(sh(ctx, pod, `cat %s/data`, mountPath)).To(Equal("data"))

		nowhere(ctx, append(append(own.secrets(), others.secrets()...), now.secrets()...)...)
	}, SpecTimeout(20*time.Minute))

	It("gets new keys under a pod that writes, without an error, and its former ones are of no use", full, func(ctx SpecContext) {
		requireAuthentication(ctx)
		claim := newClaim(ctx, newNamespace(ctx), "claim", "weft-fast")
		pod := runPod(ctx, claim, "writer", clientNode)
		volume := bound(ctx, claim)
		former := loginOf(ctx, clientNode, volume)
		acks := startWriter(ctx, pod)
		acks.goOn(ctx, 5, time.Minute)
		errorsBefore := ioErrors(ctx, clientNode)

		n := acks.count()
		out, err := kubectlWeft(ctx)(ctx, "rotate", claim.Name, "-n", claim.Namespace, "--wait")
		Expect(err).NotTo(HaveOccurred(), "%s", out)
		acks.goOnNow(ctx)
		acks.pause("keys were rotated", n)
		next := loginOf(ctx, clientNode, volume)
		Expect(next.host).NotTo(Equal(former.host))
		Expect(next.subsystem).To(Equal(former.subsystem))
		Expect(next.secrets()).NotTo(ContainElements(former.secrets()))
		Expect(replicaOf(ctx, volume).Spec.Hosts).To(ConsistOf(HaveField("NQN", next.host)))
		Expect(former.connects(ctx, storageNode)).NotTo(Succeed())
		acks.goOnNow(ctx)
		acks.nothingLost(ctx, pod)
		Expect(ioErrors(ctx, clientNode)).To(Equal(errorsBefore))
		nowhere(ctx, append(former.secrets(), next.secrets()...)...)
	}, SpecTimeout(25*time.Minute))

	It("gets new keys on both replicas under a pod that writes, and its mirror does not notice", full, func(ctx SpecContext) {
		r := writtenOnTwo(ctx, "rotated", func(target *v1alpha1.NvmfTarget) {
			target.Spec.Security = &v1alpha1.Security{Authentication: v1alpha1.AuthenticationRequired}
		})
		subsystems := v1alpha1.NQNPrefix + r.volume.Name + "-"
		former, before := loginsOf(ctx, clientNode, subsystems), record(ctx, r.volume)
		Expect(former).To(HaveLen(2))
		errorsBefore, copied, n := ioErrors(ctx, clientNode), copies(ctx, clientNode), r.acks.count()
		out, err := kubectlWeft(ctx)(ctx, "rotate", r.claim.Name, "-n", r.claim.Namespace)
		Expect(err).NotTo(HaveOccurred(), "%s", out)
		for i := range former {
			By(fmt.Sprintf("rotating replica %d of 2, with a node plugin that is killed", i+1))
			Eventually(ctx, func(g Gomega, ctx context.Context) {
				running, done := rotations(ctx, g, r.volume)
				g.Expect([]int{running, done}).To(Equal([]int{1, i}), "one after the other")
			}).WithTimeout(3 * time.Minute).WithPolling(time.Second).Should(Succeed())
			killPlugin(ctx, clientNode) // the next one looks for new keys at once
			Eventually(ctx, func(g Gomega, ctx context.Context) {
				_, done := rotations(ctx, g, r.volume)
				g.Expect(done).To(Equal(i + 1))
			}).WithTimeout(5 * time.Minute).WithPolling(time.Second).Should(Succeed())
		}
		r.acks.goOnNow(ctx)
		r.acks.pause("keys of both replicas were rotated", n)
		next := loginsOf(ctx, clientNode, subsystems)
		Expect(next).To(HaveLen(2))
		var secrets []string
		for i := range former {
			Expect(slices.ContainsFunc(next, func(l login) bool { return l.host == former[i].host })).To(BeFalse(), "a former host")
			Expect(slices.ContainsFunc(next, func(l login) bool { return l.subsystem == former[i].subsystem })).To(BeTrue(), "the same subsystems")
			secrets = append(append(secrets, former[i].secrets()...), next[i].secrets()...)
		}
		Expect(slices.Compact(slices.Sorted(slices.Values(secrets)))).To(HaveLen(len(secrets)), "all keys differ")
		after := record(ctx, r.volume)
		for i, m := range before.Members {
			Expect(after.Members[i]).To(And(HaveField("State", v1alpha1.MemberInSync), HaveField("Identity", m.Identity), HaveField("Since", m.Since)))
		}
		Expect(copies(ctx, clientNode)).To(Equal(copied))
		Expect(ioErrors(ctx, clientNode)).To(Equal(errorsBefore))
		r.same(ctx)
		nowhere(ctx, secrets...)
	}, SpecTimeout(25*time.Minute))
})
