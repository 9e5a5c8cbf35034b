// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/device"
	"github.com/weft-storage/weft/dataplane/inventory"
	"github.com/weft-storage/weft/internal/cpus"
)

const mebibyte = 1 << 20

var pciAddress = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// Options of a start: what the node's plan says.
type Options struct {
	// Socket for JSON-RPC that nvmf_tgt opens, an absolute path. The launcher
	// owns its folder: only root may enter, and drives.json lies beside the socket.
	Socket string
	// CoreMask of the planned CPUs, hexadecimal such as 0x3c.
	CoreMask string
	// MemoryBytes that nvmf_tgt takes, a multiple of 1 MiB.
	MemoryBytes int64
	// Hugepages that hold it.
	Hugepages v1alpha1.Hugepages
	// Interrupt lets reactors sleep until there is work.
	Interrupt bool
	// Driver of the drives.
	Driver v1alpha1.DriveDriver
	// Drives that SPDK's own driver gets. Only with DriverVFIO and DriverUIO. Several may be planned at one address,
	// where one took another's place.
	Drives []PlannedDrive
	// Target is nvmf_tgt: a path, or a name that is looked up in PATH.
	Target string
}

// PlannedDrive is a drive, and where it was seen last.
type PlannedDrive struct {
	// Address on the PCI bus, such as 0000:5e:00.0.
	Address string
	// ID of the drive, as the node's inventory has it.
	ID string
}

// ParsePlannedDrive reads ADDRESS=ID. What either may be Options.Validate says.
func ParsePlannedDrive(text string) PlannedDrive {
	address, id, _ := strings.Cut(text, "=")
	return PlannedDrive{Address: address, ID: id}
}

// addresses of the planned drives, each once.
func (o Options) addresses() []string {
	var found []string
	for _, d := range o.Drives {
		if !slices.Contains(found, d.Address) {
			found = append(found, d.Address)
		}
	}
	return found
}

// planned are the IDs of the drives that are planned at an address.
func (o Options) planned(address string) []string {
	var ids []string
	for _, d := range o.Drives {
		if d.Address == address {
			ids = append(ids, d.ID)
		}
	}
	return ids
}

// Validate says what in the options cannot be meant, as a *RefusalError.
func (o Options) Validate() error {
	invalid := func(format string, args ...any) error {
		return refuse(v1alpha1.ReasonInvalidSetting, format, args...)
	}
	if !filepath.IsAbs(o.Socket) {
		return invalid("--socket is %q; must be an absolute path, such as /run/weft/spdk.sock", o.Socket)
	}
	if _, err := cpus.ParseMask(o.CoreMask); err != nil {
		return invalid("--core-mask: %v", err)
	}
	if o.MemoryBytes <= 0 || o.MemoryBytes%mebibyte != 0 {
		return invalid("--memory-bytes is %d; must be a multiple of 1048576", o.MemoryBytes)
	}
	if o.Hugepages != v1alpha1.HugepagesDisabled {
		size, ok := pageSizes[o.Hugepages]
		if !ok {
			return invalid("--hugepages is %q; must be 2Mi, 1Gi or Disabled", o.Hugepages)
		}
		if o.MemoryBytes%size.bytes != 0 {
			return invalid("--memory-bytes is %d; must be a multiple of the page size, %d", o.MemoryBytes, size.bytes)
		}
	}
	switch o.Driver {
	case v1alpha1.DriverKernel:
		if len(o.Drives) > 0 {
			return invalid("--pci: with --driver Kernel no drive is taken from the kernel; remove --pci, or use --driver VFIO or UIO")
		}
	case v1alpha1.DriverVFIO, v1alpha1.DriverUIO:
		if len(o.Drives) == 0 {
			return invalid("--driver %s requires the addresses of the drives; set --pci for each, such as --pci 0000:5e:00.0=eui.0025388b710116a1", o.Driver)
		}
	default:
		return invalid("--driver is %q; must be Kernel, VFIO or UIO", o.Driver)
	}
	if o.Driver == v1alpha1.DriverUIO && o.Hugepages == v1alpha1.HugepagesDisabled {
		return invalid("--driver UIO requires hugepages, because without an IOMMU a drive needs memory at fixed addresses; use --hugepages 2Mi or 1Gi, or --driver VFIO")
	}
	if o.Driver == v1alpha1.DriverUIO && o.Interrupt {
		return invalid("--driver UIO does not provide interrupts for the queues of a drive; remove --interrupt, or use --driver VFIO")
	}
	for i, d := range o.Drives {
		if !pciAddress.MatchString(d.Address) || d.ID == "" {
			return invalid("--pci is %q; must be the address and the ID of a drive, such as 0000:5e:00.0=eui.0025388b710116a1", d.Address+"="+d.ID)
		}
		if slices.ContainsFunc(o.Drives[:i], func(other PlannedDrive) bool { return other.ID == d.ID }) {
			return invalid("--pci contains drive %s twice; use only its current address", d.ID)
		}
	}
	return nil
}

// Machine is what the launcher works on.
type Machine struct {
	// Root of the filesystem with /sys, /proc and /dev; "/" when empty. The socket is not below it.
	Root string
	// Affinity lists the CPUs that this process may run on; the kernel's answer when nil.
	Affinity func() ([]int, error)
	// Prober of drives; blkid when nil.
	Prober inventory.Prober
	// Command runs a command; inventory.RunCommand when nil.
	Command inventory.Runner
	// Look at what is on a block device, and whether something holds it (device.ErrInUse); device.Look when nil.
	Look func(ctx context.Context, device string) (device.Content, error)
	// Exec replaces this process; execve when nil.
	Exec func(path string, argv, env []string) error
	// BindTimeout is how long the kernel may take to move a drive from driver to driver; 10 s when 0.
	BindTimeout time.Duration
	// Now; time.Now when nil.
	Now func() time.Time
	// Log for what is worth one line; silent when nil.
	Log *slog.Logger
}

func (m Machine) withDefaults() Machine {
	if m.Root == "" {
		m.Root = "/"
	}
	if m.Affinity == nil {
		m.Affinity = affinity
	}
	if m.Prober == nil {
		m.Prober = inventory.Blkid{}
	}
	if m.Command == nil {
		m.Command = inventory.RunCommand
	}
	if m.Look == nil {
		m.Look = look
	}
	if m.Exec == nil {
		m.Exec = replaceProcess
	}
	if m.BindTimeout == 0 {
		m.BindTimeout = 10 * time.Second
	}
	if m.Now == nil {
		m.Now = time.Now
	}
	if m.Log == nil {
		m.Log = slog.New(slog.DiscardHandler)
	}
	return m
}

func (m Machine) path(elem ...string) string {
	return filepath.Join(append([]string{m.Root}, elem...)...)
}

// read returns a file's text without surrounding space.
func (m Machine) read(elem ...string) (string, error) {
	text, err := os.ReadFile(m.path(elem...))
	return strings.TrimSpace(string(text)), err
}

// Run checks, takes the drives, and starts nvmf_tgt. With DriverKernel it does not
// return on success: the process is nvmf_tgt then. Otherwise it returns how nvmf_tgt ended, an
// *ExitError when that was not well. What the node does not grant is a *RefusalError.
//
// When ctx ends, nvmf_tgt is asked to stop, and the drives go back to the kernel.
func Run(ctx context.Context, m Machine, o Options) error {
	m = m.withDefaults()
	if err := o.Validate(); err != nil {
		return err
	}
	target, err := exec.LookPath(o.Target)
	if err != nil {
		return refuse(v1alpha1.ReasonTargetNotFound, "%v; use an image that has nvmf_tgt in PATH", err)
	}
	if target, err = filepath.Abs(target); err != nil {
		return err
	}
	if err := prepareSocket(ctx, o.Socket); err != nil {
		return err
	}
	lock, err := lockNode(o.Socket)
	if err != nil {
		return err
	}
	defer lock.Close() //nolint:errcheck // nothing was written; the target has it open, too
	argv, err := arguments(m, o)
	if err != nil {
		return err
	}
	argv = append([]string{target}, argv...)
	records, err := device.ReadRecords(o.Socket)
	if err != nil {
		return err
	}
	if err := giveBackForgotten(ctx, m, o, records); err != nil {
		return err
	}
	if o.Driver == v1alpha1.DriverKernel {
		if err := errors.Join(ctx.Err(), device.Refusals{}.Write(o.Socket), keepAcrossExec(lock)); err != nil {
			return err
		}
		m.Log.Info("starting SPDK", "command", strings.Join(argv, " "))
		if err := m.Exec(target, argv, os.Environ()); err != nil {
			return refuse(v1alpha1.ReasonTargetNotFound, "cannot run %s: %v", target, err)
		}
		return nil
	}
	return runWithDrives(ctx, m, o, argv, records, lock)
}

// arguments of nvmf_tgt, without its name and the drives that it gets, once CPUs and memory are known to be there.
func arguments(m Machine, o Options) ([]string, error) {
	granted, err := grantedCPUs(m, o.CoreMask)
	if err != nil {
		return nil, err
	}
	memory, err := memoryArguments(m, o)
	if err != nil {
		return nil, err
	}
	args := []string{
		"-m", cpus.Mask(granted),
		"-s", fmt.Sprint(o.MemoryBytes / mebibyte),
		"-r", o.Socket,
		"--wait-for-rpc",
		// Saves 1 MiB of /dev/shm per core.
		"--num-trace-entries", "0",
	}
	args = append(args, memory...)
	if o.Interrupt {
		args = append(args, "--interrupt-mode")
	}
	// Without either, DPDK would probe every PCI device of the node, network cards included.
	if o.Driver == v1alpha1.DriverKernel {
		return append(args, "--no-pci"), nil
	}
	if o.Driver == v1alpha1.DriverUIO {
		// DPDK may choose virtual addresses by itself, which only an IOMMU makes good.
		args = append(args, "--iova-mode", "pa")
	}
	return args, nil
}

// memoryArguments checks that the planned memory is there.
func memoryArguments(m Machine, o Options) ([]string, error) {
	if o.Hugepages == v1alpha1.HugepagesDisabled {
		return []string{"--no-huge"}, checkOrdinaryMemory(m, o.MemoryBytes)
	}
	mount, err := checkHugepages(m, pageSizes[o.Hugepages], o.MemoryBytes)
	if err != nil {
		return nil, err
	}
	// Named, so that DPDK takes pages of this size only, and not those of another mount.
	return []string{"--huge-dir", mount}, nil
}
