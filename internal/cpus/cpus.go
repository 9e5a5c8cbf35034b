// SPDX-License-Identifier: Apache-2.0

// Package cpus reads CPUs from hexadecimal masks and from the kernel's lists (0-3,8) with a bound on their numbers, and
// writes masks. The sets are k8s.io/utils/cpuset's.
package cpus

import (
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"k8s.io/utils/cpuset"
)

// Max is how many CPUs a mask or a list can name: 1024, as SPDK's masks do (SPDK_CPUSET_SIZE).
const Max = 1024

// ParseMask reads a hexadecimal mask, with or without 0x, such as 0x3c for CPUs 2 to 5. It fails when the mask names
// no CPU, or one from Max on.
func ParseMask(mask string) (cpuset.CPUSet, error) {
	hex := strings.TrimPrefix(mask, "0x")
	bits, ok := new(big.Int).SetString(hex, 16)
	if !ok || bits.Sign() <= 0 || strings.ContainsAny(hex, "+-_") {
		return cpuset.New(), fmt.Errorf("%q is not a mask of CPUs; use a hexadecimal mask of at least one CPU, such as 0x3c", mask)
	}
	if bits.BitLen() > Max {
		return cpuset.New(), fmt.Errorf("mask %q contains CPU %d; the maximum is %d", mask, bits.BitLen()-1, Max-1)
	}
	var list []int
	for cpu := range bits.BitLen() {
		if bits.Bit(cpu) == 1 {
			list = append(list, cpu)
		}
	}
	return cpuset.New(list...), nil
}

// Mask writes a set as a hexadecimal mask, such as 0x3c.
func Mask(set cpuset.CPUSet) string {
	bits := new(big.Int)
	for _, cpu := range set.UnsortedList() {
		bits.SetBit(bits, cpu, 1)
	}
	return "0x" + bits.Text(16)
}

// List reads the kernel's list format, such as 0-15,32-47, in rising order. What is no CPU below Max is left out, so
// that neither an inventory that names more than SPDK can use nor 0-999999999 in a target makes a large set.
func List(list string) []int {
	var ids []int
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(strings.TrimSpace(part), "-")
		from, err := strconv.Atoi(first)
		if err != nil || from < 0 {
			continue
		}
		to := from
		if isRange {
			if to, err = strconv.Atoi(last); err != nil {
				continue
			}
		}
		for cpu := from; cpu <= min(to, Max-1); cpu++ {
			ids = append(ids, cpu)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// ParseList reads what List does, as a set.
func ParseList(list string) cpuset.CPUSet { return cpuset.New(List(list)...) }
