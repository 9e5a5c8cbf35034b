// SPDX-License-Identifier: Apache-2.0

// Package capability says what an nvmf_tgt can do, and which of it weft needs. What makes an image asks the program,
// and writes the answer on the image as labels; who checks an image reads them.
package capability

import (
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Labels of an image of target pods. Lists are sorted and have commas.
const (
	LabelVersion    = "storage.weft.spdk.version"
	LabelTransports = "storage.weft.spdk.transports"
	LabelSockets    = "storage.weft.spdk.sockets"
	LabelIOUring    = "storage.weft.spdk.io-uring"
	LabelBdevs      = "storage.weft.spdk.bdev-modules"
	LabelMethods    = "storage.weft.spdk.methods"
	// LabelPrograms are the programs beside nvmf_tgt that weft-launch can run.
	LabelPrograms = "storage.weft.programs"
)

// Names of what SPDK can be built with.
const (
	TCP       = "TCP"
	RDMA      = "RDMA"
	SockPosix = "posix"
	SockURing = "uring"
	Blkid     = "blkid"
)

// Capabilities of an nvmf_tgt, and of the image that it is in. A nil list is not known; an empty one is known to be
// empty.
type Capabilities struct {
	// Version such as 26.05 or 26.09-pre; "" is not known.
	Version string
	// Transports that it was built with, such as TCP and RDMA.
	Transports []string
	// Sockets are the implementations that it was built with, such as posix, ssl and uring.
	Sockets []string
	// Methods of its RPCs, by SPDK's names.
	Methods []string
	// Partial: what is not in the lists is not known, rather than not there.
	Partial bool
	// Programs in the image that weft-launch runs besides nvmf_tgt: blkid of util-linux.
	Programs []string
}

// creates is the name of a method that creates a bdev of a module.
var creates = regexp.MustCompile(`^bdev_(.+)_(create|attach_controller)$`)

// BdevModules that the methods show, sorted; nil when the methods are not known.
func (c *Capabilities) BdevModules() []string {
	if c.Methods == nil {
		return nil
	}
	modules := map[string]bool{}
	for _, m := range c.Methods {
		if of := creates.FindStringSubmatch(m); of != nil {
			modules[of[1]] = true
		}
	}
	return sorted(slices.Collect(maps.Keys(modules)))
}

// IOUring says whether it can use io_uring, for sockets or for block devices.
func (c *Capabilities) IOUring() bool {
	return slices.Contains(c.Sockets, SockURing) || slices.Contains(c.BdevModules(), SockURing)
}

// Labels of an image with this nvmf_tgt. What is not known has none.
func (c *Capabilities) Labels() map[string]string {
	labels := map[string]string{}
	if c.Version != "" {
		labels[LabelVersion] = c.Version
	}
	for label, list := range map[string][]string{
		LabelTransports: c.Transports, LabelSockets: c.Sockets, LabelMethods: c.Methods, LabelBdevs: c.BdevModules(), LabelPrograms: c.Programs,
	} {
		if list != nil {
			labels[label] = strings.Join(sorted(list), ",")
		}
	}
	if c.Methods != nil && c.Sockets != nil {
		labels[LabelIOUring] = map[bool]string{true: "true", false: "false"}[c.IOUring()]
	}
	return labels
}

// OfLabels is what an image's labels say. Those that are derived from others are for people, and not read.
func OfLabels(labels map[string]string) *Capabilities {
	list := func(label string) []string {
		value, ok := labels[label]
		if !ok {
			return nil
		}
		return sorted(strings.FieldsFunc(value, func(r rune) bool { return r == ',' }))
	}
	return &Capabilities{
		Version: labels[LabelVersion], Transports: list(LabelTransports), Sockets: list(LabelSockets), Methods: list(LabelMethods), Programs: list(LabelPrograms),
	}
}

// sorted copy, which is never nil.
func sorted(list []string) []string {
	out := append([]string{}, list...)
	slices.Sort(out)
	return slices.Compact(out)
}
