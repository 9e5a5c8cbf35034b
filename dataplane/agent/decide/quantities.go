// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// bytesOf is a size as the API writes it.
func bytesOf(n int64) *resource.Quantity { return resource.NewQuantity(n, resource.BinarySI) }

const mebibyte = 1 << 20

// sizeOf a volume's data in bytes, rounded up to what every engine can keep exactly.
func sizeOf(q resource.Quantity) int64 { return (q.Value() + mebibyte - 1) / mebibyte * mebibyte }

// servedSize is what the engine makes and serves for a volume of this size: its header comes first.
func servedSize(q resource.Quantity) int64 { return v1alpha1.WithHeader(sizeOf(q)) }

// figure is a number that changes all the time: rounded up to 1 MiB, so that 0 stays
// "never written", and only brought up to date with refresh.
func figure(old *resource.Quantity, n int64, refresh bool) *resource.Quantity {
	rounded := (n + mebibyte - 1) / mebibyte * mebibyte
	if old != nil && (!refresh || old.Value() == rounded) {
		return old
	}
	return bytesOf(rounded)
}

// keep the quantity as it is written while its value is the same.
func keep(was *resource.Quantity, n int64) *resource.Quantity {
	if was != nil && was.Value() == n {
		return was
	}
	return bytesOf(n)
}
