// SPDX-License-Identifier: Apache-2.0

package spdkrpc

// BdevEnableHistogram lets SPDK count how long the I/Os of a bdev take, of all kinds and those that fail, too, until it
// is disabled. Each channel of the bdev counts for itself, and what it counted ends with it. Either is done again
// without harm. Only after init.
type BdevEnableHistogram struct {
	answers[Done]
	Name   string `json:"name"`
	Enable bool   `json:"enable"`
	// MinNanoseconds and MaxNanoseconds of what is told apart. Channels that come later tell everything apart, which is
	// 0 and math.MaxUint64 here: SPDK leaves out channels that differ, and says nothing.
	MinNanoseconds *uint64 `json:"min_nsec,omitzero"`
	MaxNanoseconds *uint64 `json:"max_nsec,omitzero"`
}

func (BdevEnableHistogram) method() string { return "bdev_enable_histogram" }

// BdevGetHistogramBorders asks how long I/Os of a bdev took. It fails with ErrNoMemory where that was never enabled,
// and with ErrUnknown where a channel does not count. Only after init, from 26.05 on.
type BdevGetHistogramBorders struct {
	answers[HistogramBorders]
	Name string `json:"name"`
	// Borders in microseconds, in ascending order, 1 to 256.
	Borders []uint64 `json:"borders"`
}

func (BdevGetHistogramBorders) method() string { return "bdev_get_histogram_borders" }

// HistogramBorders counts I/Os by how long they took.
type HistogramBorders struct {
	// Counts of I/Os that took at most as long as each border, or 1/128 longer, and then of all I/Os.
	Counts []uint64 `json:"borders_count"`
}
