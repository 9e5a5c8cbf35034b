// SPDX-License-Identifier: Apache-2.0

package nodetest

import (
	"context"
	"errors"
	"path/filepath"

	"k8s.io/mount-utils"
	"k8s.io/utils/clock"
	utilexec "k8s.io/utils/exec"

	"github.com/weft-storage/weft/csi-driver/node"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
	"github.com/weft-storage/weft/csi-driver/node/internal/filesystem"
	"github.com/weft-storage/weft/csi-driver/node/internal/stuck"
)

// How the node plugin reports on its Node what its kernel does not finish.
type (
	// StuckReport writes the condition and its Events.
	StuckReport = stuck.NodeReport
	// StuckError is what it reports.
	StuckError = stuck.Error
)

// Config of a node plugin on a Kernel.
type Config struct {
	// UID of the Kubernetes Node.
	UID string
	// Root of the Kernel.
	Root string
	// Records is the folder where the plugin writes down what volumes were staged with.
	Records string
	// Kernel is the one of Root, or a wrapper of it.
	Kernel fabrics.Kernel
	// Mounter is that of the Kernel, or a wrapper of it.
	Mounter mount.Interface
	// Programs that are run.
	Programs utilexec.Interface
	// Obstacle to staging; nil for a watch that was told of nothing.
	Obstacle node.Obstacle
}

// NewService makes the node service of a process. Every portal can be reached, and the kernel has all its modules.
func NewService(c Config) *node.Service {
	if c.Obstacle == nil {
		c.Obstacle = stuck.New(clock.RealClock{}, "/proc")
	}
	fs := &filesystem.Host{
		Mounter: c.Mounter, Exec: c.Programs, Open: c.Kernel.Open, MountInfo: mountInfo(c.Root), Sys: filepath.Join(c.Root, "sys"),
	}
	initiator := fabrics.New(fabrics.Config{
		Root: c.Root, UID: c.UID, Kernel: c.Kernel,
		LoadModule: func(context.Context, string) error { return errors.New("no module is missing") },
		Reachable:  func(context.Context, string) error { return nil },
		MountsOf:   func(ns fabrics.Namespace) ([]string, error) { return fs.MountsOf(ns.Device, ns.Name) },
	})
	return &node.Service{
		HostNQN: initiator.NQN, MaxVolumes: node.DefaultMaxVolumes, Initiator: initiator, Filesystems: fs, Records: c.Records, Obstacle: c.Obstacle,
	}
}
