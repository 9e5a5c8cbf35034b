// SPDX-License-Identifier: Apache-2.0

package spdktest

import (
	"encoding/json"
	"errors"
	"math"
	"math/bits"
	"syscall"
)

// methodBorders is new in 26.05.
const methodBorders = "bdev_get_histogram_borders"

// A histogram of how long the I/Os of a bdev took.
type histogram struct {
	enabled bool
	// told is what was said last of what it tells apart.
	told span
	// part of the namespace's channels, which poll groups have whether a host is connected or not; nil if they do not
	// count. The bdev keeps nothing of it.
	part *part
}

// span of nanoseconds.
type span struct{ min, max uint64 }

// everything is what channels tell apart that come once a histogram is enabled, whatever it was told.
var everything = span{0, math.MaxUint64}

// part of a histogram: how many I/Os it counted. Each took opTicks.
type part struct {
	of  span
	ops uint64
}

// tally I/Os of hosts, also those that failed.
func (b *bdev) tally(n uint64) {
	if b.histogram.part != nil {
		b.histogram.part.ops += n
	}
}

// opened by a namespace, or closed.
func (b *bdev) opened(by *namespace) {
	b.namespace, b.histogram.part = by, nil
	if by != nil && b.histogram.enabled {
		b.histogram.part = &part{of: everything}
	}
}

func (a *app) bdevEnableHistogram(r *request) {
	var name, kind string
	var enable bool
	granularity := uint8(7)
	told := span{1000, 120e9}
	if !r.decode(required("name", asString(&name)), required("enable", asBool(&enable)), optional("opc", asString(&kind)),
		optional("granularity", asUint(&granularity)), optional("min_nsec", asUint(&told.min)), optional("max_nsec", asUint(&told.max))) {
		r.fail(codeInternal, msgDecode)
		return
	}
	b := a.bdevNames[name]
	if b == nil {
		r.errno(syscall.ENODEV)
		return
	}
	// The client has no use for either, and the fake refuses what it cannot do.
	if kind != "" || granularity != 7 {
		r.errno(syscall.EINVAL)
		return
	}
	h := &b.histogram
	h.enabled, h.told = enable, told
	switch {
	case !enable:
		h.part = nil
	case b.namespace != nil && h.part == nil:
		h.part = &part{of: told}
	}
	a.post(func() { r.answer(true) })
}

func (a *app) bdevGetHistogramBorders(r *request) {
	var name string
	var borders []uint64
	if !r.decode(required("name", asString(&name)), required("borders", asUints(256, &borders))) {
		r.fail(codeInternal, msgDecode)
		return
	}
	b := a.bdevNames[name]
	if b == nil {
		r.errno(syscall.ENODEV)
		return
	}
	h := b.histogram
	switch {
	case len(borders) == 0: // SPDK answers as bdev_get_histogram, which the client does not call
		r.errno(syscall.EINVAL)
		return
	case h.told.min >= h.told.max: // it was never enabled
		r.errno(syscall.ENOMEM)
		return
	}
	a.post(func() {
		if b.namespace != nil && h.part == nil {
			r.errnoAs(codeInternal, syscall.EFAULT)
			return
		}
		counts := make([]uint64, len(borders)+1)
		if h.part != nil && h.part.of == h.told { // others are left out
			// It counts what is in a bucket: 128 of them have a first digit of two.
			coarse := max(bits.Len64(opTicks)-8, 0)
			for i := range counts {
				if i == len(borders) || opTicks>>coarse<<coarse <= borders[i]*(tickRate/1e6) {
					counts[i] = h.part.ops
				}
			}
		}
		r.answer(map[string]any{"borders_count": counts})
	})
}

func asUints(most int, dst *[]uint64) func(json.RawMessage) error {
	return func(raw json.RawMessage) error {
		var list []json.RawMessage
		if err := json.Unmarshal(raw, &list); err != nil || list == nil || len(list) > most {
			return errors.Join(err, errors.New("not such a list"))
		}
		*dst = make([]uint64, len(list))
		for i, item := range list {
			if err := asUint(&(*dst)[i])(item); err != nil {
				return err
			}
		}
		return nil
	}
}
