// SPDX-License-Identifier: Apache-2.0

package tuning

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Machine is a Host by way of procfs, sysfs and the NICs' drivers.
//
// Sysctls are files that are read and written whole. Libraries for them were looked at: those of go-sysctl and of the
// CNI plugins wrap os.ReadFile and os.WriteFile, and would make a file where the kernel has none; that of Kubernetes
// knows numbers only, and tcp_rmem has three.
type Machine struct {
	root    string
	drivers Drivers
}

// NewMachine reads and writes below root; "" is /. The network settings are those of the process's own network
// namespace.
func NewMachine(root string, drivers Drivers) *Machine {
	if root == "" {
		root = "/"
	}
	return &Machine{root: root, drivers: drivers}
}

func (m *Machine) path(elem ...string) string {
	return filepath.Join(append([]string{m.root}, elem...)...)
}

// read a file, with single blanks between its words.
func (m *Machine) read(elem ...string) (string, error) {
	text, err := os.ReadFile(m.path(elem...))
	return strings.Join(strings.Fields(string(text)), " "), err
}

// write a file that is there. The kernel judges the value when it is written, so that is one call.
func (m *Machine) write(value string, elem ...string) error {
	file, err := os.OpenFile(m.path(elem...), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString(value)
	return errors.Join(err, file.Close())
}

// BootID implements Host.
func (m *Machine) BootID(context.Context) (string, error) {
	return m.read("proc/sys/kernel/random/boot_id")
}

// NICs implements Host.
func (m *Machine) NICs(context.Context) (map[string]int32, error) {
	entries, err := os.ReadDir(m.path("sys/class/net"))
	if err != nil {
		return nil, err
	}
	nics := map[string]int32{}
	for _, e := range entries {
		text, err := m.read("sys/class/net", e.Name(), "ifindex")
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ENODEV) {
			continue // bonding_masters is no interface, and others may go while they are looked at
		}
		if err != nil {
			return nil, err
		}
		index, err := strconv.ParseInt(text, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("index of interface %s: %w", e.Name(), err)
		}
		nics[e.Name()] = int32(index)
	}
	return nics, nil
}

// Read implements Host.
func (m *Machine) Read(_ context.Context, place Place, names []string) (map[string]Reading, error) {
	switch place.Group {
	case Sysctls:
		return m.readSysctls(names)
	case Interrupts:
		return m.readInterrupts(place.NIC)
	}
	return m.drivers.Read(place, names)
}

// Write implements Host. Sysctls and interrupts are written one after the other, up to the first that fails.
func (m *Machine) Write(_ context.Context, place Place, values map[string]string) error {
	if place.Group != Sysctls && place.Group != Interrupts {
		return m.drivers.Write(place, values)
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		path, err := filePath(place.Group, name)
		if err != nil {
			return err
		}
		if err := m.write(values[name], path); err != nil {
			return err
		}
	}
	return nil
}

var (
	decimal = regexp.MustCompile(`^[0-9]+$`)
	// sysctls are those of the network; a plan leads nowhere else.
	sysctls = regexp.MustCompile(`^net(\.[a-z0-9_]+){2,3}$`)
)

// filePath of a sysctl, or of an interrupt's CPUs.
func filePath(group Group, name string) (string, error) {
	switch {
	case group == Sysctls && sysctls.MatchString(name):
		return "proc/sys/" + strings.ReplaceAll(name, ".", "/"), nil
	case group == Interrupts && decimal.MatchString(name):
		return "proc/irq/" + name + "/smp_affinity_list", nil
	}
	return "", fmt.Errorf("%q is not one of %s", name, group)
}

func (m *Machine) readSysctls(names []string) (map[string]Reading, error) {
	settings := map[string]Reading{}
	for _, name := range names {
		path, err := filePath(Sysctls, name)
		if err != nil {
			continue // none that this agent knows, so there is no such setting
		}
		value, err := m.read(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		settings[name] = Reading{Value: value}
	}
	return settings, nil
}

var pciFunction = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// readInterrupts of a NIC: those that its PCI function has by MSI or MSI-X, as far as they are in use. A NIC on another
// bus, as virtio's, has the function above it; a bridge farther up has interrupts that are not the NIC's.
func (m *Machine) readInterrupts(nic string) (map[string]Reading, error) {
	settings := map[string]Reading{}
	device, err := filepath.EvalSymlinks(m.path("sys/class/net", nic, "device"))
	if errors.Is(err, fs.ErrNotExist) {
		return settings, nil
	}
	if err != nil {
		return nil, err
	}
	for ; !pciFunction.MatchString(filepath.Base(device)); device = filepath.Dir(device) {
		if len(device) <= len(m.path("sys")) {
			return settings, nil
		}
	}
	numbers, err := os.ReadDir(filepath.Join(device, "msi_irqs"))
	if errors.Is(err, fs.ErrNotExist) {
		return settings, nil
	}
	if err != nil {
		return nil, err
	}
	for _, n := range numbers {
		value, err := m.read("proc/irq", n.Name(), "smp_affinity_list")
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		settings[n.Name()] = Reading{Value: value}
	}
	return settings, nil
}
