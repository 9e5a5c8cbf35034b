// SPDX-License-Identifier: Apache-2.0

package nodetest

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

const (
	controllersDir = "sys/devices/virtual/nvme-fabrics/ctl"
	subsystemsDir  = "sys/devices/virtual/nvme-subsystem"
)

// add makes a controller, its subsystem if it is the first, and the namespaces.
func (k *Kernel) add(c controller, hostID string) (string, error) {
	c.name = k.freeName("nvme", func(n string) bool {
		_, taken := k.controllers[n]
		return taken || k.keepsName(n+"n") || k.exists(filepath.Join(subsystemsDir, "nvme-subsys"+strings.TrimPrefix(n, "nvme")))
	})
	for _, other := range k.controllers {
		if other.nqn == c.nqn {
			c.subsystem = other.subsystem
		}
	}
	instance := strings.TrimPrefix(c.name, "nvme")
	if c.subsystem == "" {
		c.subsystem = "nvme-subsys" + instance
		if err := errors.Join(
			k.write(filepath.Join(subsystemsDir, c.subsystem, "subsysnqn"), c.nqn),
			k.link(filepath.Join(subsystemsDir, c.subsystem), filepath.Join("sys/class/nvme-subsystem", c.subsystem)),
		); err != nil {
			return "", err
		}
	}
	address, port, _ := strings.Cut(c.portal, ":")
	for file, text := range map[string]string{
		"state": "live", "transport": c.transport, "hostnqn": c.host, "hostid": hostID, "subsysnqn": c.nqn, "cntlid": "1",
		"address": "traddr=" + address + ",trsvcid=" + port + ",src_addr=" + address, "delete_controller": "", "rescan_controller": "",
	} {
		if err := k.write(filepath.Join(controllersDir, c.name, file), text); err != nil {
			return "", err
		}
	}
	k.controllers[c.name] = &c
	k.event("add", c.name)
	k.connected(c.name)
	err := errors.Join(
		k.link(filepath.Join(controllersDir, c.name), filepath.Join("sys/class/nvme", c.name)),
		k.firstScan(c.name),
		k.link(filepath.Join(controllersDir, c.name), filepath.Join(subsystemsDir, c.subsystem, c.name)),
	)
	return "instance=" + instance + ",cntlid=1", err
}

// firstScan of a controller that is live, which a kernel makes when it has time.
func (k *Kernel) firstScan(name string) error {
	if k.scansLate {
		return nil
	}
	return k.scan(name)
}

// scan gives a controller the namespaces that its subsystem serves now, at their sizes.
func (k *Kernel) scan(name string) error {
	c, ok := k.controllers[name]
	if !ok {
		return os.ErrNotExist
	}
	for _, ns := range k.subsystems[c.nqn].Namespaces {
		h := k.headOf(c, ns.NGUID)
		if h == nil && k.elsewhere(c, ns.NGUID) {
			continue // Linux logs "globally duplicate IDs", and takes no such namespace.
		}
		if h == nil {
			var err error
			if h, err = k.addHead(c, ns.NGUID); err != nil {
				return err
			}
		}
		h.paths[c.name] = true
		if err := k.addPath(c, h); err != nil {
			return err
		}
		if err := k.write(filepath.Join(k.headDir(h), "size"), strconv.FormatInt(ns.SizeBytes/512, 10)); err != nil {
			return err
		}
	}
	return nil
}

// addPath shows, in the controller's folder, that a block device has a path through it.
func (k *Kernel) addPath(c *controller, h *head) error {
	if !k.multipath {
		return nil
	}
	_, number, _ := strings.Cut(strings.TrimPrefix(h.name, "nvme"), "n")
	dir := filepath.Join(controllersDir, c.name, "nvme"+strings.TrimPrefix(c.subsystem, "nvme-subsys")+"c"+strings.TrimPrefix(c.name, "nvme")+"n"+number)
	return errors.Join(k.write(filepath.Join(dir, "nguid"), nguidAsUUID(h.nguid)), k.write(filepath.Join(dir, "ana_state"), "optimized"),
		k.statistics(dir))
}

// headOf finds the block device of a namespace; without multipath, that of the controller alone.
func (k *Kernel) headOf(c *controller, nguid string) *head {
	for _, h := range k.heads {
		if h.subsystem == c.subsystem && h.nguid == nguid && (k.multipath || h.paths[c.name]) {
			return h
		}
	}
	return nil
}

// elsewhere tells whether another subsystem has a namespace with this NGUID.
func (k *Kernel) elsewhere(c *controller, nguid string) bool {
	for _, h := range k.heads {
		if h.subsystem != c.subsystem && h.nguid == nguid {
			return true
		}
	}
	return false
}

func (k *Kernel) headDir(h *head) string {
	if k.multipath {
		return filepath.Join(subsystemsDir, h.subsystem, h.name)
	}
	for path := range h.paths {
		return filepath.Join(controllersDir, path, h.name)
	}
	return ""
}

func (k *Kernel) addHead(c *controller, nguid string) (*head, error) {
	k.minors++
	prefix := "nvme" + strings.TrimPrefix(c.subsystem, "nvme-subsys") + "n"
	h := &head{
		subsystem: c.subsystem, nguid: nguid, device: "259:" + strconv.Itoa(k.minors), paths: map[string]bool{c.name: true},
		// Numbers within a subsystem start at 1.
		name: k.freeName(prefix, func(n string) bool { return n == prefix+"0" || k.heads[n] != nil || k.keepsName(n) }),
	}
	dir := k.headDir(h)
	k.heads[h.name] = h
	return h, errors.Join(
		k.write(filepath.Join(dir, "nguid"), nguidAsUUID(nguid)),
		k.write(filepath.Join(dir, "dev"), h.device),
		k.write(filepath.Join(dir, "ro"), "0"),
		k.statistics(dir),
		k.write(filepath.Join(dir, "queue/logical_block_size"), "512"),
		os.MkdirAll(filepath.Join(k.Root, dir, "holders"), 0o755),
		k.link(dir, filepath.Join("sys/class/block", h.name)),
		k.link(dir, filepath.Join("sys/dev/block", h.device)),
		os.Symlink(k.Header(nguid), filepath.Join(k.Root, "dev", h.name)),
	)
}

// remove takes a controller away, and with the last path of a namespace its block device, and with the last controller
// the subsystem.
func (k *Kernel) remove(name string) error {
	c, ok := k.controllers[name]
	if !ok {
		return nil
	}
	var errs []error
	for _, h := range k.heads {
		if !h.paths[name] {
			continue
		}
		dir := k.headDir(h)
		delete(h.paths, name)
		if len(h.paths) == 0 {
			errs = append(errs, k.delete(filepath.Join("sys/class/block", h.name)), k.delete(filepath.Join("sys/dev/block", h.device)),
				k.delete(filepath.Join("dev", h.name)), k.delete(dir))
			delete(k.heads, h.name)
			k.onGone(h.name)
			errs = append(errs, k.lost(h))
		}
	}
	delete(k.controllers, name)
	delete(k.stuck, name)
	k.event("remove", name)
	defer k.change()
	errs = append(errs, k.delete(filepath.Join(subsystemsDir, c.subsystem, name)), k.delete(filepath.Join("sys/class/nvme", name)),
		k.delete(filepath.Join(controllersDir, name)))
	for _, other := range k.controllers {
		if other.subsystem == c.subsystem {
			return errors.Join(errs...)
		}
	}
	errs = append(errs, k.delete(filepath.Join("sys/class/nvme-subsystem", c.subsystem)), k.delete(filepath.Join(subsystemsDir, c.subsystem)))
	return errors.Join(errs...)
}

func (k *Kernel) exists(path string) bool {
	_, err := os.Lstat(filepath.Join(k.Root, path))
	return err == nil
}

func (k *Kernel) delete(path string) error { return os.RemoveAll(filepath.Join(k.Root, path)) }

// link makes a symbolic link at a place to a folder, both under the root.
func (k *Kernel) link(folder, at string) error {
	target, err := filepath.Rel(filepath.Dir(at), folder)
	if err != nil {
		return err
	}
	return os.Symlink(target, filepath.Join(k.Root, at))
}
