// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/weft-storage/weft/dataplane/device"
)

// TestDisksOfTheKernel: where the kernel knows of no volatile cache there is nothing to do; an NVMe drive is told; of
// any other it is said.
func TestDisksOfTheKernel(t *testing.T) {
	for name, tt := range map[string]struct {
		disk, cache string
		partition   bool
		want        func(error) bool
	}{
		"no volatile cache":            {"sda", "write through", false, func(err error) bool { return err == nil }},
		"a partition of such a disk":   {"nvme0n1", "write through", true, func(err error) bool { return err == nil }},
		"a volatile cache":             {"sda", "write back", false, isVolatile},
		"of the disk of a partition":   {"sda", "write back", true, isVolatile},
		"an NVMe drive is told":        {"nvme0n1", "write back", false, wasAsked},
		"also through a partition":     {"nvme0n1", "write back", true, wasAsked},
		"a word of a kernel to come":   {"sda", "write around", false, func(err error) bool { return err != nil && !isVolatile(err) }},
		"no word at all, as no answer": {"sda", "", false, func(err error) bool { return err != nil && !isVolatile(err) }},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			root := t.TempDir()
			info := diskInSysfs(g, root, tt.disk, tt.partition, "write_cache", tt.cache)
			path := filepath.Join(root, "device") // a file, which answers no admin command
			g.Expect(os.WriteFile(path, nil, 0o600)).To(Succeed())
			e, err := New(Config{Socket: "spdk.sock", Root: root})
			g.Expect(err).NotTo(HaveOccurred())
			t.Cleanup(e.Close)
			err = (&session{Engine: e, ctx: t.Context()}).makeDiskDurable(path, info)
			g.Expect(tt.want(err)).To(BeTrue(), "%v", err)
		})
	}
}

func isVolatile(err error) bool { return errors.Is(err, device.ErrVolatile) }

func wasAsked(err error) bool { return errors.Is(err, unix.ENOTTY) }
