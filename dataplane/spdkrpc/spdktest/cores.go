// SPDX-License-Identifier: Apache-2.0

package spdktest

import (
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"
)

// parseCores reads a core mask as SPDK does: hex with or without 0x, or a list in brackets.
func parseCores(mask string) ([]int, error) {
	mask = strings.TrimSpace(mask)
	if list, ok := strings.CutPrefix(mask, "["); ok {
		list, ok = strings.CutSuffix(list, "]")
		if !ok {
			return nil, errors.New("no closing bracket")
		}
		return parseCoreList(list)
	}
	hex := strings.TrimPrefix(strings.ToLower(mask), "0x")
	bits, ok := new(big.Int).SetString(strings.ReplaceAll(hex, ",", ""), 16)
	if !ok || bits.Sign() < 0 || bits.BitLen() > 1024 {
		return nil, fmt.Errorf("%q is no mask", mask)
	}
	var cores []int
	for i := range bits.BitLen() {
		if bits.Bit(i) == 1 {
			cores = append(cores, i)
		}
	}
	return cores, nil
}

func parseCoreList(list string) ([]int, error) {
	var cores []int
	for part := range strings.SplitSeq(list, ",") {
		from, to, isRange := strings.Cut(strings.TrimSpace(part), "-")
		first, err := strconv.ParseUint(from, 10, 10)
		if err != nil {
			return nil, fmt.Errorf("%q is no core", part)
		}
		last := first
		if isRange {
			if last, err = strconv.ParseUint(to, 10, 10); err != nil || last < first {
				return nil, fmt.Errorf("%q is no range of cores", part)
			}
		}
		for c := first; c <= last; c++ {
			cores = append(cores, int(c))
		}
	}
	slices.Sort(cores)
	return slices.Compact(cores), nil
}

// formatCores writes a mask as SPDK's spdk_cpuset_fmt does: hex without 0x.
func formatCores(cores []int) string {
	bits := new(big.Int)
	for _, c := range cores {
		bits.SetBit(bits, c, 1)
	}
	return bits.Text(16)
}

func subset(cores, of []int) bool {
	for _, c := range cores {
		if !slices.Contains(of, c) {
			return false
		}
	}
	return true
}
