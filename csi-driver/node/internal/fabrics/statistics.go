// SPDX-License-Identifier: Apache-2.0

package fabrics

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Statistics of a block device, which the kernel keeps from the moment when it makes the device
// (Documentation/block/stat.rst). Reading them waits for no I/O.
type Statistics struct {
	// Reads, Writes, Discards and Flushes that completed. A device that makes its I/O into that of others, such as one
	// of device mapper, counts a flush as a write of no bytes, and durations in ticks of the kernel's clock.
	Reads, Writes, Discards, Flushes Completed
	// InFlight are those that did not complete yet.
	InFlight int64
	// Busy is the time with at least one in flight.
	Busy time.Duration
}

// Completed I/Os.
type Completed struct {
	Count, Bytes int64
	// Took is the sum of their durations.
	Took time.Duration
}

// statisticsFields are in stat since Linux 5.5, which added flushes.
const statisticsFields = 17

// Statistics of a block device of this machine, by its name, such as dm-3. It fails with ErrNotFound when there is none
// any more.
func (h *Host) Statistics(device string) (Statistics, error) {
	s, err := statistics(h.sys("class/block", device))
	if errors.Is(err, errGone) {
		return s, fmt.Errorf("block device %s: %w", device, ErrNotFound)
	}
	return s, err
}

func statistics(dir string) (Statistics, error) {
	text, err := attribute(dir, "stat")
	if err != nil {
		return Statistics{}, err
	}
	fields := strings.Fields(text)
	if len(fields) < statisticsFields {
		return Statistics{}, fmt.Errorf("the statistics of block device %s have %d fields, and not %d: %q", filepath.Base(dir), len(fields), statisticsFields, text)
	}
	var n [statisticsFields]int64
	for i := range n {
		if n[i], err = strconv.ParseInt(fields[i], 10, 64); err != nil {
			return Statistics{}, fmt.Errorf("the statistics of block device %s: %w", filepath.Base(dir), err)
		}
	}
	completed := func(count, sectors, milliseconds int64) Completed {
		return Completed{Count: count, Bytes: sectors * sectorBytes, Took: time.Duration(milliseconds) * time.Millisecond}
	}
	return Statistics{
		Reads: completed(n[0], n[2], n[3]), Writes: completed(n[4], n[6], n[7]), Discards: completed(n[11], n[13], n[14]), Flushes: completed(n[15], 0, n[16]),
		InFlight: n[8], Busy: time.Duration(n[9]) * time.Millisecond,
	}, nil
}

// Path of a namespace: a controller, and what went through it.
type Path struct {
	Controller
	// Statistics of the namespace's I/O through this controller; nil as long as the kernel has not found the namespace
	// there.
	*Statistics
}

// Paths of a namespace, in whatever state.
func (h *Host) Paths(id ID) ([]Path, error) {
	controllers, err := h.Controllers(id.NQN)
	if err != nil {
		return nil, err
	}
	paths := make([]Path, 0, len(controllers))
	for _, c := range controllers {
		path := Path{Controller: c}
		device, err := h.carrier(c, id.NGUID)
		if err != nil {
			return nil, err
		}
		if device != "" {
			switch is, err := statistics(filepath.Join(c.dir, device)); {
			case err == nil:
				path.Statistics = &is
			case !errors.Is(err, errGone):
				return nil, err
			}
		}
		paths = append(paths, path)
	}
	return paths, nil
}

// carrierName is a block device that carries what goes through one controller: a path's, and without the kernel's
// multipath the namespace's own.
var carrierName = regexp.MustCompile(`^nvme[0-9]+(c[0-9]+)?n[0-9]+$`)

// carrier of a namespace's I/O through a controller, by its name. It is empty as long as the kernel has not found the
// namespace there.
func (h *Host) carrier(c Controller, nguid string) (string, error) {
	names, err := children(carrierName, c.dir)
	if err != nil {
		return "", err
	}
	for _, name := range names {
		is, err := attribute(c.dir, name, "nguid")
		if errors.Is(err, errGone) {
			continue
		}
		if err != nil {
			return "", err
		}
		if strings.ReplaceAll(strings.ToLower(is), "-", "") == nguid {
			return name, nil
		}
	}
	return "", nil
}
