// SPDX-License-Identifier: Apache-2.0

package nodetest

import (
	"context"
	"errors"
	"io"
	"path/filepath"

	"k8s.io/utils/clock"
	utilexec "k8s.io/utils/exec"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/csi-driver/node"
	"github.com/weft-storage/weft/csi-driver/node/internal/doing"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics/own"
	"github.com/weft-storage/weft/csi-driver/node/internal/filesystem"
	"github.com/weft-storage/weft/csi-driver/node/internal/mapper"
	"github.com/weft-storage/weft/csi-driver/node/internal/md"
)

// How the node plugin reports on its Node what its kernel does not finish, or lacks.
type (
	// ConditionWriter writes one condition and its Events.
	ConditionWriter = node.ConditionWriter
	// StuckReporter writes the condition and its Events.
	StuckReporter = node.Reporter
	// HeldUpError is what it reports.
	HeldUpError = fabrics.HeldUpError
	// Controller is one that may be deleted.
	Controller = own.Controller
	// Step is what a kernel is at.
	Step = doing.Step
)

// DeviceMapper of a kernel, and what it is given.
type (
	DeviceMapper = mapper.Control
	// Table of a device.
	Table = mapper.Table
	// MappedDevice is one that was made.
	MappedDevice = mapper.Device
)

// Config of a node plugin on a Kernel.
type Config struct {
	// Node and UID are the name and the UID of the Kubernetes Node.
	Node, UID string
	// Root of the Kernel.
	Root string
	// Records is the folder where the plugin writes down what volumes were staged with.
	Records string
	// Kernel is the one of Root, or a wrapper of it.
	Kernel fabrics.Kernel
	// Mounter is that of the Kernel, or a wrapper of it.
	Mounter filesystem.Mounter
	// DeviceMapper is that of the Kernel, or a wrapper of it.
	DeviceMapper DeviceMapper
	// Programs that are run; see Programs.
	Programs utilexec.Interface
	// Mirrors of the Kernel, or a wrapper of them.
	Mirrors md.Mirrors
	// Processes of the machine; nil for none.
	Processes node.Processes
	// Volumes as the API server has them.
	Volumes client.Reader
	// MirrorRecords as the API server has them; nil for none.
	MirrorRecords node.MirrorRecords
	// Events of the Kernel; nil for none.
	Events func() (io.ReadCloser, error)
	// Clock by which the kernel is held up, or overdue; nil for the machine's.
	Clock clock.PassiveClock
}

// NewService makes the node service of a process. Every portal can be reached, and the kernel has all its modules.
func NewService(c Config) *node.Service {
	fs := &filesystem.Host{
		Mounter: c.Mounter, Exec: c.Programs, Open: c.Kernel.Open, MountInfo: mountInfo(c.Root), Sys: filepath.Join(c.Root, "sys"), PBKDFMemoryKiB: 32,
	}
	initiator := fabrics.New(fabrics.Config{
		Root: c.Root, Kernel: c.Kernel, Clock: c.Clock,
		LoadModule: func(context.Context, string) error { return errors.New("no module is missing") },
		Reachable:  func(context.Context, string) error { return nil },
		MountsOf:   fs.MountsOf,
		Events:     c.Events,
	})
	devices := &mapper.Host{Root: c.Root, Control: c.DeviceMapper, LoadModule: initiator.LoadModule, OpenDevice: c.Kernel.Open}
	return &node.Service{
		NodeName: c.Node, NodeUID: func(context.Context) (string, error) { return c.UID, nil }, MaxVolumes: node.DefaultMaxVolumes,
		Initiator: initiator, Mapper: devices, Filesystems: fs, Records: c.Records, Clock: c.Clock, Volumes: c.Volumes,
		Mirrors: c.Mirrors, Processes: c.Processes, MirrorRecords: c.MirrorRecords,
	}
}
