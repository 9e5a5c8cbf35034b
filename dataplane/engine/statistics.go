// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"time"

	"github.com/weft-storage/weft/dataplane/device"
)

// Measured is an engine that counts what its target does. Its methods are safe for concurrent use. They run beside all
// other calls: they hold up none of them, and wait for none of them. They may know of pools and volumes only what the
// last Gather found, and then fail with ErrUnavailable before there was one.
type Measured interface {
	// Statistics of the target, of all pools that can be read, and of those of the volumes that it counts. A volume or
	// pool that has just gone is left out. With latencies, the target begins to count how long I/Os of these volumes
	// take, if it can; it does so for no others of its volumes, and without latencies for none.
	Statistics(ctx context.Context, volumes []ID, latencies bool) (Statistics, error)

	// DriveHealth asks the drive that a pool is on, by its Device. It is a command to the drive: it is not to be used
	// often. A dead drive may never answer it, and only some waits end with ctx; whoever asks must not ask again until
	// then. What is no NVMe drive fails with ErrUnsupported.
	DriveHealth(ctx context.Context, pool string) (device.Health, error)
}

// Statistics of a target, all since it started. What it does not count is absent.
type Statistics struct {
	// Pools by their Device: I/O of the devices, with that of metadata.
	Pools map[string]IO
	// Volumes by their IDs. The kernel's target does not count for each volume: its namespaces are files.
	Volumes map[ID]IO
	// Latencies by the IDs of volumes: how many I/Os took at most each of LatencyBounds, and then how many there were,
	// of any kind and with those that failed. They begin at 0 when the target begins to count them, and all together
	// when the volume is exported again.
	Latencies map[ID][]uint64
	// Cores of a target that has cores of its own, in order.
	Cores []CoreTime
	// Buffers that modules took.
	Buffers []BufferGets
}

// IO that was done.
type IO struct {
	Read, Write, Discard Operations
	// Errors is how many I/Os failed, without those that the host aborted; nil where they are not counted.
	Errors *uint64
}

// LatencyBounds of Statistics.Latencies, in ascending order.
var LatencyBounds = latencyBounds()

// latencyBounds from 10 µs to 2 s, three in a decade.
func latencyBounds() (bounds []time.Duration) {
	for decade := 10 * time.Microsecond; decade <= time.Second; decade *= 10 {
		bounds = append(bounds, decade, 2*decade, 5*decade)
	}
	return bounds[:len(bounds)-1]
}

// Operations of one kind.
type Operations struct {
	Count, Bytes uint64
	// Seconds that they took, all added.
	Seconds float64
}

// CoreTime is what a core did. It stands still while the core sleeps for lack of work.
type CoreTime struct {
	Core                     int
	BusySeconds, IdleSeconds float64
}

// BufferGets counts the buffers that one module was given.
type BufferGets struct {
	// Module as in BufferWaits.
	Module string
	// Small and Large: of which pool.
	Small, Large uint64
}
