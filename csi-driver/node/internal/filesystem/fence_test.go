// SPDX-License-Identifier: Apache-2.0

package filesystem

import (
	"errors"
	"strings"
	"testing"
)

func TestDecide(t *testing.T) {
	const gib = 1 << 30
	blank := Fence{Blank: true, Volume: "pvc-1"}
	for name, c := range map[string]struct {
		request   Request
		found     signature
		edgesZero bool
		format    bool
		refused   string // part of the error
	}{
		"blank":                            {Request{Type: Ext4, SizeBytes: gib, Fence: blank}, signature{}, true, true, ""},
		"blank, xfs":                       {Request{Type: XFS, SizeBytes: gib, Fence: blank}, signature{}, true, true, ""},
		"holds what was asked for":         {Request{Type: Ext4, Fence: blank}, signature{Type: Ext4}, false, false, ""},
		"holds it, not blank":              {Request{Type: XFS}, signature{Type: XFS}, false, false, ""},
		"holds it, read-only":              {Request{Type: XFS, ReadOnly: true}, signature{Type: XFS}, false, false, ""},
		"holds another filesystem":         {Request{Type: XFS, Fence: blank}, signature{Type: Ext4}, false, false, "holds ext4, and xfs was asked for"},
		"holds another, format allowed":    {Request{Type: XFS, Fence: Fence{AllowFormat: true}}, signature{Type: Ext4}, false, false, "holds ext4"},
		"holds partitions":                 {Request{Type: Ext4, Fence: blank}, signature{PartitionTable: "gpt"}, false, false, "partition table (gpt)"},
		"not blank":                        {Request{Type: Ext4, Fence: Fence{Volume: "pvc-1"}}, signature{}, true, false, "annotation weft.storage/allow-format of NvmfVolume pvc-1"},
		"blank then, not now":              {Request{Type: Ext4, Fence: blank}, signature{}, false, false, "annotation weft.storage/allow-format of NvmfVolume pvc-1"},
		"not blank, format allowed":        {Request{Type: Ext4, SizeBytes: gib, Fence: Fence{AllowFormat: true}}, signature{}, false, true, ""},
		"used up, blank":                   {Request{Type: Ext4, SizeBytes: gib, Fence: Fence{Blank: true, UsedUp: true, Volume: "pvc-1"}}, signature{}, true, false, "held one earlier in this attachment: to give up what it holds, set the annotation weft.storage/allow-format of NvmfVolume pvc-1"},
		"used up, format allowed":          {Request{Type: Ext4, SizeBytes: gib, Fence: Fence{AllowFormat: true, UsedUp: true}}, signature{}, false, false, "held one earlier in this attachment"},
		"used up, not finished":            {Request{Type: XFS, SizeBytes: gib, Fence: Fence{AllowFormat: true, UsedUp: true}}, signature{Type: XFS, Unfinished: true}, false, false, "cut off"},
		"used up, holds it":                {Request{Type: Ext4, Fence: Fence{Blank: true, UsedUp: true}}, signature{Type: Ext4}, false, false, ""},
		"not finished":                     {Request{Type: XFS, SizeBytes: gib, Fence: blank}, signature{Type: XFS, Unfinished: true}, false, false, "cut off: to give up what it holds, set the annotation weft.storage/allow-format of NvmfVolume pvc-1"},
		"not finished, format allowed":     {Request{Type: XFS, SizeBytes: gib, Fence: Fence{AllowFormat: true}}, signature{Type: XFS, Unfinished: true}, false, true, ""},
		"not finished, another asked for":  {Request{Type: Ext4, SizeBytes: gib, Fence: Fence{AllowFormat: true}}, signature{Type: XFS, Unfinished: true}, false, true, ""},
		"not finished, read-only":          {Request{Type: XFS, ReadOnly: true, Fence: Fence{AllowFormat: true}}, signature{Type: XFS, Unfinished: true}, false, false, "not finished, and is to be mounted read-only"},
		"blank, read-only":                 {Request{Type: Ext4, ReadOnly: true, Fence: blank}, signature{}, true, false, "read-only"},
		"format allowed, read-only":        {Request{Type: Ext4, ReadOnly: true, Fence: Fence{AllowFormat: true}}, signature{}, true, false, "read-only"},
		"blank, too small for xfs":         {Request{Type: XFS, SizeBytes: 299 << 20, Fence: blank}, signature{}, true, true, "at least 314572800 bytes"},
		"blank, just large enough for xfs": {Request{Type: XFS, SizeBytes: 300 << 20, Fence: blank}, signature{}, true, true, ""},
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
