// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"fmt"

	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
)

// release of SPDK, such as 26.05.
type release struct{ year, month int }

func (r release) String() string { return fmt.Sprintf("%02d.%02d", r.year, r.month) }

func (r release) before(other release) bool {
	return r.year < other.year || r.year == other.year && r.month < other.month
}

// dialect is what a release of SPDK understands. Older ones take no notice of what they do not know of a transport, and
// refuse it elsewhere.
type dialect struct {
	since release
	// oneCache: a transport has one number for its caches of small and of large buffers (buf_cache_size), and counts
	// the buffers that it may use (num_shared_buffers), which must be enough for the caches of all cores.
	oneCache bool
	// cannotMask: a transport cannot hide commands from hosts (masked_oncs), so discarding is refused command by
	// command.
	cannotMask bool
	// discardKiB: a subsystem's limit of what a host may discard at once is max_discard_size_kib, not dmrsl.
	discardKiB bool
	// hostsLinger: nvmf_subsystem_remove_host is answered before the host's connections are gone.
	hostsLinger bool
	// rdmaPolls: a target in interrupt mode cannot serve RDMA (26.01's changelog has that it can).
	rdmaPolls bool
	// hugepagesOnly: without hugepages a target refuses the transport RDMA, and NVMe drives that it would drive itself,
	// for it finds none of its memory registered (seen on 25.05, "No translation for ptr" and "spdk_vtophys failed";
	// 26.05 serves).
	hugepagesOnly bool
	// nowait: it asks the kernel not to wait for what a block device is asked, and takes no refusal for final; see
	// nowait.go.
	nowait bool
	// oneIostat: bdev_get_iostat takes the name of one bdev, not several.
	oneIostat bool
	// noBorders: nothing tells how long I/Os took but a histogram of some thousand numbers.
	noBorders bool
}

// dialects, the latest first. A newer release is taken for the latest one, and what it makes of it is read back.
var dialects = []dialect{
	{since: release{26, 5}},
	{since: release{26, 1}, oneCache: true, discardKiB: true, hostsLinger: true, noBorders: true},
	{since: release{25, 5}, oneCache: true, discardKiB: true, hostsLinger: true, cannotMask: true, rdmaPolls: true, hugepagesOnly: true, nowait: true, oneIostat: true, noBorders: true},
}

// dialectOf a target. Of an older one nobody has seen what it makes of weft's settings: it is refused.
func dialectOf(v spdkrpc.Version) (dialect, error) {
	is := release{v.Fields.Major, v.Fields.Minor}
	for _, d := range dialects {
		if !is.before(d.since) {
			return d, nil
		}
	}
	oldest, latest := dialects[len(dialects)-1].since, dialects[0].since
	return dialect{}, fmt.Errorf("%w: it is SPDK %s; use an image with SPDK %s or later, best %s", engine.ErrUnsupported, versionOf(v), oldest, latest)
}

// version of the target behind this connection.
func (s *session) version() (spdkrpc.Version, error) {
	if s.life.version == nil {
		v, err := spdkrpc.Call(s.ctx, s.conn, spdkrpc.SpdkGetVersion{})
		if err != nil {
			return v, mapError(err)
		}
		s.life.version = &v
	}
	return *s.life.version, nil
}

// dialect of the target behind this connection.
func (s *session) dialect() (dialect, error) {
	v, err := s.version()
	if err != nil {
		return dialect{}, err
	}
	return dialectOf(v)
}

// oneCache of a transport, where there is one number for both: the smaller, so that the pools have what is planned.
func oneCache(small, large uint32) uint32 { return max(1, min(small, large)) }

// refusedDiscardKiB is the least that can be said, and less than a block of 4 KiB: SPDK refuses each discard that is
// longer, and so each. Where blocks have 512 bytes two of them may be discarded, which frees no cluster.
const refusedDiscardKiB = 1

// hideDiscard from hosts, or refuse it: see the package's doc on old data.
func (d dialect) hideDiscard(req *spdkrpc.NvmfCreateSubsystem) {
	switch {
	case !d.discardKiB:
		req.MaxDiscardBlocks = new(uint32(0))
	case d.cannotMask:
		req.MaxDiscardKiB = new(uint64(refusedDiscardKiB))
	default:
		req.MaxDiscardKiB = new(uint64(0))
	}
}
