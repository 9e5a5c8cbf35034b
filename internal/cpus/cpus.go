// SPDX-License-Identifier: Apache-2.0

// Package cpus converts sets of CPUs to and from hexadecimal masks. The sets, and the kernel's list format
// (0-3,8), are k8s.io/utils/cpuset's.
package cpus

import (
	"fmt"
	"math/big"
	"strings"

	"k8s.io/utils/cpuset"
)

// MaxMaskCPUs is how many CPUs a mask can name: 1024, as SPDK's do (SPDK_CPUSET_SIZE).
const MaxMaskCPUs = 1024

// ParseMask reads a hexadecimal mask, with or without 0x, such as 0x3c for CPUs 2 to 5. It fails when the mask names
// no CPU, or one from MaxMaskCPUs on.
func ParseMask(mask string) (cpuset.CPUSet, error) {
	hex := strings.TrimPrefix(mask, "0x")
	bits, ok := new(big.Int).SetString(hex, 16)
	if !ok || bits.Sign() <= 0 || strings.ContainsAny(hex, "+-_") {
		return cpuset.New(), fmt.Errorf("%q is not a mask of CPUs; give a hexadecimal mask of at least one, such as 0x3c", mask)
	}
	if bits.BitLen() > MaxMaskCPUs {
		return cpuset.New(), fmt.Errorf("mask %q names CPU %d; the last one that a mask can name is %d", mask, bits.BitLen()-1, MaxMaskCPUs-1)
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
