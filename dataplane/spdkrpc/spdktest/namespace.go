// SPDX-License-Identifier: Apache-2.0

package spdktest

import (
	"cmp"
	"math"
	"slices"
	"strings"
)

// A namespace holds its bdev alone.
type namespace struct {
	subsystem *subsystem
	id        uint32
	bdev      *bdev
	uuid      string
	nguid     string // 32 upper case hex digits
	eui64     string
	anaGroup  uint32
	hidden    bool // visible only to hosts that it was added to
	ptplFile  string
	hosts     []string // the latest first
}

func (s *subsystem) namespace(id uint32) *namespace {
	for _, n := range s.namespaces {
		if n.id == id {
			return n
		}
	}
	return nil
}

// removeNamespace gives the bdev back. False when there is none with this id.
func (s *subsystem) removeNamespace(id uint32) bool {
	n := s.namespace(id)
	if n == nil {
		return false
	}
	s.namespaces = slices.DeleteFunc(s.namespaces, func(o *namespace) bool { return o == n })
	n.bdev.opened(nil)
	n.bdev.claim = ""
	return true
}

func (a *app) nvmfAddNamespace(r *request) {
	n := &namespace{}
	var name string
	var hideMetadata bool
	s := a.findSubsystem(r, true, required("namespace", asObject(true,
		optional("nsid", asUint(&n.id)), required("bdev_name", asString(&name)),
		optional("ptpl_file", asString(&n.ptplFile)), optional("nguid", asHex(16, &n.nguid)),
		optional("eui64", asHex(8, &n.eui64)), optional("uuid", asUUID(&n.uuid)),
		optional("anagrpid", asUint(&n.anaGroup)), optional("no_auto_visible", asBool(&n.hidden)),
		optional("hide_metadata", asBool(&hideMetadata)))))
	if s == nil {
		return
	}
	s.paused(r, func() {
		if !s.addNamespace(n, name) {
			r.invalid()
			return
		}
		a.post(func() { r.answer(n.id) })
	})
}

const (
	nullUUID  = "00000000-0000-0000-0000-000000000000"
	zeroNGUID = "00000000000000000000000000000000"
	zeroEUI64 = "0000000000000000"
)

func (s *subsystem) addNamespace(n *namespace, bdevName string) bool {
	if n.id == math.MaxUint32 {
		return false
	}
	if n.id == 0 {
		n.id = 1
		for n.id <= s.maxNS && s.namespace(n.id) != nil {
			n.id++
		}
	}
	if n.id > s.maxNS || s.namespace(n.id) != nil {
		return false
	}
	if n.anaGroup == 0 {
		n.anaGroup = n.id
	}
	b := s.app.bdevNames[bdevName]
	if n.anaGroup > s.maxNS || b == nil || b.claim != "" || s.passthrough && b.lvol != nil {
		return false
	}
	if n.uuid == "" || n.uuid == nullUUID {
		n.uuid = b.uuid
	}
	if n.nguid == "" || n.nguid == zeroNGUID {
		n.nguid = strings.ToUpper(strings.ReplaceAll(b.uuid, "-", ""))
	}
	if n.eui64 == zeroEUI64 {
		n.eui64 = ""
	}
	n.subsystem, n.bdev = s, b
	b.opened(n)
	b.claim = claimExclusive
	s.namespaces = append(s.namespaces, n)
	slices.SortFunc(s.namespaces, func(x, y *namespace) int { return cmp.Compare(x.id, y.id) })
	return true
}

func (a *app) nvmfRemoveNamespace(r *request) {
	var id uint32
	s := a.findSubsystem(r, false, required("nsid", asUint(&id)))
	if s == nil {
		return
	}
	s.pausedNamespace(r, id, func() {
		if !s.removeNamespace(id) {
			r.invalid()
			return
		}
		a.post(func() { r.answer(true) })
	})
}

func (a *app) nvmfSetNamespaceANAGroup(r *request) {
	var id, group uint32
	s := a.findSubsystem(r, false, required("nsid", asUint(&id)), required("anagrpid", asUint(&group)))
	if s == nil {
		return
	}
	s.pausedNamespace(r, id, func() {
		n := s.namespace(id)
		if n == nil || group == 0 || group > s.maxNS {
			r.invalid()
			return
		}
		n.anaGroup = group
		a.post(func() { r.answer(true) })
	})
}

// written says whether hosts may have writes under way: one is connected through a listener that takes them.
func (n *namespace) written() bool {
	return slices.ContainsFunc(n.subsystem.connected, func(c *Connection) bool {
		l := n.subsystem.listener(c.address)
		return l != nil && l.anaStates[n.anaGroup-1] != anaInaccessible
	})
}

func (s *subsystem) createCall() configCall {
	return configCall{"nvmf_create_subsystem", map[string]any{
		"nqn": s.nqn, "allow_any_host": s.allowAnyHost, "serial_number": s.serial, "model_number": s.model,
		"max_namespaces": s.maxNS, "min_cntlid": s.minCntlid, "max_cntlid": s.maxCntlid, "ana_reporting": s.ana,
		"dmrsl": s.dmrsl, "wzsl": s.wzsl, "passthrough": s.passthrough, "enable_nssr": s.nssr,
	}}
}

func (s *subsystem) namespaceCalls() []configCall {
	var calls []configCall
	for _, n := range s.namespaces {
		params := map[string]any{
			"nsid": n.id, "bdev_name": n.bdev.name, "nguid": n.nguid, "uuid": n.uuid, "no_auto_visible": n.hidden,
		}
		if n.eui64 != "" {
			params["eui64"] = n.eui64
		}
		if n.ptplFile != "" {
			params["ptpl_file"] = n.ptplFile
		}
		if s.ana {
			params["anagrpid"] = n.anaGroup
		}
		calls = append(calls, configCall{"nvmf_subsystem_add_ns", map[string]any{"nqn": s.nqn, "namespace": params}})
	}
	return calls
}

func (s *subsystem) namespaceHostCalls() []configCall {
	var calls []configCall
	for _, n := range s.namespaces {
		for _, h := range n.hosts {
			calls = append(calls, configCall{"nvmf_ns_add_host", map[string]any{"nqn": s.nqn, "nsid": n.id, "host": h}})
		}
	}
	return calls
}
