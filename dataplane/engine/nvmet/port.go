// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
)

// Numbers of weft's ports in configfs. Others on the node usually count from 0 or 1.
const (
	FirstPort = 30464
	lastPort  = FirstPort + 255
)

// rdmaInlineBytes is the most that nvmet_rdma takes in a capsule; it lowers more to this.
const rdmaInlineBytes = 16 << 10

// port in configfs.
type port struct {
	id int
	// address is empty while the port is being made: it is written last.
	address v1alpha1.Portal
	depth   int // 0 where the kernel has no param_max_queue_size (before Linux 6.9)
	inline  int
	listens []string // NQNs, in order
}

func (p *port) finished() bool { return p.address.Address != "" }

// portal that the port is.
func (p *port) portal() engine.Portal {
	return engine.Portal{Portal: p.address, QueueDepth: p.depth, InCapsuleDataBytes: p.inline}
}

// portIDs of weft's ports.
func (h *host) portIDs() ([]int, error) {
	all, err := names(h.config("ports"))
	if err != nil {
		return nil, fmt.Errorf("list ports: %w", err)
	}
	var ids []int
	for _, name := range all {
		if id, err := strconv.Atoi(name); err == nil && id >= FirstPort && id <= lastPort {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids, nil
}

// ports of weft, by number.
func (h *host) ports() ([]*port, error) {
	ids, err := h.portIDs()
	if err != nil {
		return nil, err
	}
	var all []*port
	for _, id := range ids {
		p, err := h.readPort(id)
		if err != nil {
			return nil, fmt.Errorf("read port %d: %w", id, err)
		}
		all = append(all, p)
	}
	return all, nil
}

func (h *host) readPort(id int) (*port, error) {
	dir := h.config("ports", strconv.Itoa(id))
	values := map[string]string{}
	for _, attr := range []string{"addr_traddr", "addr_trsvcid", "addr_trtype", "param_inline_data_size", "param_max_queue_size"} {
		value, err := h.readAttr(filepath.Join(dir, attr))
		if attr == "param_max_queue_size" && isMissing(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		values[attr] = value
	}
	p, err := parsePort(id, values)
	if err != nil {
		return nil, err
	}
	p.listens, err = names(filepath.Join(dir, "subsystems"))
	return p, err
}

// parsePort from its attributes.
func parsePort(id int, values map[string]string) (*port, error) {
	p := &port{id: id}
	if values["addr_traddr"] == "" {
		return p, nil
	}
	service, err := strconv.ParseInt(values["addr_trsvcid"], 10, 32)
	if err != nil {
		return nil, fmt.Errorf("addr_trsvcid: %w", err)
	}
	p.address = v1alpha1.Portal{
		Transport: v1alpha1.TransportType(strings.ToUpper(values["addr_trtype"])),
		Address:   values["addr_traddr"],
		Port:      int32(service),
	}
	if p.inline, err = strconv.Atoi(values["param_inline_data_size"]); err != nil {
		return nil, fmt.Errorf("param_inline_data_size: %w", err)
	}
	if depth, ok := values["param_max_queue_size"]; ok {
		if p.depth, err = strconv.Atoi(depth); err != nil {
			return nil, fmt.Errorf("param_max_queue_size: %w", err)
		}
	}
	return p, nil
}

// sameSettings says whether the port was opened with the settings of this portal.
func (p *port) sameSettings(want engine.Portal) bool {
	inline := want.InCapsuleDataBytes
	if want.Transport == v1alpha1.TransportRDMA && p.inline < inline {
		inline = min(inline, rdmaInlineBytes)
	}
	return p.inline == inline && (p.depth == 0 || p.depth == want.QueueDepth)
}

// OpenPortals implements engine.Engine.
func (e *Engine) OpenPortals(ctx context.Context, portals []engine.Portal) []error {
	end, err := e.begin(ctx)
	defer end()
	if err == nil {
		err = e.refuseAgain(ctx)
	}
	var all []*subsystem
	if err == nil {
		all, err = e.subsystems()
	}
	opened := map[v1alpha1.Portal]*port{}
	errs := each(ctx, portals, err, func(want engine.Portal) error {
		p, err := e.preparePort(ctx, want)
		if err == nil {
			opened[want.Portal] = p
		}
		return err
	})
	var fresh []v1alpha1.Portal
	for address, p := range opened {
		if slices.ContainsFunc(all, func(s *subsystem) bool { return s.isKnown() && !slices.Contains(p.listens, s.nqn) }) {
			fresh = append(fresh, address)
		}
	}
	// One subsystem is there with the listener: only several leave a window.
	if len(fresh) > 0 && countKnown(all) > 1 {
		defer e.guard.close(ctx, fresh)()
	}
	for i, want := range portals {
		if errs[i] == nil {
			errs[i] = e.linkAll(opened[want.Portal], all)
		}
	}
	return errs
}

func countKnown(all []*subsystem) int {
	n := 0
	for _, s := range all {
		if s.isKnown() {
			n++
		}
	}
	return n
}

// linkAll subsystems that hosts know, as one burst, unless none admits anybody; see level.
func (h *host) linkAll(p *port, all []*subsystem) error {
	if !slices.ContainsFunc(all, func(s *subsystem) bool { return len(s.hosts) > 0 }) {
		return nil
	}
	var errs []error
	for _, s := range all {
		if !s.isKnown() || slices.Contains(p.listens, s.nqn) {
			continue
		}
		if err := h.linkPort(p.id, s.nqn); err != nil {
			errs = append(errs, fmt.Errorf("serve %s on %s %s port %d: %w", s.nqn, p.address.Transport, p.address.Address, p.address.Port, err))
			continue
		}
		p.listens = append(p.listens, s.nqn)
	}
	return errors.Join(errs...)
}

// preparePort makes the portal's port with its settings, or finds it.
func (h *host) preparePort(ctx context.Context, want engine.Portal) (*port, error) {
	if err := want.Validate(); err != nil {
		return nil, err
	}
	ports, err := h.ports()
	if err != nil {
		return nil, err
	}
	p := findPort(ports, want.Portal)
	if p == nil {
		if p, err = h.makePort(ctx, want, ports); err != nil {
			return nil, fmt.Errorf("portal %s %s port %d: %w", want.Transport, want.Address, want.Port, err)
		}
	} else if !p.sameSettings(want) {
		return nil, fmt.Errorf("queue depth %d and in-capsule data of %d bytes of portal %s %s port %d: %w",
			p.depth, p.inline, want.Transport, want.Address, want.Port, engine.ErrRestartNeeded)
	}
	return p, nil
}

func findPort(ports []*port, address v1alpha1.Portal) *port {
	for _, p := range ports {
		if p.finished() && p.address == address {
			return p
		}
	}
	return nil
}

// makePort with the first number that is free; what another process left half made is made again.
func (h *host) makePort(ctx context.Context, want engine.Portal, ports []*port) (*port, error) {
	if err := h.loadTransport(ctx, want.Transport); err != nil {
		return nil, err
	}
	if err := checkAddress(want.Address); err != nil {
		return nil, err
	}
	used := map[int]bool{}
	for _, p := range ports {
		if p.finished() {
			used[p.id] = true
		} else if err := h.removePort(p); err != nil {
			return nil, err
		}
	}
	id := FirstPort
	for used[id] {
		id++
	}
	if id > lastPort {
		return nil, fmt.Errorf("%w: %d ports are open", engine.ErrNoSpace, len(used))
	}
	dir := h.config("ports", strconv.Itoa(id))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	family := "ipv4"
	if netip.MustParseAddr(want.Address).Is6() {
		family = "ipv6"
	}
	for _, attr := range []struct{ name, value string }{
		{"addr_trtype", strings.ToLower(string(want.Transport))},
		{"addr_adrfam", family},
		{"addr_trsvcid", strconv.Itoa(int(want.Port))},
		{"param_inline_data_size", strconv.Itoa(want.InCapsuleDataBytes)},
		{"param_max_queue_size", strconv.Itoa(want.QueueDepth)},
		{"addr_traddr", want.Address},
	} {
		err := h.writeAttr(filepath.Join(dir, attr.name), attr.value)
		if attr.name == "param_max_queue_size" && isMissing(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", attr.name, err)
		}
	}
	return h.readPort(id)
}

// checkAddress early: the kernel looks only when it begins to listen, with the first host.
func checkAddress(address string) error {
	want := netip.MustParseAddr(address)
	all, err := net.InterfaceAddrs()
	if err != nil {
		return fmt.Errorf("list the node's addresses: %w", err)
	}
	for _, a := range all {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil && prefix.Addr() == want {
			return nil
		}
	}
	return fmt.Errorf("no interface of this node has address %s: %w", address, engine.ErrNotFound)
}

// ClosePortals implements engine.Engine.
func (e *Engine) ClosePortals(ctx context.Context, portals []v1alpha1.Portal) []error {
	end, err := e.begin(ctx)
	defer end()
	return each(ctx, portals, err, func(address v1alpha1.Portal) error {
		if err := engine.ValidatePortal(address); err != nil {
			return err
		}
		ports, err := e.ports()
		if err != nil {
			return err
		}
		p := findPort(ports, address)
		if p == nil {
			return nil
		}
		// It waits for connections that are on their way out, and these for their writes.
		if err := e.noCopies(); err != nil {
			return err
		}
		if len(p.listens) > 1 {
			// Until the last subsystem is off, the port listens, and knows less and less of them.
			defer e.guard.close(ctx, []v1alpha1.Portal{address})()
		}
		if err := e.removePort(p); err != nil || len(ports) > 1 {
			return err
		}
		return e.removeRefusing(ctx)
	})
}

func (h *host) removePort(p *port) error {
	for _, nqn := range p.listens {
		if err := os.Remove(h.link(p.id, nqn)); err != nil {
			return fmt.Errorf("close port %d: %w", p.id, err)
		}
	}
	if err := os.Remove(h.config("ports", strconv.Itoa(p.id))); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("close port %d: %w", p.id, err)
	}
	return nil
}
