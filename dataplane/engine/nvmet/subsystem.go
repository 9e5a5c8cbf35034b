// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
)

// subsystem as configfs has it, or as it is wanted.
type subsystem struct {
	nqn, serial, model string
	// queues is 0 when the kernel cannot limit them (before Linux 6.1).
	queues       int
	allowAnyHost bool
	namespaces   map[uint32]namespace
	// hosts that may connect, in order, and those that were dismissed and are refused; see refused.go.
	hosts, refused []string
	// gone hosts have no connection any more, and are dismissed without disturbing the others. Only of a subsystem as
	// it is wanted.
	gone []string
	// keys of hosts that must prove themselves. Of a subsystem as it is, only the fingerprints are known.
	keys map[string]engine.Authentication
	// retired: its hosts were dismissed where it stands. Their controllers may still be there, so its namespaces stay
	// disabled.
	retired bool
	// ports of ours that it is linked to, in order.
	ports []int
}

// namespace of a subsystem.
type namespace struct {
	path    string
	uuid    string
	nguid   string
	enabled bool
}

// wanted is the subsystem of an export. Of the hosts that were dismissed before, those that it does not list are
// refused.
func wanted(x engine.Export, paths map[engine.ID]string, ports []int, dismissed []string) subsystem {
	s := subsystem{
		nqn: x.NQN, serial: x.Serial, model: x.Model, queues: x.MaxIOQueues,
		namespaces: map[uint32]namespace{},
		hosts:      slices.Sorted(slices.Values(x.Hosts)),
		refused:    without(dismissed, x.Hosts),
		gone:       x.Retired,
		keys:       x.Authentication,
	}
	for _, ns := range x.Namespaces {
		s.namespaces[ns.NSID] = namespace{
			path: paths[ns.Volume], uuid: string(ns.Volume), nguid: ns.Volume.NGUID(), enabled: true,
		}
	}
	// An idle port does not listen.
	if len(s.hosts) > 0 {
		s.ports = ports
	}
	return s
}

// isKnown to a host, admitted or refused.
func (s *subsystem) isKnown() bool { return len(s.hosts)+len(s.refused) > 0 }

// onlyRefuses says that nothing is left of a subsystem but that it refuses hosts.
func (s *subsystem) onlyRefuses() bool {
	return len(s.refused) > 0 && len(s.hosts) == 0 && len(s.namespaces) == 0
}

// onlyFor those of its hosts that an export lists, the subsystem as it is otherwise.
func (s *subsystem) onlyFor(x engine.Export, dismissed []string) subsystem {
	less := *s
	listed := x.Hosts
	less.gone = x.Retired
	less.allowAnyHost, less.retired = false, false
	less.hosts = slices.DeleteFunc(slices.Clone(s.hosts), func(host string) bool { return !slices.Contains(listed, host) })
	less.refused = without(dismissed, listed)
	if !less.isKnown() {
		less.ports = nil
	}
	return less
}

// without those of others, sorted, each once.
func without(hosts, others []string) []string {
	left := slices.DeleteFunc(slices.Clone(hosts), func(host string) bool { return slices.Contains(others, host) })
	slices.Sort(left)
	return slices.Compact(left)
}

// export that the subsystem is.
func (s *subsystem) export(ports []*port) engine.Export {
	x := engine.Export{NQN: s.nqn, Serial: s.serial, Model: s.model, MaxIOQueues: s.queues, Hosts: s.hosts, Authentication: s.keys}
	for _, nsid := range sortedKeys(s.namespaces) {
		ns := s.namespaces[nsid]
		x.Namespaces = append(x.Namespaces, engine.Namespace{NSID: nsid, Volume: ns.volume()})
	}
	for _, p := range ports {
		if slices.Contains(s.ports, p.id) {
			x.Portals = append(x.Portals, p.address)
		}
	}
	slices.SortFunc(x.Portals, engine.ComparePortals)
	return x
}

// volume that the namespace serves.
func (n namespace) volume() engine.ID {
	if id := engine.ID(filepath.Base(n.path)); id.Validate() == nil {
		return id
	}
	return engine.ID(n.uuid)
}

// subsystems of weft in configfs, by NQN.
func (h *host) subsystems() ([]*subsystem, error) {
	all, err := names(h.config("subsystems"))
	if err != nil {
		return nil, fmt.Errorf("list subsystems: %w", err)
	}
	var found []*subsystem
	for _, nqn := range all {
		if !strings.HasPrefix(nqn, v1alpha1.NQNPrefix) {
			continue
		}
		s, err := h.subsystem(nqn)
		if err != nil {
			return nil, err
		}
		if s != nil {
			found = append(found, s)
		}
	}
	return found, nil
}

// subsystem in configfs; nil when it is not there.
func (h *host) subsystem(nqn string) (*subsystem, error) {
	s, err := h.readSubsystem(nqn)
	if err != nil {
		return nil, fmt.Errorf("read subsystem %s: %w", nqn, err)
	}
	return s, nil
}

func (h *host) readSubsystem(nqn string) (*subsystem, error) {
	dir := h.config("subsystems", nqn)
	hosts, err := names(filepath.Join(dir, "allowed_hosts"))
	if isMissing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	s := &subsystem{nqn: nqn, namespaces: map[uint32]namespace{}}
	spaces, err := names(filepath.Join(dir, "namespaces"))
	if err != nil {
		return nil, err
	}
	for _, name := range spaces {
		nsid, err := strconv.ParseUint(name, 10, 32)
		if err != nil {
			return nil, err
		}
		if s.namespaces[uint32(nsid)], err = h.readNamespace(filepath.Join(dir, "namespaces", name)); err != nil {
			return nil, err
		}
	}
	if s.queues, err = h.readQueues(dir); err != nil {
		return nil, err
	}
	if s.retired, err = h.isRetired(dir); err != nil {
		return nil, err
	}
	if err := h.readHosts(s, hosts); err != nil {
		return nil, err
	}
	if s.ports, err = h.portsOf(nqn); err != nil || s.onlyRefuses() {
		return s, err // there may be many, whose other attributes do not matter
	}
	var anyHost string
	for attr, into := range map[string]*string{"attr_serial": &s.serial, "attr_model": &s.model, "attr_allow_any_host": &anyHost} {
		if *into, err = h.readAttr(filepath.Join(dir, attr)); err != nil {
			return nil, err
		}
	}
	s.serial = strings.TrimRight(s.serial, " ")
	s.allowAnyHost = anyHost != "0"
	return s, nil
}

// readQueues of a subsystem; 0 before Linux 6.1.
func (h *host) readQueues(dir string) (int, error) {
	text, err := h.readAttr(filepath.Join(dir, "attr_qid_max"))
	if isMissing(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(text)
}

// readHosts that a subsystem admits, and those that it refuses. While it is being retired, it admits them.
func (h *host) readHosts(s *subsystem, hosts []string) error {
	retiring := s.retired && slices.ContainsFunc(slices.Collect(maps.Values(s.namespaces)), func(ns namespace) bool { return ns.enabled })
	for _, host := range hosts {
		refused, err := h.isRefused(host)
		if err != nil {
			return err
		}
		if refused && !retiring {
			s.refused = append(s.refused, host)
			continue
		}
		s.hosts = append(s.hosts, host)
		fingerprint, err := h.fingerprintOf(host)
		if err != nil {
			return err
		}
		if fingerprint != "" {
			if s.keys == nil {
				s.keys = map[string]engine.Authentication{}
			}
			s.keys[host] = engine.Authentication{Fingerprint: fingerprint}
		}
	}
	return nil
}

func (h *host) readNamespace(dir string) (namespace, error) {
	var ns namespace
	var enabled string
	for attr, into := range map[string]*string{
		"device_path": &ns.path, "device_uuid": &ns.uuid, "device_nguid": &ns.nguid, "enable": &enabled,
	} {
		value, err := h.readAttr(filepath.Join(dir, attr))
		if err != nil {
			return namespace{}, err
		}
		*into = value
	}
	ns.nguid = strings.ReplaceAll(ns.nguid, "-", "")
	ns.enabled = enabled == "1"
	return ns, nil
}

// portsOf a subsystem: those of ours that it is linked to.
func (h *host) portsOf(nqn string) ([]int, error) {
	ids, err := h.portIDs()
	if err != nil {
		return nil, err
	}
	var linked []int
	for _, id := range ids {
		// Not a list of the port's subsystems: with many of them that would be read for each.
		switch _, err := os.Lstat(h.link(id, nqn)); {
		case err == nil:
			linked = append(linked, id)
		case !isMissing(err):
			return nil, err
		}
	}
	return linked, nil
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
