// SPDX-License-Identifier: Apache-2.0

package spdktest

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// An address is where a transport listens, shared by all subsystems that have a listener there.
type address struct {
	trtype, adrfam, traddr, trsvcid string
}

func (d address) info() addressInfo {
	return addressInfo{Trtype: d.trtype, Adrfam: d.adrfam, Traddr: d.traddr, Trsvcid: d.trsvcid}
}

func (d address) equal(o address) bool {
	return d.trtype == o.trtype && d.adrfam == o.adrfam && strings.EqualFold(d.traddr, o.traddr) && d.trsvcid == o.trsvcid
}

// A listener of one subsystem.
type listener struct {
	address   address
	secure    bool
	sockImpl  string
	anaStates []string // by ANA group, from 1
}

func (d *address) fields() []field {
	return []field{
		required("trtype", asString(&d.trtype)), optional("adrfam", asString(&d.adrfam)),
		required("traddr", asString(&d.traddr)), optional("trsvcid", asString(&d.trsvcid)),
	}
}

// normalize brings type and family into SPDK's spelling. IPv4 is the default family of TCP and RDMA.
func (d *address) normalize() bool {
	d.trtype = strings.ToUpper(d.trtype)
	if len(d.trtype) > 32 || d.trtype == "" {
		return false
	}
	switch strings.ToLower(d.adrfam) {
	case "ipv4":
		d.adrfam = "IPv4"
	case "ipv6":
		d.adrfam = "IPv6"
	case "ib", "fc":
		d.adrfam = strings.ToUpper(d.adrfam)
	case "":
		d.adrfam = "IPv4"
	default:
		return false
	}
	return len(d.traddr) <= 256 && len(d.trsvcid) <= 32
}

func (s *subsystem) listener(d address) *listener {
	for _, l := range s.listeners {
		if l.address.equal(d) {
			return l
		}
	}
	return nil
}

const anaInaccessible = "inaccessible"

var anaStates = []string{"optimized", "non_optimized", anaInaccessible}

func asANAState(dst *string) func(json.RawMessage) error { return asOneOf(dst, anaStates...) }

func (a *app) nvmfAddListener(r *request) {
	l := &listener{}
	state := anaStates[0]
	s := a.findSubsystem(r, true, required("listen_address", asObject(true, l.address.fields()...)),
		optional("secure_channel", asBool(&l.secure)), optional("ana_state", asANAState(&state)),
		optional("sock_impl", asString(&l.sockImpl)))
	if s == nil {
		return
	}
	if !l.address.normalize() {
		r.invalid()
		return
	}
	if s.allowAnyHost && l.secure {
		r.fail(codeInternal, "Cannot establish secure channel, when 'allow_any_host' is set")
		return
	}
	s.paused(r, func() {
		if s.listener(l.address) != nil || !a.listen(l) {
			r.invalid()
			return
		}
		for range s.maxNS {
			l.anaStates = append(l.anaStates, state)
		}
		s.listeners = slices.Insert(s.listeners, 0, l)
		a.post(func() { r.answer(true) })
	})
}

func (a *app) nvmfListenerSetANAState(r *request) {
	var d address
	var state string
	var group uint32
	s := a.findSubsystem(r, false, required("listen_address", asObject(true, d.fields()...)), required("ana_state", asANAState(&state)),
		optional("anagrpid", asUint(&group)))
	if s == nil {
		return
	}
	if !d.normalize() {
		r.invalid()
		return
	}
	s.paused(r, func() {
		l := s.listener(d)
		if !s.ana || l == nil || group > s.maxNS {
			r.invalid()
			return
		}
		for i := range l.anaStates {
			if group == 0 || uint32(i)+1 == group {
				l.anaStates[i] = state
			}
		}
		a.post(func() { r.answer(true) })
	})
}

// listen has the transport listen at the address, unless it does already for another subsystem.
func (a *app) listen(l *listener) bool {
	t := a.transport(l.address.trtype)
	if t == nil {
		return false
	}
	if t.listeners[l.address] == 0 {
		if port, err := strconv.ParseUint(l.address.trsvcid, 10, 16); err != nil || port == 0 {
			return false
		}
		if !a.ownsAddress(l.address) {
			return false
		}
	}
	t.listeners[l.address]++
	return true
}

func (a *app) ownsAddress(d address) bool {
	ip, err := netip.ParseAddr(d.traddr)
	if err != nil || ip.Is4() != (d.adrfam == "IPv4") {
		return false
	}
	own := a.opts.OwnsAddress
	return own == nil || own(d.trtype, d.traddr, d.trsvcid)
}

func (s *subsystem) removeListener(l *listener) {
	if t := s.app.transport(l.address.trtype); t != nil {
		if t.listeners[l.address]--; t.listeners[l.address] == 0 {
			delete(t.listeners, l.address)
		}
	}
	s.listeners = slices.DeleteFunc(s.listeners, func(o *listener) bool { return o == l })
	s.disconnect(func(c *Connection) bool { return c.address.equal(l.address) })
}

func (a *app) nvmfRemoveListener(r *request) {
	var d address
	s := a.findSubsystem(r, false, required("listen_address", asObject(true, d.fields()...)))
	if s == nil {
		return
	}
	if !d.normalize() || a.transport(d.trtype) == nil {
		r.invalid()
		return
	}
	s.paused(r, func() {
		l := s.listener(d)
		if l == nil {
			r.invalid()
			return
		}
		s.removeListener(l)
		a.post(func() { r.answer(true) })
	})
}

func (s *subsystem) listenerCalls() []configCall {
	var calls []configCall
	for _, l := range s.listeners {
		params := map[string]any{"nqn": s.nqn, "listen_address": l.address.info(), "secure_channel": l.secure}
		if l.sockImpl != "" {
			params["sock_impl"] = l.sockImpl
		}
		calls = append(calls, configCall{"nvmf_subsystem_add_listener", params})
	}
	return calls
}
