// SPDX-License-Identifier: Apache-2.0

package tuning

import (
	"context"
	"strings"
)

// Group of settings that are read and written at once.
type Group string

// Groups, in the order in which they are written: channels first, for some drivers restart with them.
const (
	Sysctls    Group = "sysctls"
	Channels   Group = "channels"
	Rings      Group = "rings"
	Coalescing Group = "coalescing"
	Offloads   Group = "offloads"
	Interrupts Group = "interrupts"
)

var groups = []Group{Sysctls, Channels, Rings, Coalescing, Offloads, Interrupts}

// Values of switches.
const (
	On  = "on"
	Off = "off"
)

// Place is a group of settings of one NIC, or of the kernel (Sysctls, without a NIC).
type Place struct {
	NIC   string
	Group Group
}

// Reading is a setting as it is.
type Reading struct {
	Value string
	// Most that the driver takes; 0 when it does not say.
	Most int64
	// Fixed: the driver does not let it be changed.
	Fixed bool
}

// Host is the node whose settings they are. Its methods are not safe for concurrent use.
type Host interface {
	// BootID is different after each boot of the kernel.
	BootID(ctx context.Context) (string, error)
	// NICs are the indexes of all network interfaces, by name.
	NICs(ctx context.Context) (map[string]int32, error)
	// Read the settings of a place, by name. Those that the kernel or the driver does not have are missing from the
	// answer. Of interrupts, which have numbers for names, all are answered whatever the names.
	Read(ctx context.Context, place Place, names []string) (map[string]Reading, error)
	// Write the settings of a place. Success does not say that each has the value: a driver may make another of it. An
	// error says that not all were taken, and wraps the kernel's errno.
	Write(ctx context.Context, place Place, values map[string]string) error
}

// parse a setting's name: net.core.rmem_max, ens1f0/rings.rx, ens1f0/interrupts, ens1f0/interrupts.45.
func parse(setting string) (place Place, name string, ok bool) {
	nic, rest, ofNIC := strings.Cut(setting, "/")
	if !ofNIC {
		return Place{Group: Sysctls}, setting, setting != ""
	}
	group, name, named := strings.Cut(rest, ".")
	place = Place{NIC: nic, Group: Group(group)}
	switch place.Group {
	case Channels, Rings, Coalescing, Offloads:
		return place, name, nic != "" && name != ""
	case Interrupts:
		return place, name, nic != "" && named == (name != "")
	}
	return place, name, false
}

// setting is the name that parse reads.
func (p Place) setting(name string) string {
	if p.Group == Sysctls {
		return name
	}
	return p.NIC + "/" + string(p.Group) + "." + name
}
