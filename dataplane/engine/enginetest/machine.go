// SPDX-License-Identifier: Apache-2.0

package enginetest

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"syscall"

	"github.com/weft-storage/weft/dataplane/tuning"
)

// Machine is a tuning.Host with state, whose settings a test can look at: what it is given stays, within what its
// kernel and drivers take. Its fields are set before it is used, or between calls.
type Machine struct {
	Boot string
	// Kernel has the sysctls.
	Kernel map[string]string
	// Interfaces by name.
	Interfaces map[string]*NIC
	// Refuse answers the kernel's error for a value; nil takes all.
	Refuse func(place tuning.Place, name, value string) error
	// Clamp answers what the kernel makes of a value; nil takes it as it is.
	Clamp func(place tuning.Place, name, value string) string
	// Before each call, and after each that writes; an error ends the call. For tests that kill the caller.
	Before func(call string) error

	mu     sync.Mutex
	writes []string
}

// NIC of a Machine.
type NIC struct {
	Index int32
	// Settings by group, but for interrupts.
	Settings map[tuning.Group]map[string]string
	// Most that the driver takes of a setting, by group.name.
	Most map[string]int64
	// IRQs and their CPUs. They have as many as combined channels, where there are such.
	IRQs map[string]string
	// NextIRQ is the number of the next that the driver asks for.
	NextIRQ int
	// AllCPUs is where a new interrupt goes.
	AllCPUs string
}

// NewMachine with the kernel's usual sysctls, and one NIC eth0 with four channels on eight CPUs.
func NewMachine() *Machine {
	return &Machine{
		Boot: "boot-1",
		Kernel: map[string]string{
			"net.core.rmem_max": "212992", "net.core.netdev_budget": "300", "net.core.default_qdisc": "pfifo_fast",
			"net.ipv4.tcp_rmem": "4096 131072 6291456",
		},
		Interfaces: map[string]*NIC{"lo": {Index: 1}, "eth0": NewNIC(2)},
	}
}

// NewNIC as its driver makes it.
func NewNIC(index int32) *NIC {
	return &NIC{
		Index: index,
		Settings: map[tuning.Group]map[string]string{
			tuning.Channels:   {"combined": "4"},
			tuning.Rings:      {"rx": "256", "tx": "256"},
			tuning.Coalescing: {"adaptiveRX": "on", "adaptiveTX": "off", "rxUsecs": "8", "rxFrames": "128", "txUsecs": "8", "txFrames": "128"},
			tuning.Offloads:   {"tx-tcp-segmentation": "on", "rx-gro": "on", "rx-lro": "off"},
		},
		Most:    map[string]int64{"channels.combined": 8, "rings.rx": 4096, "rings.tx": 4096},
		IRQs:    map[string]string{"40": "0-7", "41": "0-7", "42": "0-7", "43": "0-7"},
		NextIRQ: 44, AllCPUs: "0-7",
	}
}

// Reboot the machine: everything is as in NewMachine again.
func (m *Machine) Reboot(boot string) {
	fresh := NewMachine()
	m.Boot, m.Kernel, m.Interfaces, m.writes = boot, fresh.Kernel, fresh.Interfaces, nil
}

// Writes so far, as setting=value.
func (m *Machine) Writes() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]string(nil), m.writes...)
}

// Everything that is set, by setting; for comparisons.
func (m *Machine) Everything() map[string]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := maps.Clone(m.Kernel)
	for name, nic := range m.Interfaces {
		for group, settings := range nic.Settings {
			for k, v := range settings {
				all[name+"/"+string(group)+"."+k] = v
			}
		}
		for number, cpus := range nic.IRQs {
			all[name+"/interrupts."+number] = cpus
		}
	}
	return all
}

func (m *Machine) before(call string) error {
	if m.Before == nil {
		return nil
	}
	return m.Before(call)
}

// BootID implements tuning.Host.
func (m *Machine) BootID(context.Context) (string, error) { return m.Boot, m.before("boot") }

// NICs implements tuning.Host.
func (m *Machine) NICs(context.Context) (map[string]int32, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	nics := map[string]int32{}
	for name, nic := range m.Interfaces {
		nics[name] = nic.Index
	}
	return nics, m.before("nics")
}

// place with its settings; nil when the driver has no such group.
func (m *Machine) place(p tuning.Place) (map[string]string, *NIC, error) {
	if p.Group == tuning.Sysctls {
		return m.Kernel, nil, nil
	}
	nic := m.Interfaces[p.NIC]
	switch {
	case nic == nil:
		return nil, nil, syscall.ENODEV
	case p.Group == tuning.Interrupts:
		return nic.IRQs, nic, nil
	}
	return nic.Settings[p.Group], nic, nil
}

// Read implements tuning.Host.
func (m *Machine) Read(_ context.Context, p tuning.Place, names []string) (map[string]tuning.Reading, error) {
	if err := m.before("read " + fmt.Sprint(p)); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	has, nic, err := m.place(p)
	if err != nil {
		return nil, err
	}
	readings := map[string]tuning.Reading{}
	for name, value := range has {
		if p.Group == tuning.Interrupts {
			readings[name] = tuning.Reading{Value: value}
		}
	}
	for _, name := range names {
		value, ok := has[name]
		if !ok {
			continue
		}
		r := tuning.Reading{Value: value}
		if nic != nil {
			r.Most = nic.Most[string(p.Group)+"."+name]
		}
		readings[name] = r
	}
	return readings, nil
}

// Write implements tuning.Host. It takes all or none.
func (m *Machine) Write(_ context.Context, p tuning.Place, values map[string]string) error {
	if err := m.before("write " + fmt.Sprint(p)); err != nil {
		return err
	}
	if err := m.take(p, values); err != nil {
		return err
	}
	return m.before("written " + fmt.Sprint(p))
}

func (m *Machine) take(p tuning.Place, values map[string]string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	has, nic, err := m.place(p)
	if err != nil {
		return err
	}
	for name, value := range values {
		if _, ok := has[name]; !ok {
			return syscall.EOPNOTSUPP
		}
		if m.Refuse != nil {
			if err := m.Refuse(p, name, value); err != nil {
				return err
			}
		}
		if n, err := strconv.ParseInt(value, 10, 64); err == nil && nic != nil && nic.Most[string(p.Group)+"."+name] > 0 && n > nic.Most[string(p.Group)+"."+name] {
			return syscall.EINVAL
		}
	}
	for name, value := range values {
		m.writes = append(m.writes, fmt.Sprintf("%s/%s.%s=%s", p.NIC, p.Group, name, value))
		if m.Clamp != nil {
			value = m.Clamp(p, name, value)
		}
		changed := has[name] != value
		has[name] = value
		if p.Group == tuning.Channels && name == "combined" && changed {
			nic.newInterrupts()
		}
	}
	return nil
}

// newInterrupts, one for each channel, where new ones go.
func (n *NIC) newInterrupts() {
	count, _ := strconv.Atoi(n.Settings[tuning.Channels]["combined"])
	n.IRQs = map[string]string{}
	for range count {
		n.IRQs[strconv.Itoa(n.NextIRQ)] = n.AllCPUs
		n.NextIRQ++
	}
}
