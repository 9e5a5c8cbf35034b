// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/test/e2e/lab"
)

// extent of a file, in sectors of 512 bytes: where it is in the file, and where on the device.
type extent struct{ logical, physical, length int }

// filefrag tells of an extent so, after its number: first and last sector in the file, and on the device.
var fragment = regexp.MustCompile(`(?m)^ *\d+: *(\d+)\.\. *(\d+): *(\d+)\.\. *\d+:`)

// extentsOf a file, from what filefrag printed of it.
func extentsOf(printed string) []extent {
	var all []extent
	for _, found := range fragment.FindAllStringSubmatch(printed, -1) {
		first, last, at := number(found[1]), number(found[2]), number(found[3])
		all = append(all, extent{first, at, last - first + 1})
	}
	return all
}

// through gives where the extents of a file are on a device, if the file is on the filesystem in another file, which
// has these extents.
func through(outer, inner []extent) []extent {
	var all []extent
	for _, i := range inner {
		for _, o := range outer {
			from, to := max(i.physical, o.logical), min(i.physical+i.length, o.logical+o.length)
			if from < to {
				all = append(all, extent{i.logical + from - i.physical, o.physical + from - o.logical, to - from})
			}
		}
	}
	slices.SortFunc(all, func(a, b extent) int { return cmp.Compare(a.physical, b.physical) })
	return all
}

// tableOf a device mapper's device of these many sectors of a drive, of which the extents answer errors.
func tableOf(drive string, sectors int, errors []extent) string {
	var rows []string
	at := 0
	good := func(to int) {
		if to > at {
			rows = append(rows, fmt.Sprintf("%d %d linear %s %d", at, to-at, drive, at))
		}
	}
	for _, e := range errors {
		good(e.physical)
		rows = append(rows, fmt.Sprintf("%d %d error", e.physical, e.length))
		at = e.physical + e.length
	}
	good(sectors)
	return strings.Join(rows, "\n")
}

// drive of a node that can answer errors: the node's second one, behind a device mapper's device, with a filesystem for
// the file of a pool.
type drive struct {
	node, path string
	sectors    int
}

const (
	badDevice = "weft-bad"
	badFolder = "/var/lib/weft/bad"
	badPool   = badFolder + "/pool.img"
)

// newDrive makes a drive of a node that can answer errors, until the test ends. The other nodes have the folder alone.
func newDrive(ctx context.Context, node string) *drive {
	GinkgoHelper()
	d := &drive{node: node, path: "/dev/disk/by-id/" + lab.DriveID(node, 1)}
	d.sectors = number(on(ctx, node, `blockdev --getsz %s`, d.path))
	for _, n := range nodes {
		on(ctx, n, `mkdir -p %s`, badFolder)
		DeferCleanup(func(ctx context.Context) { on(ctx, n, `rmdir %s`, badFolder) })
	}
	on(ctx, node, `dmsetup create %[1]s --table '%[2]s' && mkfs.ext4 -q -F /dev/mapper/%[1]s && mount /dev/mapper/%[1]s %[3]s && rmdir %[3]s/lost+found`,
		badDevice, tableOf(d.path, d.sectors, nil), badFolder)
	DeferCleanup(func(ctx context.Context) {
		// Nobody closes a pool whose target is deleted.
		on(ctx, node, `umount '%[1]s' && rmdir '%[1]s' && losetup -d $(losetup -l -n -O NAME,BACK-FILE | grep %[2]s | cut -d' ' -f1)`,
			"/var/lib/weft/pools/"+url.PathEscape(badPool), badFolder)
		Eventually(ctx, tryOn).WithArguments(node, `umount %s`, badFolder).WithTimeout(time.Minute).WithPolling(time.Second).Should(BeEmpty())
		on(ctx, node, `dmsetup remove --retry %s && wipefs -q -a %s`, badDevice, d.path)
	})
	return d
}

// pool makes a target keep its pool there.
func (d *drive) pool(target *v1alpha1.NvmfTarget) {
	target.Spec.Devices.File.Path = badPool
}

// fails lets the drive answer errors where the data of a replica is; the filesystems that it is in go on.
func (d *drive) fails(ctx context.Context, replica v1alpha1.VolumeMember) {
	GinkgoHelper()
	frag := func(file string) []extent {
		return extentsOf(on(ctx, d.node, `sync; filefrag -b512 -v %s`, file))
	}
	errors := through(frag(badPool), frag(replicaFile(ctx, replica)))
	Expect(errors).NotTo(BeEmpty())
	d.table(ctx, tableOf(d.path, d.sectors, errors))
}

// works lets it answer no more errors.
func (d *drive) works(ctx context.Context) {
	GinkgoHelper()
	d.table(ctx, tableOf(d.path, d.sectors, nil))
}

func (d *drive) table(ctx context.Context, table string) {
	GinkgoHelper()
	on(ctx, d.node, "dmsetup load %[1]s <<'END' && dmsetup resume %[1]s\n%[2]s\nEND", badDevice, table)
}

var _ = Describe("A pod that writes to a volume with two replicas", func() {
	It("goes on when the drive of one answers errors, which then gets what it lacks once it works", full, func(ctx SpecContext) {
		bad := newDrive(ctx, storageNode)
		r := writtenOnTwo(ctx, "bad", bad.pool)
		r.acks.goOn(ctx, 50, time.Minute)

		By("letting the drive answer errors")
		before := r.acks.count()
		bad.fails(ctx, r.on(storageNode))
		DeferCleanup(bad.works)
		r.loses(ctx, storageNode)
		r.acks.goOnNow(ctx)
		r.acks.pause("after a drive answered errors", before)
		Consistently(ctx, func(ctx context.Context) []string { return inSync(ctx, r.volume) }).
			WithTimeout(20 * time.Second).WithPolling(time.Second).Should(HaveLen(1))

		By("letting it work again")
		bad.works(ctx)
		r.whole(ctx)
		event(ctx, r.claim, byBitmap)
		r.same(ctx)
	}, SpecTimeout(20*time.Minute))
})

func TestATableOfErrorsCoversAFileInAFile(t *testing.T) {
	RegisterTestingT(t)
	outer := extentsOf(`Filesystem type is: ef53
File size of pool.img is 1048576 (2048 blocks of 512 bytes)
 ext:     logical_offset:        physical_offset: length:   expected: flags:
   0:        0..     999:      10000..     10999:   1000:
   1:     1000..    2047:       5000..      6047:   1048:      11000: last,eof
pool.img: 2 extents found`)
	inner := extentsOf(`   0:        0..      99:        950..      1049:    100:             last,eof`)
	if want := []extent{{50, 5000, 50}, {0, 10950, 50}}; !slices.Equal(through(outer, inner), want) {
		t.Errorf("%v through %v is %v, not %v", inner, outer, through(outer, inner), want)
	}
	want := "0 5000 linear DRIVE 0\n5000 50 error\n5050 5900 linear DRIVE 5050\n10950 50 error\n11000 9000 linear DRIVE 11000"
	if table := tableOf("DRIVE", 20000, through(outer, inner)); table != want {
		t.Errorf("table\n%s\nnot\n%s", table, want)
	}
}
