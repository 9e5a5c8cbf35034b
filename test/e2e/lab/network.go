// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

const (
	// Names inside the lab's namespace.
	clusterBridge    = "br0"
	managementBridge = "mgmt0"
	uplinkName       = "up0"
)

func (l *Lab) namespace() string     { return "weft-lab-" + l.id }
func (l *Lab) namespacePath() string { return filepath.Join("/run/netns", l.namespace()) }

// hostLink is the host's end of the link into the lab.
func (l *Lab) hostLink() string { return "weft-" + l.id }

func tapName(i int) string           { return fmt.Sprintf("tap%d", i) }
func managementTapName(i int) string { return fmt.Sprintf("mtap%d", i) }

// inNamespace runs fn on a thread that is in the lab's network namespace.
// Sockets opened and processes started there stay in it.
func (l *Lab) inNamespace(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		// The thread is not unlocked: it ends with this goroutine instead of
		// going back, in a foreign namespace, to those that run other code.
		runtime.LockOSThread()
		ns, err := netns.GetFromPath(l.namespacePath())
		if err != nil {
			done <- fmt.Errorf("open network namespace %s: %w", l.namespace(), err)
			return
		}
		defer ns.Close() //nolint:errcheck // only a handle
		if err := netns.Set(ns); err != nil {
			done <- fmt.Errorf("enter network namespace %s: %w", l.namespace(), err)
			return
		}
		done <- fn()
	}()
	return <-done
}

// hostRoutes lists where the host has routes to.
func hostRoutes() ([]netip.Prefix, error) {
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("list the host's routes: %w", err)
	}
	var out []netip.Prefix
	for _, r := range routes {
		if r.Dst == nil {
			continue
		}
		addr, ok := netip.AddrFromSlice(r.Dst.IP.To4())
		bits, _ := r.Dst.Mask.Size()
		if ok {
			out = append(out, netip.PrefixFrom(addr, bits))
		}
	}
	return out, nil
}

// ensureNetwork makes what is missing of the lab's namespace, bridges, taps
// and link to the host.
func (l *Lab) ensureNetwork() error {
	if err := l.ensureNamespace(); err != nil {
		return err
	}
	plan := l.state.addresses()
	if err := l.inNamespace(func() error { return l.ensureBridges(plan) }); err != nil {
		return err
	}
	return l.ensureUplink(plan)
}

func (l *Lab) ensureNamespace() error {
	if _, err := os.Stat(l.namespacePath()); err == nil {
		return nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // see inNamespace
		ns, err := netns.NewNamed(l.namespace())
		if err == nil {
			err = ns.Close()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		return fmt.Errorf("make network namespace %s: %w", l.namespace(), err)
	}
	return nil
}

func (l *Lab) ensureBridges(plan addresses) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644); err != nil {
		return err
	}
	for _, b := range []struct {
		name string
		addr netip.Prefix
		tap  func(int) string
	}{
		{clusterBridge, plan.controlPlane(), tapName},
		{managementBridge, plan.management(), managementTapName},
	} {
		bridge, err := ensureLink(&netlink.Bridge{LinkAttrs: attrs(b.name)}, &b.addr)
		if err != nil {
			return err
		}
		for i := range l.state.Nodes {
			tap := &netlink.Tuntap{LinkAttrs: attrs(b.tap(i)), Mode: netlink.TUNTAP_MODE_TAP, Flags: netlink.TUNTAP_VNET_HDR | netlink.TUNTAP_NO_PI}
			link, err := ensureLink(tap, nil)
			if err != nil {
				return err
			}
			if err := netlink.LinkSetMaster(link, bridge); err != nil {
				return fmt.Errorf("put %s on %s: %w", b.tap(i), b.name, err)
			}
		}
	}
	for i := range l.state.Nodes {
		route := &netlink.Route{Dst: ipNet(plan.pods(i)), Gw: plan.node(i).Addr().AsSlice()}
		if err := netlink.RouteReplace(route); err != nil {
			return fmt.Errorf("route %s: %w", route.Dst, err)
		}
	}
	return nil
}

// ensureUplink connects the host with the lab, so that kubectl and tests on the
// host reach the API server, nodes and pods.
func (l *Lab) ensureUplink(plan addresses) error {
	hostEnd, err := netlink.LinkByName(l.hostLink())
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		ns, err := netns.GetFromPath(l.namespacePath())
		if err != nil {
			return fmt.Errorf("open network namespace %s: %w", l.namespace(), err)
		}
		defer ns.Close() //nolint:errcheck // only a handle
		pair := netlink.NewVeth(attrs(l.hostLink()))
		pair.PeerName, pair.PeerNamespace = uplinkName, netlink.NsFd(ns)
		if err := netlink.LinkAdd(pair); err != nil {
			return fmt.Errorf("link the host with the lab: %w", err)
		}
		hostEnd = pair
	} else if err != nil {
		return fmt.Errorf("find %s: %w", l.hostLink(), err)
	}
	if err := configureLink(hostEnd, plan.host()); err != nil {
		return err
	}
	err = l.inNamespace(func() error {
		link, err := netlink.LinkByName(uplinkName)
		if err != nil {
			return fmt.Errorf("find %s: %w", uplinkName, err)
		}
		return configureLink(link, plan.uplink())
	})
	if err != nil {
		return err
	}
	route := &netlink.Route{Dst: ipNet(plan.all()), Gw: plan.uplink().Addr().AsSlice()}
	if err := netlink.RouteReplace(route); err != nil {
		return fmt.Errorf("route %s into the lab: %w", plan.all(), err)
	}
	return nil
}

func attrs(name string) netlink.LinkAttrs {
	a := netlink.NewLinkAttrs()
	a.Name, a.MTU = name, mtu
	return a
}

// ensureLink adds the link unless one of that name exists, and sets it up.
func ensureLink(link netlink.Link, addr *netip.Prefix) (netlink.Link, error) {
	name := link.Attrs().Name
	found, err := netlink.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		if err := netlink.LinkAdd(link); err != nil {
			return nil, fmt.Errorf("add %s: %w", name, err)
		}
		found, err = netlink.LinkByName(name)
	}
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", name, err)
	}
	link = found
	if err := netlink.LinkSetMTU(link, mtu); err != nil {
		return nil, fmt.Errorf("set the MTU of %s: %w", name, err)
	}
	if addr != nil {
		return link, configureLink(link, *addr)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return nil, fmt.Errorf("set %s up: %w", name, err)
	}
	return link, nil
}

func configureLink(link netlink.Link, addr netip.Prefix) error {
	name := link.Attrs().Name
	if err := netlink.AddrReplace(link, &netlink.Addr{IPNet: ipNet(addr)}); err != nil {
		return fmt.Errorf("set the address of %s: %w", name, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set %s up: %w", name, err)
	}
	return nil
}

// ipNet keeps the host part of the address.
func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// removeNetwork removes the link, the namespace and all that is in it.
func (l *Lab) removeNetwork() error {
	link, err := netlink.LinkByName(l.hostLink())
	switch {
	case err == nil:
		if err := netlink.LinkDel(link); err != nil {
			return fmt.Errorf("remove %s: %w", l.hostLink(), err)
		}
	case !errors.As(err, &netlink.LinkNotFoundError{}):
		return fmt.Errorf("find %s: %w", l.hostLink(), err)
	}
	if err := netns.DeleteNamed(l.namespace()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove network namespace %s: %w", l.namespace(), err)
	}
	return nil
}

// CutNetwork takes the node off the cluster's network: nothing reaches it and
// nothing leaves it, while its interfaces look connected, as when a switch
// fails. Exec still works. Cutting it again changes nothing.
func (l *Lab) CutNetwork(node string) error { return l.setTap(node, netlink.LinkSetDown) }

// RestoreNetwork undoes CutNetwork.
func (l *Lab) RestoreNetwork(node string) error { return l.setTap(node, netlink.LinkSetUp) }

func (l *Lab) setTap(node string, set func(netlink.Link) error) error {
	i, err := l.nodeIndex(node)
	if err != nil {
		return err
	}
	return l.inNamespace(func() error {
		link, err := netlink.LinkByName(tapName(i))
		if err != nil {
			return fmt.Errorf("find the network of %s: %w", node, err)
		}
		if err := set(link); err != nil {
			return fmt.Errorf("switch the network of %s: %w", node, err)
		}
		return nil
	})
}

func (l *Lab) nodeIndex(node string) (int, error) {
	i := slices.Index(l.state.Nodes, node)
	if i < 0 {
		return 0, fmt.Errorf("no node %q; there are %v", node, l.state.Nodes)
	}
	return i, nil
}
