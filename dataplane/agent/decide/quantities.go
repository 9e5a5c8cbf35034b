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

// served is what the engine makes and serves in a pool for a volume of this size: with its header and trailer, and the
// pool may round it up.
func (p *pool) served(q resource.Quantity) int64 {
	if p == nil {
		return v1alpha1.WithOverhead(sizeOf(q))
	}
	return v1alpha1.ServedBytes(sizeOf(q), p.clusterBytes)
}

// clustersOf a pool, in bytes; 0 for none.
func (d *decider) clustersOf(device string) int64 {
	if p := d.poolOf(device); p != nil {
		return p.clusterBytes
	}
	return 0
}

// A number that hosts change with all that they write is written into an object only when it has moved by a part of the
// size that it is measured by: each write of a status is one for etcd, and for all who watch. Of a volume, that is
// v1alpha1.AllocatedStep, which whoever decides by the number adds; what a pool has at the moment, the agent's metrics
// say. What a snapshot holds does not change with what hosts write, and counts where volumes are placed: that is
// written as it is.

// poolPart of a pool, which is much larger than a volume: 1 %.
const poolPart = 100

// figure is a number that changes all the time: rounded up to 1 MiB, so that 0 stays
// "never written", and only brought up to date with refresh, when it has moved by a step or more, or from or to 0.
func figure(old *resource.Quantity, n, step int64, refresh bool) *resource.Quantity {
	rounded := (n + mebibyte - 1) / mebibyte * mebibyte
	if old == nil {
		return bytesOf(rounded)
	}
	was := old.Value()
	moved := max(rounded-was, was-rounded) >= max(step, mebibyte) || (was == 0) != (rounded == 0)
	if !refresh || !moved {
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
