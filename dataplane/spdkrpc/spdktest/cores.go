// SPDX-License-Identifier: Apache-2.0

package spdktest

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/utils/cpuset"

	"github.com/weft-storage/weft/internal/cpus"
)

// parseCores reads a core mask as SPDK does: hex with or without 0x, which may be 0, or a list in brackets.
func parseCores(mask string) ([]int, error) {
	mask = strings.TrimSpace(mask)
	if list, ok := strings.CutPrefix(mask, "["); ok {
		list, closed := strings.CutSuffix(list, "]")
		set, err := cpuset.Parse(strings.ReplaceAll(list, " ", ""))
		cores := set.List()
		if !closed || err != nil || len(cores) == 0 || cores[len(cores)-1] >= cpus.Max {
			return nil, fmt.Errorf("%q is no list of cores", mask)
		}
		return cores, nil
	}
	hex := strings.TrimPrefix(strings.ReplaceAll(strings.ToLower(mask), ",", ""), "0x")
	if hex != "" && strings.Trim(hex, "0") == "" {
		return nil, nil
	}
	set, err := cpus.ParseMask(hex)
	return set.List(), err
}

// formatCores writes a mask as SPDK's spdk_cpuset_fmt does: hex without 0x.
func formatCores(cores []int) string {
	return strings.TrimPrefix(cpus.Mask(cpuset.New(cores...)), "0x")
}

func subset(cores, of []int) bool {
	return !slices.ContainsFunc(cores, func(c int) bool { return !slices.Contains(of, c) })
}
