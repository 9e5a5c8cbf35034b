// SPDX-License-Identifier: Apache-2.0

package fabrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// reconnects counts how often the kernel has connected controllers again. It keeps no count of its own, but sends a
// uevent for each connection that is made (nvme_start_ctrl), the first one of a controller included.
type reconnects struct {
	mu sync.Mutex
	// counting: events are read.
	counting bool
	// made are controllers whose first connection was not told of yet, by their names.
	made map[string]bool
	// counts by the controllers' names.
	counts map[string]int64
}

// CountReconnects reads the kernel's events until the context ends. It fails when they cannot be read.
func (h *Host) CountReconnects(ctx context.Context) error {
	events, err := h.Events()
	if err != nil {
		return fmt.Errorf("read the kernel's events: %w", err)
	}
	defer events.Close() //nolint:errcheck // it was only read
	stop := context.AfterFunc(ctx, func() { _ = events.Close() })
	defer stop()
	h.reconnects.begin()
	defer h.reconnects.end()
	event := make([]byte, 16<<10) // larger than any (UEVENT_BUFFER_SIZE, and its header)
	for {
		n, err := events.Read(event)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS):
			continue // some were lost, because more came than were read
		case err != nil:
			return fmt.Errorf("read the kernel's events: %w", err)
		}
		h.reconnects.take(string(event[:n]))
	}
}

// Reconnects of a controller since CountReconnects began, by its name. It is false while they are not counted.
func (h *Host) Reconnects(controller string) (int64, bool) {
	r := &h.reconnects
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counts[controller], r.counting
}

func (r *reconnects) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counting, r.made, r.counts = true, map[string]bool{}, map[string]int64{}
}

func (r *reconnects) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counting = false
}

// take an event: "action@device", and then variables, each behind a zero.
func (r *reconnects) take(event string) {
	parts := strings.Split(event, "\x00")
	action, device, _ := strings.Cut(parts[0], "@")
	name := path.Base(device)
	if !controllerName.MatchString(name) || !slices.Contains(parts, "SUBSYSTEM=nvme") {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case action == "add" || action == "remove":
		delete(r.counts, name) // a later one gets the name of one that is gone
		delete(r.made, name)
		if action == "add" {
			r.made[name] = true
		}
	case !slices.Contains(parts, "NVME_EVENT=connected"):
	case r.made[name]:
		delete(r.made, name)
	default:
		r.counts[name]++
	}
}

// LinuxEvents are the running kernel's: each read gives one.
func LinuxEvents() (io.ReadCloser, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1}); err != nil {
		return nil, errors.Join(os.NewSyscallError("bind", err), unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), "kernel events"), nil
}
