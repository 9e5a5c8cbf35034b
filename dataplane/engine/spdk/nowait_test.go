// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
)

// drops are the devices of which pages were dropped.
type drops struct {
	mu    sync.Mutex
	paths []string
	gone  string
}

func (d *drops) drop(path string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.paths = append(d.paths, path)
	if path == d.gone {
		return fmt.Errorf("open: %w", os.ErrNotExist)
	}
	return errors.New("this may pass")
}

// taken since the last time, sorted.
func (d *drops) taken() []string {
	synctest.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	paths := d.paths
	d.paths = nil
	slices.Sort(paths)
	return paths
}

// TestUncached devices have their pages dropped as long as they are there, and none are when there is none.
func TestUncached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		d := &drops{gone: "gone"}
		u := newUncached(d.drop)
		u.set(nil)
		g.Expect(d.taken()).To(BeEmpty())

		u.add([]string{"a"})
		g.Expect(d.taken()).To(Equal([]string{"a"}), "at once")
		u.add([]string{"gone", "a"})
		for range 2 {
			<-time.After(dropPause)
		}
		g.Expect(d.taken()).To(Equal([]string{"a", "a", "gone"}), "a device that is gone once only")

		u.set([]string{"b"})
		<-time.After(dropPause)
		g.Expect(d.taken()).To(Equal([]string{"b"}))
		u.set(nil)
		<-time.After(time.Minute)
		g.Expect(d.taken()).To(BeEmpty())

		u.add([]string{"c"})
		g.Expect(d.taken()).To(Equal([]string{"c"}), "it begins again")
		u.stop()
		u.stop()
		<-time.After(time.Minute)
		g.Expect(d.taken()).To(BeEmpty())
	})
}

// diskInSysfs, or a partition of it, with an attribute of its queue.
func diskInSysfs(g *WithT, root, name string, partition bool, attribute, value string) os.FileInfo {
	// Any device that is there can play: what counts is its number.
	info, err := os.Stat("/dev/null")
	g.Expect(err).NotTo(HaveOccurred())
	rdev := info.Sys().(*syscall.Stat_t).Rdev
	disk := filepath.Join(root, "sys/devices", name)
	for _, dir := range []string{filepath.Join(disk, "queue"), filepath.Join(disk, name+"p1"), filepath.Join(root, "sys/dev/block")} {
		g.Expect(os.MkdirAll(dir, 0o700)).To(Succeed())
	}
	g.Expect(os.WriteFile(filepath.Join(disk, "queue", attribute), []byte(value+"\n"), 0o600)).To(Succeed())
	to := "../../devices/" + name
	if partition {
		to += "/" + name + "p1"
	}
	g.Expect(os.Symlink(to, filepath.Join(root, "sys/dev/block", fmt.Sprintf("%d:%d", unix.Major(rdev), unix.Minor(rdev))))).To(Succeed())
	return info
}

// TestNowaitNeeds a device that takes at once what SPDK sends, with the blocks that make that little.
func TestNowaitNeeds(t *testing.T) {
	for name, tt := range map[string]struct {
		speaks    dialect
		kib       string
		partition bool
		bytes     int64
		refused   string
		block     uint32
	}{
		"enough":                         {speaks: dialects[len(dialects)-1], kib: "128", bytes: 64 << 20, block: 4096},
		"too little":                     {speaks: dialects[len(dialects)-1], kib: "127", bytes: 64 << 20, refused: " is 127 KiB, but SPDK before 26.01 requires 128"},
		"a partition":                    {speaks: dialects[len(dialects)-1], kib: "1280", partition: true, bytes: 64 << 20, block: 4096},
		"a partition of too little":      {speaks: dialects[len(dialects)-1], kib: "64", partition: true, bytes: 64 << 20, refused: " is 64 KiB, but SPDK before 26.01 requires 128"},
		"no multiple of 4096":            {speaks: dialects[len(dialects)-1], kib: "256", bytes: 64<<20 + 512},
		"no multiple of 4096, too tight": {speaks: dialects[len(dialects)-1], kib: "128", bytes: 64<<20 + 512, refused: "requires 132"},
		"a target that waits":            {speaks: dialects[0], kib: "1", bytes: 64 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			root := t.TempDir()
			info := diskInSysfs(g, root, "disk", tt.partition, "max_sectors_kb", tt.kib)
			g.Expect(os.WriteFile(filepath.Join(root, "device"), nil, 0o600)).To(Succeed())
			g.Expect(os.Truncate(filepath.Join(root, "device"), tt.bytes)).To(Succeed())

			e, err := New(Config{Socket: "spdk.sock", Root: root})
			g.Expect(err).NotTo(HaveOccurred())
			t.Cleanup(e.Close)
			e.life.version = &spdkrpc.Version{Fields: spdkrpc.VersionFields{Major: tt.speaks.since.year, Minor: tt.speaks.since.month}}
			s := &session{Engine: e, ctx: t.Context()}
			o := &opening{Device: engine.Device{ID: "d", Path: "/device"}}
			err = s.prepareNowait(o, info)
			if tt.refused != "" {
				g.Expect(err).To(MatchError(engine.ErrUnsupported))
				g.Expect(err).To(MatchError(ContainSubstring(tt.refused)))
			} else {
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(o.blockBytes).To(Equal(tt.block))
			}
			g.Expect(len(e.uncached.all()) > 0).To(Equal(tt.refused == "" && tt.speaks.nowait))
		})
	}
}
