// SPDX-License-Identifier: Apache-2.0

package cpus_test

import (
	"strings"
	"testing"

	"k8s.io/utils/cpuset"

	"github.com/weft-storage/weft/internal/cpus"
)

func TestMasks(t *testing.T) {
	for mask, list := range map[string]string{"0x1": "0", "0x3c": "2-5", "0x400000003c": "2-5,38", "0x1" + strings.Repeat("0", 255): "1020"} {
		set, err := cpus.ParseMask(mask)
		if err != nil || set.String() != list {
			t.Errorf("ParseMask(%q) = %s, %v; want %s", mask, set, err, list)
		}
		if got := cpus.Mask(set); got != mask {
			t.Errorf("Mask(%s) = %s, want %s", set, got, mask)
		}
	}
	if set, err := cpus.ParseMask("3c"); err != nil || !set.Equals(cpuset.New(2, 3, 4, 5)) {
		t.Errorf("a mask without 0x: %s, %v", set, err)
	}
}

func TestNoMask(t *testing.T) {
	for mask, words := range map[string]string{
		"": "hexadecimal", "0x": "hexadecimal", "0x0": "at least one", "0xg": "hexadecimal", "-1": "hexadecimal", "0x1_0": "hexadecimal",
		"0x1" + strings.Repeat("0", 256): "1023",
	} {
		if set, err := cpus.ParseMask(mask); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("ParseMask(%q) = %s, %v; want an error with %q", mask, set, err, words)
		}
	}
}

func TestLists(t *testing.T) {
	for list, want := range map[string]string{
		"": "", "3": "3", "0-3,8": "0-3,8", "8, 0-1,0": "0-1,8", "5-3": "", "-1,x,2-y,4": "4", "1022-999999999": "1022-1023", "1024": "",
	} {
		if got := cpus.ParseList(list).String(); got != want {
			t.Errorf("ParseList(%q) = %q, want %q", list, got, want)
		}
	}
}
