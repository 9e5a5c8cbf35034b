// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"fmt"
	"path"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// on runs a shell script on a node and returns what it printed.
func on(ctx context.Context, node, script string, args ...any) string {
	GinkgoHelper()
	out, err := tryOn(ctx, node, script, args...)
	Expect(err).NotTo(HaveOccurred())
	return out
}

// tryOn is on for scripts that may fail.
func tryOn(ctx context.Context, node, script string, args ...any) (string, error) {
	out, err := machines.Output(ctx, node, "sh", "-c", fmt.Sprintf(script, args...))
	return strings.TrimSpace(out), err
}

func lines(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == '\n' })
}

// controllers lists the NVMe over Fabrics controllers of a node as
// "transport address nqn".
func controllers(ctx context.Context, node string) []string {
	GinkgoHelper()
	return lines(on(ctx, node, `
		for c in /sys/class/nvme/nvme*; do
			t=$(cat $c/transport 2>/dev/null) || continue
			[ "$t" = pcie ] || echo "$t $(cat $c/address) $(cat $c/subsysnqn)"
		done`))
}

// subsystemsOf a volume's one replica have NQNs that begin so, whichever session they are for.
func subsystemsOf(volume *v1alpha1.NvmfVolume) string {
	GinkgoHelper()
	Expect(volume.Spec.Members).To(HaveLen(1))
	return v1alpha1.NQNPrefix + volume.Spec.Members[0].Name + ":"
}

// controllersOf are the controllers of a node that serve one volume.
func controllersOf(ctx context.Context, node string, volume *v1alpha1.NvmfVolume) []string {
	GinkgoHelper()
	var found []string
	for _, c := range controllers(ctx, node) {
		if strings.Contains(c, " "+subsystemsOf(volume)) {
			found = append(found, c)
		}
	}
	return found
}

// subsystems lists what the kernel's target of a node serves. Those without namespaces only refuse hosts that were
// dismissed.
func subsystems(ctx context.Context, node string) []string {
	GinkgoHelper()
	return lines(on(ctx, node, `cd /sys/kernel/config/nvmet/subsystems 2>/dev/null || exit 0; ls -d %s*/namespaces/* 2>/dev/null | cut -d/ -f1 | sort -u`, v1alpha1.NQNPrefix))
}

// poolFiles lists the replicas that lie in a node's pools.
func poolFiles(ctx context.Context, node string) []string {
	GinkgoHelper()
	return lines(on(ctx, node, `ls -d /var/lib/weft/pools/*/volumes/* 2>/dev/null || true`))
}

// forgetPools of earlier specs on nodes that were off since: nobody opens them again. What cannot be read may hold
// newer data, so that nothing would be recovered.
func forgetPools(ctx context.Context) {
	GinkgoHelper()
	for _, node := range nodes {
		on(ctx, node, `for d in /var/lib/weft/pools/*; do [ ! -d $d ] || mountpoint -q $d || rmdir $d; done`)
	}
}

// volumeFile is the file that holds a volume's one replica on its node.
func volumeFile(ctx context.Context, volume *v1alpha1.NvmfVolume) string {
	GinkgoHelper()
	Expect(volume.Spec.Members).To(HaveLen(1))
	return replicaFile(ctx, volume.Spec.Members[0])
}

// replicaFile is the file that holds a replica on its node.
func replicaFile(ctx context.Context, member v1alpha1.VolumeMember) string {
	GinkgoHelper()
	for _, f := range poolFiles(ctx, member.Node) {
		if path.Base(f) == member.UUID {
			return f
		}
	}
	Expect(poolFiles(ctx, member.Node)).To(ContainElement(ContainSubstring(member.UUID)))
	return ""
}
