// SPDX-License-Identifier: Apache-2.0

package filesystem

import (
	"errors"
	"strings"
	"testing"
)

func TestDecide(t *testing.T) {
	const gib = 1 << 30
	none, begun, done := Fence{Volume: "pvc-1"}, Fence{Header: HeaderFormatting, Volume: "pvc-1"}, Fence{Header: HeaderFormatted, Volume: "pvc-1"}
	blank, allowed, given := none, none, done
	blank.Blank, allowed.AllowFormat, given.AllowFormat = true, true, true
	stale := done
	stale.Blank = true
	const advice = "annotation weft.storage/allow-format of NvmfVolume pvc-1"
	half := signature{Type: XFS, Unfinished: true}
	for name, c := range map[string]struct {
		request   Request
		found     signature
		edgesZero bool
		format    bool
		refused   string // part of the error
	}{
		"blank":                              {Request{Type: Ext4, SizeBytes: gib, Fence: blank}, signature{}, true, true, ""},
		"blank, xfs":                         {Request{Type: XFS, SizeBytes: gib, Fence: blank}, signature{}, true, true, ""},
		"blank then, not now":                {Request{Type: Ext4, Fence: blank}, signature{}, false, false, "contains data, but its volume has no header: to discard its data, set the " + advice},
		"blank, and half an xfs":             {Request{Type: XFS, Fence: blank}, half, false, false, advice},
		"blank, and a filesystem":            {Request{Type: Ext4, Fence: blank}, signature{Type: Ext4}, false, false, "holds ext4, but its volume has no header: inspect it"},
		"blank, and another filesystem":      {Request{Type: XFS, Fence: blank}, signature{Type: Ext4}, false, false, "no header: inspect it"},
		"not blank":                          {Request{Type: Ext4, Fence: none}, signature{}, true, false, "was written to, but its volume has no header: to discard its data, set the " + advice},
		"no header, format allowed":          {Request{Type: Ext4, SizeBytes: gib, Fence: allowed}, signature{}, false, true, ""},
		"no header, allowed, half an xfs":    {Request{Type: XFS, SizeBytes: gib, Fence: allowed}, half, false, true, ""},
		"no header, allowed, partitions":     {Request{Type: Ext4, Fence: allowed}, signature{PartitionTable: "gpt"}, false, false, "partition table (gpt)"},
		"blank, read-only":                   {Request{Type: Ext4, ReadOnly: true, Fence: blank}, signature{}, true, false, "read-only"},
		"no header, allowed, read-only":      {Request{Type: Ext4, ReadOnly: true, Fence: allowed}, signature{}, true, false, "read-only"},
		"blank, too small for xfs":           {Request{Type: XFS, SizeBytes: 299 << 20, Fence: blank}, signature{}, true, true, "at least 314572800 bytes"},
		"blank, just large enough for xfs":   {Request{Type: XFS, SizeBytes: 300 << 20, Fence: blank}, signature{}, true, true, ""},
		"formatting":                         {Request{Type: Ext4, SizeBytes: gib, Fence: begun}, signature{}, false, true, ""},
		"formatting, half an xfs":            {Request{Type: XFS, SizeBytes: gib, Fence: begun}, half, false, true, ""},
		"formatting, half of another":        {Request{Type: Ext4, SizeBytes: gib, Fence: begun}, half, false, true, ""},
		"formatting, and finished":           {Request{Type: Ext4, Fence: begun}, signature{Type: Ext4}, false, false, ""},
		"formatting, and finished otherwise": {Request{Type: Ext4, SizeBytes: gib, Fence: begun}, signature{Type: XFS}, false, true, ""},
		"formatting, read-only":              {Request{Type: Ext4, ReadOnly: true, Fence: begun}, signature{}, true, false, "is not formatted yet: mount it once for writing"},
		"formatting, finished, read-only":    {Request{Type: Ext4, ReadOnly: true, Fence: begun}, signature{Type: Ext4}, true, false, "is not formatted yet"},
		"formatting, too small for xfs":      {Request{Type: XFS, SizeBytes: 299 << 20, Fence: begun}, signature{}, true, true, "at least 314572800 bytes"},
		"formatted":                          {Request{Type: Ext4, Fence: done}, signature{Type: Ext4}, false, false, ""},
		"formatted, read-only":               {Request{Type: XFS, ReadOnly: true, Fence: done}, signature{Type: XFS}, false, false, ""},
		"formatted, nothing found":           {Request{Type: Ext4, Fence: done}, signature{}, true, false, "was formatted before, but contains no filesystem: to discard its data, set the " + advice},
		"formatted, and said to be blank":    {Request{Type: Ext4, Fence: stale}, signature{}, true, false, "was formatted before"},
		"formatted, half an xfs":             {Request{Type: XFS, Fence: done}, half, false, false, "an incomplete filesystem, although it was formatted before: to discard its data, set the " + advice},
		"formatted, another filesystem":      {Request{Type: XFS, Fence: done}, signature{Type: Ext4}, false, false, "holds ext4, and xfs was asked for"},
		"formatted, another, allowed":        {Request{Type: XFS, Fence: given}, signature{Type: Ext4}, false, false, "holds ext4"},
		"formatted, holds it, allowed":       {Request{Type: Ext4, Fence: given}, signature{Type: Ext4}, false, false, ""},
		"formatted, nothing found, allowed":  {Request{Type: Ext4, SizeBytes: gib, Fence: given}, signature{}, false, true, ""},
		"formatted, half an xfs, allowed":    {Request{Type: Ext4, SizeBytes: gib, Fence: given}, half, false, true, ""},
		"formatted, nothing found, to read":  {Request{Type: Ext4, ReadOnly: true, Fence: given}, signature{}, true, false, "read-only"},
	} {
		t.Run(name, func(t *testing.T) {
			c.request.Device = "/dev/nvme0n1"
			format, err := decide(c.request, c.found, c.edgesZero)
			if c.refused == "" {
				if err != nil || format != c.format {
					t.Errorf("format %t, %v; want %t", format, err, c.format)
				}
				return
			}
			var refused *RefusedError
			var tooSmall *TooSmallError
			if !errors.As(err, &refused) && !errors.As(err, &tooSmall) || !strings.Contains(err.Error(), c.refused) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestMayBegin(t *testing.T) {
	for name, c := range map[string]struct {
		fence    Fence
		readOnly bool
		refused  string // part of the error
	}{
		"blank":                    {Fence{Blank: true}, false, ""},
		"not blank":                {Fence{Volume: "pvc-1"}, false, "weft.storage/allow-format of NvmfVolume pvc-1"},
		"not blank, allowed":       {Fence{AllowFormat: true}, false, ""},
		"blank, read-only":         {Fence{Blank: true}, true, "use it once for writing"},
		"formatting":               {Fence{Header: HeaderFormatting}, false, ""},
		"formatting, read-only":    {Fence{Header: HeaderFormatting}, true, "use it once for writing"},
		"in use before":            {Fence{Header: HeaderFormatted}, false, ""},
		"in use before, read-only": {Fence{Header: HeaderFormatted}, true, ""},
	} {
		err := Request{Fence: c.fence, ReadOnly: c.readOnly}.MayBegin()
		if (err != nil) != (c.refused != "") || err != nil && !strings.Contains(err.Error(), c.refused) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
