// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
)

var _ = Describe("Two nodes at once", func() {
	It("write to a block volume, and read the copy of a filesystem", full, func(ctx SpecContext) {
		ns := newNamespace(ctx)
		shared := newClaim(ctx, ns, "shared", "weft-fast", asBlock, withAccess(corev1.ReadWriteMany))
		source := newClaim(ctx, ns, "source", "weft-fast")
		writer := running(ctx, newPodOf(ctx, "writer", clientNode, source))
		sh(ctx, writer, `echo data >%s/data`, mountPath)
		remove(ctx, writer)
		detached(ctx, bound(ctx, source))
		read := newClaim(ctx, ns, "read", "weft-fast", fromClaim("source"), withAccess(corev1.ReadOnlyMany))

		one := newPodOf(ctx, "one", clientNode, shared, read)
		two := newPodOf(ctx, "two", storageNode, shared, read)
		running(ctx, one)
		running(ctx, two)
		for _, pod := range []*corev1.Pod{one, two} {
			Expect(sh(ctx, pod, `cat %s/data`, pathOf(mountPath, 1))).To(Equal("data"))
			Expect(sh(ctx, pod, `touch %s/new 2>&1 || true`, pathOf(mountPath, 1))).To(ContainSubstring("Read-only"))
		}
		// Whole blocks: the kernel's target has blocks of 4 KiB, and reads past the page cache come in nothing less.
		for i, pods := range [][2]*corev1.Pod{{one, two}, {two, one}} {
			line := fmt.Sprintf("from pod %d", i)
			sh(ctx, pods[0], `echo %s | dd of=%s bs=4096 seek=%d count=1 conv=sync,fsync status=none`, line, devicePath, i)
			Expect(sh(ctx, pods[1], `dd if=%s bs=4096 skip=%d count=1 iflag=direct status=none | head -n 1`, devicePath, i)).To(Equal(line))
		}
	}, SpecTimeout(10*time.Minute))
})
