// SPDX-License-Identifier: Apache-2.0

package fabrics

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// sectorBytes is the unit of a block device's size in sysfs, whatever its block size.
const sectorBytes = 512

// errGone says that a device went away while it was read.
var errGone = errors.New("device is gone")

// attribute reads a file of sysfs. It fails with errGone when the device is no longer there: only then.
func attribute(elem ...string) (string, error) {
	data, err := os.ReadFile(filepath.Join(elem...))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) {
		return "", fmt.Errorf("%w: %w", errGone, err)
	}
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(data)), nil
}

// children lists the entries of a directory whose names match; none when there is no such directory.
func children(pattern *regexp.Regexp, elem ...string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(elem...))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if pattern.MatchString(e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// subsystems finds the directories of a subsystem. There is one for an NQN, except for
// a moment in which an old one is going away and a new one is there already.
func (h *Host) subsystems(nqn string) ([]string, error) {
	class := h.sys("class/nvme-subsystem")
	h.mu.Lock()
	hint := h.names[nqn]
	h.mu.Unlock()
	if hint != "" {
		dir := filepath.Join(class, hint)
		controllers, err := children(controllerName, dir)
		if err != nil {
			return nil, err
		}
		// One that has controllers is the only one: the kernel gives a new controller to the subsystem that exists.
		if got, err := attribute(dir, "subsysnqn"); err == nil && got == nqn && len(controllers) > 0 {
			return []string{dir}, nil
		}
	}
	names, err := children(subsystemName, class)
	if err != nil {
		return nil, err
	}
	var found []string
	for _, name := range names {
		got, err := attribute(class, name, "subsysnqn")
		if errors.Is(err, errGone) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if got == nqn {
			found = append(found, filepath.Join(class, name))
		}
	}
	h.remember(nqn, found)
	return found, nil
}

func (h *Host) remember(nqn string, dirs []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(dirs) == 1 {
		h.names[nqn] = filepath.Base(dirs[0])
	} else {
		delete(h.names, nqn)
	}
}

// Controllers lists this machine's connections to a subsystem, in whatever state: its paths.
func (h *Host) Controllers(nqn string) ([]Controller, error) {
	dirs, err := h.subsystems(nqn)
	if err != nil {
		return nil, err
	}
	var all []Controller
	for _, dir := range dirs {
		names, err := children(controllerName, dir)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			c, err := h.readController(h.sys("class/nvme", name))
			if errors.Is(err, errGone) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("read controller %s: %w", name, err)
			}
			if h.ours(c) {
				all = append(all, c)
			}
		}
	}
	return all, nil
}

func (h *Host) readController(dir string) (Controller, error) {
	var values [4]string
	for i, name := range []string{"state", "transport", "hostnqn", "subsysnqn"} {
		v, err := attribute(dir, name)
		if err != nil {
			return Controller{}, err
		}
		values[i] = v
	}
	c := Controller{
		Name: filepath.Base(dir), State: values[0],
		Transport: v1alpha1.TransportType(strings.ToUpper(values[1])), HostNQN: values[2], NQN: values[3], dir: dir,
	}
	address, err := h.addressOf(c)
	if err != nil {
		return Controller{}, err
	}
	for field := range strings.SplitSeq(address, ",") {
		key, value, _ := strings.Cut(field, "=")
		switch key {
		case "traddr":
			c.Address = value
		case "trsvcid":
			c.Port = value
		}
	}
	return c, nil
}

// addressOf a controller, which stays the same for its life but for the address of this host, which nobody asks for. It
// is asked for once, and remembered: while its queues are taken down, nvme_tcp_get_address of Linux 6.12 can find that
// its socket is gone and end the thread that asks with an oops, holding a lock that the deletion then waits for (seen
// in the kernel tests). Of a controller that was never seen before, one that is being deleted is not asked.
func (h *Host) addressOf(c Controller) (string, error) {
	info, err := os.Stat(c.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return "", errGone
	}
	if err != nil {
		return "", err
	}
	h.addressesMu.Lock()
	known, ok := h.addresses[c.Name]
	h.addressesMu.Unlock()
	its := ok && known.nqn == c.NQN && known.host == c.HostNQN && os.SameFile(known.dir, info)
	switch {
	case its:
		return known.address, nil
	case strings.HasPrefix(c.State, "deleting"):
		return "", nil
	}
	address, err := attribute(c.dir, "address")
	if err != nil {
		return "", err
	}
	h.addressesMu.Lock()
	defer h.addressesMu.Unlock()
	h.addresses[c.Name] = lastAddress{nqn: c.NQN, host: c.HostNQN, dir: info, address: address}
	return address, nil
}

// reaches tells whether the controller is connected to a portal.
func (c Controller) reaches(p v1alpha1.Portal) bool {
	return c.Transport == p.Transport && c.Port == strconv.Itoa(int(p.Port)) && sameAddress(c.Address, p.Address)
}

func sameAddress(a, b string) bool {
	x, errX := netip.ParseAddr(a)
	y, errY := netip.ParseAddr(b)
	if errX != nil || errY != nil {
		return a == b
	}
	return x.Unmap() == y.Unmap()
}

// Namespaces lists what a subsystem serves to this host.
func (h *Host) Namespaces(nqn string) ([]Namespace, error) {
	dirs, err := h.subsystems(nqn)
	if err != nil {
		return nil, err
	}
	var all []Namespace
	seen := map[string]bool{}
	for _, dir := range dirs {
		controllers, err := children(controllerName, dir)
		if err != nil {
			return nil, err
		}
		// The subsystem holds the namespaces of the kernel's multipath; a controller those without.
		for _, at := range append([]string{""}, controllers...) {
			names, err := children(namespaceName, dir, at)
			if err != nil {
				return nil, err
			}
			for _, name := range names {
				if seen[name] {
					continue
				}
				seen[name] = true
				ns, err := h.readNamespace(nqn, filepath.Join(dir, at, name))
				if errors.Is(err, errGone) {
					continue
				}
				if err != nil {
					return nil, fmt.Errorf("read namespace %s: %w", name, err)
				}
				all = append(all, ns)
			}
		}
	}
	return all, nil
}

func (h *Host) readNamespace(nqn, dir string) (Namespace, error) {
	nguid, err := attribute(dir, "nguid")
	if err != nil {
		// A namespace without an NGUID has no such file; it is none of ours.
		return Namespace{}, err
	}
	size, err := attribute(dir, "size")
	if err != nil {
		return Namespace{}, err
	}
	sectors, err := strconv.ParseInt(size, 10, 64)
	if err != nil {
		return Namespace{}, fmt.Errorf("size: %w", err)
	}
	device, err := attribute(dir, "dev")
	if err != nil {
		return Namespace{}, err
	}
	name := filepath.Base(dir)
	return Namespace{
		ID:   ID{NQN: nqn, NGUID: strings.ReplaceAll(strings.ToLower(nguid), "-", "")},
		Name: name, Path: h.dev(name), Device: device, SizeBytes: sectors * sectorBytes,
	}, nil
}

// NamespaceByDevice finds the namespace behind a device number (major:minor) or
// device name, such as that of a mounted filesystem. It fails with ErrNotFound when there is no such device any more,
// and with ErrNotNVMe when it is something else.
func (h *Host) NamespaceByDevice(device string) (Namespace, error) {
	dir := h.sys("dev/block", device)
	if namespaceName.MatchString(device) {
		dir = h.sys("class/block", device)
	}
	dir, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return Namespace{}, fmt.Errorf("block device %s: %w", device, ErrNotFound)
	}
	if err != nil {
		return Namespace{}, err
	}
	if !namespaceName.MatchString(filepath.Base(dir)) {
		return Namespace{}, fmt.Errorf("block device %s is %s: %w", device, filepath.Base(dir), ErrNotNVMe)
	}
	// The parent is the subsystem, or without multipath the controller: both have this file.
	nqn, err := attribute(filepath.Dir(dir), "subsysnqn")
	if err != nil {
		return Namespace{}, notFound(device, err)
	}
	ns, err := h.readNamespace(nqn, dir)
	if err != nil {
		return Namespace{}, notFound(device, err)
	}
	return ns, nil
}

func notFound(device string, err error) error {
	if errors.Is(err, errGone) {
		return fmt.Errorf("block device %s: %w", device, ErrNotFound)
	}
	return fmt.Errorf("read block device %s: %w", device, err)
}
