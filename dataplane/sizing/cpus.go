// SPDX-License-Identifier: Apache-2.0

package sizing

import (
	"iter"
	"math/bits"
	"slices"
	"strconv"
	"strings"
)

// maxCPUs is how many CPUs SPDK's masks can name (SPDK_CPUSET_SIZE), and those of the API.
const maxCPUs = 1024

// cpuSet is a set of CPUs by number.
type cpuSet [maxCPUs / 64]uint64

func (s *cpuSet) add(cpu int)     { s[cpu/64] |= 1 << (cpu % 64) }
func (s cpuSet) has(cpu int) bool { return cpu >= 0 && cpu < maxCPUs && s[cpu/64]&(1<<(cpu%64)) != 0 }

func (s cpuSet) count() int {
	n := 0
	for _, word := range s {
		n += bits.OnesCount64(word)
	}
	return n
}

func (s cpuSet) without(other cpuSet) cpuSet {
	for i := range s {
		s[i] &^= other[i]
	}
	return s
}

func (s cpuSet) and(other cpuSet) cpuSet {
	for i := range s {
		s[i] &= other[i]
	}
	return s
}

func (s cpuSet) or(other cpuSet) cpuSet {
	for i := range s {
		s[i] |= other[i]
	}
	return s
}

// all yields the CPUs in rising order.
func (s cpuSet) all() iter.Seq[int] {
	return func(yield func(int) bool) {
		for i, word := range s {
			for ; word != 0; word &= word - 1 {
				if !yield(i*64 + bits.TrailingZeros64(word)) {
					return
				}
			}
		}
	}
}

// String writes the set in the kernel's list format, such as 2-5,34.
func (s cpuSet) String() string {
	var b strings.Builder
	cpus := slices.Collect(s.all())
	for i := 0; i < len(cpus); {
		j := i
		for j+1 < len(cpus) && cpus[j+1] == cpus[j]+1 {
			j++
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(cpus[i]))
		if j > i {
			b.WriteByte('-')
			b.WriteString(strconv.Itoa(cpus[j]))
		}
		i = j + 1
	}
	return b.String()
}

// mask writes the set as 0x3c.
func (s cpuSet) mask() string {
	const digits = "0123456789abcdef"
	var b strings.Builder
	b.WriteString("0x")
	for i := maxCPUs/4 - 1; i >= 0; i-- {
		d := s[i/16] >> (i % 16 * 4) & 0xf
		if d != 0 || b.Len() > 2 || i == 0 {
			b.WriteByte(digits[d])
		}
	}
	return b.String()
}

// parseMask reads 0x3c; ok is false for what is no mask, or names CPUs beyond maxCPUs.
func parseMask(mask string) (s cpuSet, ok bool) {
	hex, found := strings.CutPrefix(mask, "0x")
	if !found || hex == "" {
		return s, false
	}
	hex = strings.TrimLeft(hex, "0")
	if len(hex) > maxCPUs/4 {
		return s, false
	}
	for i := range len(hex) {
		d, err := strconv.ParseUint(hex[len(hex)-1-i:len(hex)-i], 16, 4)
		if err != nil {
			return cpuSet{}, false
		}
		s[i/16] |= d << (i % 16 * 4)
	}
	return s, true
}

// parseCPUs reads the kernel's list format, such as 0-15,32-47. CPUs beyond maxCPUs
// are left out: SPDK could not use them.
func parseCPUs(list string) cpuSet {
	var s cpuSet
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(strings.TrimSpace(part), "-")
		a, err := strconv.Atoi(first)
		if err != nil || a < 0 {
			continue
		}
		b := a
		if isRange {
			if b, err = strconv.Atoi(last); err != nil {
				continue
			}
		}
		for cpu := a; cpu <= min(b, maxCPUs-1); cpu++ {
			s.add(cpu)
		}
	}
	return s
}
