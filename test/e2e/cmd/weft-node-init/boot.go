// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weft-storage/weft/test/e2e/internal/nodeconfig"
)

const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// shareOptions let the kernel read ahead, which is seven times as fast as
// without, and still look at the host's file whenever it is opened.
const shareOptions = "trans=virtio,version=9p2000.L,msize=512000,cache=readahead"

// shutdown is the program that ends a machine with systemd once its services
// are stopped: it ends what still runs, syncs, unmounts what it can, and
// switches the power off. It must be process 1.
const shutdown = "/usr/lib/systemd/systemd-shutdown"

// shutdownPatience is how long processes that are told to end may take, and an
// unmount: systemd's own default (DefaultTimeoutStopSec).
const shutdownPatience = "90s"

// reap starts the program's second half and then collects every process that
// is orphaned, which is what the kernel asks of process 1. It returns when the
// second half ends. On nodeconfig.ShutdownSignal it becomes systemd's shutdown.
func reap() error {
	down := make(chan os.Signal, 1)
	signal.Notify(down, nodeconfig.ShutdownSignal)
	go func() {
		<-down
		err := unix.Exec(shutdown, []string{shutdown, "poweroff", "--timeout", shutdownPatience, "--log-level", "info", "--log-target", "console"},
			[]string{"PATH=" + searchPath})
		slog.New(slog.NewTextHandler(os.Stdout, nil)).Error("cannot shut down", "program", shutdown, "error", err)
	}()
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	child, err := os.StartProcess(exe, []string{exe, "boot"}, &os.ProcAttr{
		Env:   []string{"PATH=" + searchPath, "HOME=/root", "LC_ALL=C"},
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
	})
	if err != nil {
		return fmt.Errorf("start the second half of init: %w", err)
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("wait for children: %w", err)
		}
		if pid == child.Pid {
			return fmt.Errorf("init's second half ended: exit status %d, signal %d", status.ExitStatus(), status.Signal())
		}
	}
}

// boot brings the node up and runs its services until ctx ends.
func boot(ctx context.Context, log *slog.Logger) error {
	if err := mountAll(ctx); err != nil {
		return err
	}
	cfg, err := readConfig(filepath.Join(nodeconfig.Dir, nodeconfig.File))
	if err != nil {
		return err
	}
	if err := identify(cfg); err != nil {
		return err
	}
	// udevd makes /dev/disk/by-id, which real nodes have. It needs nothing
	// from the steps below, nor they from it, except that it is there before
	// the first service.
	var udev sync.WaitGroup
	udev.Go(func() { startUdev(ctx, log) })
	loadModules(ctx, cfg.Modules, log)
	if err := setUpNetwork(cfg); err != nil {
		return err
	}
	if err := loadRuleset(ctx, cfg.Nftables); err != nil {
		return err
	}
	for _, link := range cfg.RDMA {
		if err := run(ctx, "rdma", "link", "add", link.Name, "type", "rxe", "netdev", link.NetDev); err != nil {
			log.Error("RDMA device not created", "device", link.Name, "error", err)
		}
	}
	for _, s := range cfg.Sysctls {
		if err := os.WriteFile(filepath.Join("/proc/sys", s.Path), []byte(s.Value), 0o644); err != nil {
			log.Error("sysctl not set", "sysctl", s.Path, "error", err)
		}
	}
	udev.Wait()
	if err := os.WriteFile(nodeconfig.ReadyFile, nil, 0o644); err != nil {
		return err
	}
	log.Info("node is up", "hostname", cfg.Hostname)
	return supervise(ctx, nodeFolders(), cfg.Services, log)
}

func mountAll(ctx context.Context) error {
	if err := run(ctx, "modprobe", "-a", "configfs", "9p", "9pnet_virtio", "virtio_net"); err != nil {
		return err
	}
	const nodev = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	for _, m := range []mountPoint{
		{"proc", "/proc", "proc", nodev, ""},
		{"sysfs", "/sys", "sysfs", nodev, ""},
		{"devtmpfs", "/dev", "devtmpfs", unix.MS_NOSUID, ""},
		{"devpts", "/dev/pts", "devpts", unix.MS_NOSUID | unix.MS_NOEXEC, "gid=5,mode=620,ptmxmode=000"},
		{"tmpfs", "/dev/shm", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, ""},
		{"mqueue", "/dev/mqueue", "mqueue", nodev, ""},
		{"hugetlbfs", "/dev/hugepages", "hugetlbfs", unix.MS_NOSUID | unix.MS_NODEV, ""},
		{"tmpfs", "/run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=755"},
		// No network of a pod survives a boot. CNI does not sync what it remembers of them: after a loss of power, an
		// empty file would keep containerd from ever removing the pod's sandbox.
		{"tmpfs", "/var/lib/cni", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=700"},
		{"cgroup2", "/sys/fs/cgroup", "cgroup2", nodev, "nsdelegate"},
		{"configfs", "/sys/kernel/config", "configfs", nodev, ""},
		{"debugfs", "/sys/kernel/debug", "debugfs", nodev, ""},
		{"bpf", "/sys/fs/bpf", "bpf", nodev, ""},
		{nodeconfig.ConfigTag, nodeconfig.Dir, "9p", unix.MS_RDONLY, shareOptions},
		{nodeconfig.ShareTag, nodeconfig.ShareDir, "9p", unix.MS_RDONLY, shareOptions},
	} {
		if err := m.mount(); err != nil {
			return err
		}
	}
	if err := unix.Mount("", "/", "", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("share mounts: %w", err)
	}
	// sshd gives up its rights in an empty folder.
	for _, dir := range []string{nodeconfig.LogDir, "/run/sshd"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	return nil
}

func readConfig(path string) (nodeconfig.Config, error) {
	var cfg nodeconfig.Config
	data, err := os.ReadFile(path)
	if err != nil {
		return cfg, err
	}
	if err := json.Unmarshal(data, &cfg); err != nil {
		return cfg, fmt.Errorf("parse %s: %w", path, err)
	}
	return cfg, nil
}

// identify gives the node its name and its machine ID.
func identify(cfg nodeconfig.Config) error {
	if err := unix.Sethostname([]byte(cfg.Hostname)); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	hosts := append([]string{"127.0.0.1 localhost", "::1 localhost"}, cfg.Hosts...)
	for path, content := range map[string]string{
		"/etc/hostname":    cfg.Hostname,
		"/etc/hosts":       strings.Join(hosts, "\n"),
		"/etc/machine-id":  cfg.MachineID,
		"/etc/resolv.conf": "# no name servers in the lab",
	} {
		if err := os.WriteFile(path, []byte(content+"\n"), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func startUdev(ctx context.Context, log *slog.Logger) {
	for _, args := range [][]string{
		{"/usr/lib/systemd/systemd-udevd", "--daemon"},
		{"udevadm", "trigger", "--action=add", "--subsystem-match=block", "--subsystem-match=nvme", "--subsystem-match=misc"},
		{"udevadm", "settle", "--timeout=20"},
	} {
		if err := run(ctx, args...); err != nil {
			log.Error("udev", "error", err)
		}
	}
}

// loadModules loads all modules with one call; when that fails it goes through
// them one by one to say which is the culprit.
func loadModules(ctx context.Context, modules []string, log *slog.Logger) {
	if len(modules) == 0 || run(ctx, append([]string{"modprobe", "-a"}, modules...)...) == nil {
		return
	}
	for _, m := range modules {
		if err := run(ctx, "modprobe", m); err != nil {
			log.Error("module not loaded", "module", m, "error", err)
		}
	}
}

// setUpNetwork names and configures the interfaces, then adds the routes.
func setUpNetwork(cfg nodeconfig.Config) error {
	links, err := netlink.LinkList()
	if err != nil {
		return fmt.Errorf("list interfaces: %w", err)
	}
	byMAC := map[string]netlink.Link{}
	for _, link := range links {
		if link.Attrs().Name == "lo" {
			if err := netlink.LinkSetUp(link); err != nil {
				return fmt.Errorf("set lo up: %w", err)
			}
			continue
		}
		byMAC[link.Attrs().HardwareAddr.String()] = link
	}
	for _, iface := range cfg.Interfaces {
		link, ok := byMAC[iface.MAC]
		if !ok {
			return fmt.Errorf("no interface has the MAC address %s", iface.MAC)
		}
		if err := setUpInterface(link, iface); err != nil {
			return fmt.Errorf("interface %s: %w", iface.Name, err)
		}
	}
	for _, r := range cfg.Routes {
		dst := &net.IPNet{IP: r.Destination.Addr().AsSlice(), Mask: net.CIDRMask(r.Destination.Bits(), 32)}
		if err := netlink.RouteReplace(&netlink.Route{Dst: dst, Gw: r.Gateway.AsSlice()}); err != nil {
			return fmt.Errorf("route %s via %s: %w", r.Destination, r.Gateway, err)
		}
	}
	return nil
}

func setUpInterface(link netlink.Link, iface nodeconfig.Interface) error {
	if link.Attrs().Name != iface.Name {
		if err := netlink.LinkSetName(link, iface.Name); err != nil {
			return fmt.Errorf("rename: %w", err)
		}
	}
	if err := netlink.LinkSetMTU(link, iface.MTU); err != nil {
		return fmt.Errorf("set the MTU: %w", err)
	}
	addr := &netlink.Addr{IPNet: &net.IPNet{
		IP:   iface.Address.Addr().AsSlice(),
		Mask: net.CIDRMask(iface.Address.Bits(), 32),
	}}
	if err := netlink.AddrReplace(link, addr); err != nil {
		return fmt.Errorf("set the address: %w", err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set up: %w", err)
	}
	return nil
}

func loadRuleset(ctx context.Context, ruleset string) error {
	nft := exec.CommandContext(ctx, "nft", "-f", "-")
	nft.Stdin = strings.NewReader(ruleset)
	if out, err := nft.CombinedOutput(); err != nil {
		return fmt.Errorf("load the nftables ruleset: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

func run(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
