// SPDX-License-Identifier: Apache-2.0

package capability

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

// full has everything that weft uses.
func full() *Capabilities {
	return &Capabilities{
		Version: "26.05", Transports: []string{TCP, RDMA}, Sockets: []string{SockPosix, "ssl"}, Programs: []string{Blkid},
		Methods: slices.Concat([]string{"bdev_malloc_create", "bdev_zone_block_create"}, Methods(), NVMeMethods(), HistogramMethods()),
	}
}

func TestLabels(t *testing.T) {
	labels := full().Labels()
	for label, want := range map[string]string{
		LabelVersion: "26.05", LabelTransports: "RDMA,TCP", LabelSockets: "posix,ssl", LabelIOUring: "false", LabelPrograms: "blkid",
		LabelBdevs: "aio,lvol,malloc,nvme,zone_block",
	} {
		if labels[label] != want {
			t.Errorf("%s is %q, not %q", label, labels[label], want)
		}
	}
	if again := OfLabels(labels).Labels(); !maps.Equal(again, labels) {
		t.Errorf("read and written again they are %v", again)
	}
	uring := full()
	uring.Methods = append(uring.Methods, "bdev_uring_create")
	if uring.Labels()[LabelIOUring] != "true" {
		t.Error("a target with bdev_uring has no io_uring")
	}
}

// An empty list says that there is none; a missing label that it is not known.
func TestNoneIsNotUnknown(t *testing.T) {
	none := OfLabels((&Capabilities{Programs: []string{}}).Labels())
	if none.Programs == nil || len(none.Programs) != 0 {
		t.Errorf("no programs are read as %#v", none.Programs)
	}
	nothing := OfLabels(map[string]string{"org.opencontainers.image.title": "weft-target"})
	for _, f := range nothing.Check() {
		if f.Has != Unknown {
			t.Errorf("of an image without labels, %s is %s", f.Name, f.Has)
		}
	}
	if len(nothing.Labels()) != 0 {
		t.Errorf("nothing is known, and labelled %v", nothing.Labels())
	}
}

func TestCheck(t *testing.T) {
	without := func(change func(*Capabilities)) *Capabilities {
		c := full()
		change(c)
		return c
	}
	for name, c := range map[string]struct {
		of *Capabilities
		// lacks are the features that are not there, sorted.
		lacks []string
	}{
		"all": {full(), nil},
		"Alpine's": {without(func(c *Capabilities) { c.Version, c.Transports, c.Programs = "25.05", []string{TCP}, []string{} }),
			[]string{"RDMA and VFIO in every mode", "blkid (util-linux)", "buffer cache of each size", "discard hidden from hosts", "transport RDMA"}},
		"26.01":   {without(func(c *Capabilities) { c.Version = "26.01.1" }), []string{"buffer cache of each size"}},
		"too old": {without(func(c *Capabilities) { c.Version = "24.09" }), []string{"RDMA and VFIO in every mode", "SPDK 25.05 or later", "buffer cache of each size", "discard hidden from hosts"}},
		"newer":   {without(func(c *Capabilities) { c.Version = "27.01-pre" }), nil},
		"no lvol": {without(func(c *Capabilities) {
			c.Methods = slices.DeleteFunc(c.Methods, func(m string) bool { return strings.HasPrefix(m, "bdev_lvol") })
		}), []string{"RPC methods"}},
		"25.09's":     {without(func(c *Capabilities) { c.Methods = append(Methods(), NVMeMethods()...) }), []string{"latency histograms"}},
		"no NVMe":     {without(func(c *Capabilities) { c.Methods = Methods() }), []string{"NVMe driver", "latency histograms"}},
		"only uring":  {without(func(c *Capabilities) { c.Sockets = []string{SockURing} }), []string{"posix sockets"}},
		"no TCP":      {without(func(c *Capabilities) { c.Transports = []string{RDMA} }), []string{"transport TCP"}},
		"odd version": {without(func(c *Capabilities) { c.Version = "main" }), nil},
	} {
		var lacks []string
		for _, f := range c.of.Check() {
			if f.Has == No {
				lacks = append(lacks, f.Name)
			}
			if f.Has == Unknown && name != "odd version" {
				t.Errorf("%s: %s is not known", name, f.Name)
			}
			if f.Without == "" {
				t.Errorf("nobody says what happens without %s", f.Name)
			}
		}
		slices.Sort(lacks)
		if !slices.Equal(lacks, c.lacks) {
			t.Errorf("%s lacks %q, not %q", name, lacks, c.lacks)
		}
	}
}

// What a target was not seen to do is not said to be missing.
func TestPartial(t *testing.T) {
	seen := &Capabilities{Version: "26.05", Transports: []string{TCP}, Sockets: []string{SockPosix}, Methods: Methods(), Partial: true}
	for _, f := range seen.Check() {
		want := Yes
		if f.Name == "transport RDMA" || f.Name == "NVMe driver" || f.Name == "latency histograms" || f.Name == "blkid (util-linux)" {
			want = Unknown
		}
		if f.Has != want {
			t.Errorf("%s is %s, not %s", f.Name, f.Has, want)
		}
	}
}

// The page for people lists the same features and labels.
func TestDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/reference/spdk-features.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	for _, f := range Features() {
		row := "\n| " + f.Name + " | " + map[bool]string{true: "required", false: "optional"}[f.Required] + " | "
		if !strings.Contains(page, row) {
			t.Errorf("the page has no row %q", row)
		}
	}
	for _, label := range append(slices.Collect(maps.Keys(full().Labels())), LabelIOUring) {
		if !strings.Contains(page, "\n| `"+label+"` | ") {
			t.Errorf("the page has no label %s", label)
		}
	}
	if rows := strings.Count(page, " | required | ") + strings.Count(page, " | optional | "); rows != len(Features()) {
		t.Errorf("the page has %d features, and there are %d", rows, len(Features()))
	}
}
