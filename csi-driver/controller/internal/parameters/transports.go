// SPDX-License-Identifier: Apache-2.0

package parameters

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// ParseTransports reads TCP, RDMA, or both separated by a comma, in any order. The result is sorted.
func ParseTransports(v string) ([]v1alpha1.TransportType, error) {
	var list []v1alpha1.TransportType
	for word := range strings.SplitSeq(v, ",") {
		t := v1alpha1.TransportType(strings.TrimSpace(word))
		if t != v1alpha1.TransportTCP && t != v1alpha1.TransportRDMA {
			return nil, fmt.Errorf("%s: %q is not a transport; use TCP, RDMA, or RDMA,TCP for both", Transport, t)
		}
		if slices.Contains(list, t) {
			return nil, fmt.Errorf("%s: %q contains %s twice; list each transport once", Transport, v, t)
		}
		list = append(list, t)
	}
	slices.Sort(list)
	return list, nil
}

// FormatTransports writes them as ParseTransports reads them, sorted, so that the same ones are always the same text.
func FormatTransports(list []v1alpha1.TransportType) string { return join(list, ",") }

func join(list []v1alpha1.TransportType, separator string) string {
	var words []string
	for _, t := range slices.Sorted(slices.Values(list)) {
		words = append(words, string(t))
	}
	return strings.Join(words, separator)
}

// limit of a setting: the most that is taken over every transport of some types, and the first type that takes no more.
// A host connects to all of them for one volume, so the lowest counts.
type limit struct {
	most int32
	by   v1alpha1.TransportType
}

// limitOf a setting, which of reads from a transport; 0 there is no limit.
func limitOf(types []v1alpha1.TransportType, transports []v1alpha1.Transport, most int32, of func(v1alpha1.Transport) int32) limit {
	l := limit{most, cmp.Or(types...)}
	for _, t := range transports {
		if n := of(t); slices.Contains(types, t.Type) && n > 0 && n < l.most {
			l = limit{n, t.Type}
		}
	}
	return l
}
