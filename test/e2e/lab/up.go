// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/weft-storage/weft/test/e2e/internal/build"
	"github.com/weft-storage/weft/test/e2e/internal/nodeconfig"
)

var defaultRoute = netip.MustParsePrefix("0.0.0.0/0")

const (
	// shellTimeout bounds how long a node may take from power-on to a shell.
	shellTimeout = 3 * time.Minute
	pollPeriod   = 250 * time.Millisecond
)

// Options say what lab to make.
type Options struct {
	// Nodes is the number of virtual machines, 1 to 16. 0 means 2, or as many
	// as the running lab has.
	Nodes int
	// Names of the nodes, each of which has one. Without them, they are node1, node2, and so on.
	Names []string
	// Carried are drives that TakeDrive took out of another lab, by the name of the node that gets them beside its own.
	Carried map[string][]Drive
	// NoCluster leaves out Kubernetes: machines only.
	NoCluster bool
	// Weft puts the project's image on the disks of a new lab; it is built from
	// the programs in bin/, which have to be there.
	Weft bool
	// NoRDMA leaves out the nodes' soft RDMA device.
	NoRDMA bool
	// IOMMU gives each node one, behind which its drives are: for VFIO.
	IOMMU bool
	// MemoryMiB is the memory of each node; 0 means 1536.
	MemoryMiB int
}

const (
	defaultNodes     = 2
	defaultMemoryMiB = 1536
)

// Up makes the lab in dir, or, when it is there, starts again what is not
// running. It returns when all nodes answer and, with Kubernetes, are Ready. On
// failure it collects the logs and names their folder in the error.
func Up(ctx context.Context, dir string, b *build.Builder, opts Options) (*Lab, error) {
	l, err := at(dir)
	if err != nil {
		return nil, err
	}
	unlock, err := l.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := l.adopt(ctx, b, opts); err != nil {
		return nil, err
	}
	if err := l.bringUp(ctx, b.Progress); err != nil {
		return nil, l.explain(ctx, err)
	}
	unused, err := b.Cache.Prune(time.Now().Add(-keepUnused))
	if err != nil {
		return nil, err
	}
	if len(unused) > 0 {
		b.Progress.Note("removed from the cache, unused for %v: %v", keepUnused, unused)
	}
	return l, nil
}

// keepUnused is how long the cache keeps what no lab asked for: each change of
// the project's image makes a new node disk of half a gigabyte.
const keepUnused = 7 * 24 * time.Hour

// adopt takes over the lab that is there, or makes a new one. A lab that never
// came up is removed first.
func (l *Lab) adopt(ctx context.Context, b *build.Builder, opts Options) error {
	old, err := readState(l.statePath())
	switch {
	case errors.Is(err, ErrNotUp):
	case err != nil:
		return err
	case old.Complete:
		l.state = old
		return l.matches(opts)
	default:
		b.Progress.Note("removing what an interrupted start left")
	}
	l.state = old
	if err := l.down(ctx); err != nil {
		return fmt.Errorf("remove what an interrupted start left: %w", err)
	}
	return l.create(ctx, b, opts)
}

// matches reports how the running lab differs from what is asked for.
func (l *Lab) matches(opts Options) error {
	if opts.Nodes != 0 && opts.Nodes != len(l.state.Nodes) {
		return fmt.Errorf("the lab in %s has %d nodes, not %d; run `weft-lab down` first", l.Dir, len(l.state.Nodes), opts.Nodes)
	}
	if len(opts.Carried) > 0 || opts.Names != nil && !slices.Equal(opts.Names, l.state.Nodes) {
		return fmt.Errorf("the lab in %s has nodes %v, and gets no other names or drives while it is up; run `weft-lab down` first", l.Dir, l.state.Nodes)
	}
	if opts.NoCluster == l.state.Cluster {
		return fmt.Errorf("the lab in %s was started with another --no-cluster; run `weft-lab down` first", l.Dir)
	}
	if opts.IOMMU && !l.state.IOMMU {
		return fmt.Errorf("the lab in %s was started without --iommu; run `weft-lab down` first", l.Dir)
	}
	return nil
}

// create builds what is missing and writes down everything about a new lab.
// Nothing runs yet.
func (l *Lab) create(ctx context.Context, b *build.Builder, opts Options) error {
	if opts.Names != nil {
		opts.Nodes = len(opts.Names)
	}
	if opts.Nodes == 0 {
		opts.Nodes = defaultNodes
	}
	if opts.Nodes < 0 || opts.Nodes > maxNodes {
		return fmt.Errorf("--nodes %d: use 1 to %d", opts.Nodes, maxNodes)
	}
	if opts.MemoryMiB == 0 {
		opts.MemoryMiB = defaultMemoryMiB
	}
	used, err := hostRoutes()
	if err != nil {
		return err
	}
	slot, err := chooseSlot(l.id, used)
	if err != nil {
		return err
	}
	s := state{Slot: slot, Cluster: !opts.NoCluster, RDMA: !opts.NoRDMA, IOMMU: opts.IOMMU, MemoryMiB: opts.MemoryMiB}
	s.Nodes = opts.Names
	for i := len(s.Nodes); i < opts.Nodes; i++ {
		s.Nodes = append(s.Nodes, nodeName(i))
	}
	if s.Cluster {
		s.Machine, s.AssetsDir, err = b.Cluster(ctx)
		if err == nil && opts.Weft {
			s.Machine.Disk, err = l.diskWithWeft(ctx, b, s.Machine.Disk)
		}
	} else {
		s.Machine, err = b.VM(ctx)
	}
	if err != nil {
		return err
	}
	l.state = s
	if err := writeJSON(l.statePath(), s); err != nil {
		return err
	}
	if err := os.RemoveAll(l.path("logs")); err != nil {
		return err
	}
	for _, dir := range []string{l.ShareDir(), l.path("logs")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if s.Cluster {
		if err := l.prepareCluster(); err != nil {
			return err
		}
	}
	for i := range s.Nodes {
		if err := l.prepareNode(ctx, i); err != nil {
			return fmt.Errorf("prepare %s: %w", s.Nodes[i], err)
		}
	}
	return l.plugIn(opts.Carried)
}

// bringUp starts what is not running and waits until all of it works.
func (l *Lab) bringUp(ctx context.Context, progress *build.Progress) error {
	if err := l.ensureNetwork(); err != nil {
		return err
	}
	// Machines need longest, so they start first; their kubelets wait for the
	// API server.
	for _, node := range l.state.Nodes {
		if err := l.PowerOn(node); err != nil {
			return err
		}
	}
	if l.state.Cluster {
		if err := progress.Step("control plane", func() error { return l.startControlPlane(ctx) }); err != nil {
			return err
		}
	}
	err := progress.Step("nodes answer", func() error {
		for _, node := range l.state.Nodes {
			if err := l.WaitForShell(ctx, node); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if l.state.Cluster {
		if err := progress.Step("nodes Ready", func() error { return l.waitForNodes(ctx) }); err != nil {
			return err
		}
	}
	l.state.Complete = true
	return writeJSON(l.statePath(), l.state)
}

// WaitForShell waits until the node has booted and runs commands.
func (l *Lab) WaitForShell(ctx context.Context, node string) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, pollPeriod, shellTimeout, true, func(ctx context.Context) (bool, error) {
		on, err := l.Powered(node)
		if err != nil {
			return false, err
		}
		if !on {
			return false, fmt.Errorf("the virtual machine of %s ended; see %s", node, l.path("logs", "qemu-"+node+".log"))
		}
		_, last = l.Output(ctx, node, "test", "-e", nodeconfig.ReadyFile)
		return last == nil, nil
	})
	if ctx.Err() != nil {
		return fmt.Errorf("wait for %s to boot: %w", node, context.Cause(ctx))
	}
	if err != nil && last != nil {
		return fmt.Errorf("%s did not boot within %s (see %s): %w", node, shellTimeout, l.ConsoleLog(node), last)
	}
	return err
}
