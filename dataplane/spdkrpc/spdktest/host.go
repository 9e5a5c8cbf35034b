// SPDX-License-Identifier: Apache-2.0

package spdktest

import (
	"slices"
	"syscall"
	"time"

	"github.com/google/uuid"
)

func validUUID(s string) bool { return len(s) == 36 && uuid.Validate(s) == nil }

// A host that a subsystem admits.
type host struct {
	nqn       string
	key, ckey *key
	psk       *key // of the TCP transport, when there was one as the host was added
}

func (h *host) info() hostInfo {
	info := hostInfo{NQN: h.nqn}
	if h.key != nil {
		info.Key = h.key.name
	}
	if h.ckey != nil {
		info.CKey = h.ckey.name
	}
	return info
}

func (s *subsystem) host(nqn string) *host {
	for _, h := range s.hosts {
		if h.nqn == nqn {
			return h
		}
	}
	return nil
}

func (s *subsystem) removeHost(h *host) {
	for _, k := range []*key{h.key, h.ckey, h.psk} {
		s.app.putKey(k)
	}
	s.hosts = slices.DeleteFunc(s.hosts, func(o *host) bool { return o == h })
}

func (a *app) nvmfAddHost(r *request) {
	var nqn, keyName, ckeyName, pskName string
	s := a.findSubsystem(r, true, required("host", asString(&nqn)), optional("dhchap_key", asString(&keyName)),
		optional("dhchap_ctrlr_key", asString(&ckeyName)))
	if s == nil {
		return
	}
	dhchap, ok := a.namedKey(keyName)
	ckey, cok := a.namedKey(ckeyName)
	if !ok || !cok {
		r.invalid()
		return
	}
	if !validNQN(nqn) || s.host(nqn) != nil || dhchap == nil && ckey != nil {
		r.fail(codeInternal, msgInternal)
		return
	}
	h := &host{nqn: nqn, key: dhchap, ckey: ckey}
	// Only transports that exist by now learn of a PSK.
	if a.transport("TCP") != nil {
		err := decodeObject(r.params, false, optional("psk", asString(&pskName)))
		psk, pok := a.namedKey(pskName)
		if err != nil || !pok {
			r.fail(codeInternal, msgInternal)
			return
		}
		h.psk = psk
	}
	for _, k := range []*key{h.key, h.ckey, h.psk} {
		k.get()
	}
	s.hosts = slices.Insert(s.hosts, 0, h)
	r.answer(true)
}

func (a *app) nvmfRemoveHost(r *request) {
	var nqn string
	var timeout uint64
	s := a.findSubsystem(r, false, required("host", asString(&nqn)), optional("timeout_ms", asUint(&timeout)))
	if s == nil {
		return
	}
	h := s.host(nqn)
	if h == nil {
		r.fail(codeInternal, msgInternal)
		return
	}
	s.removeHost(h)
	its := func(c *Connection) bool { return c.HostNQN == nqn }
	if a.before(release2605) {
		a.after(lingering, func() { s.disconnect(its) })
		a.post(func() { r.answer(true) })
		return
	}
	var end func()
	end = func() {
		if slices.ContainsFunc(s.connected, func(c *Connection) bool { return c.held && its(c) }) {
			a.after(time.Millisecond, end)
			return
		}
		s.disconnect(its)
		r.answer(true)
	}
	a.post(end)
}

// lingering is how long a host's connections outlive the answer of an older target.
const lingering = 20 * time.Millisecond

func (a *app) nvmfSetKeys(r *request) {
	var nqn, keyName, ckeyName string
	s := a.findSubsystem(r, false, required("host", asString(&nqn)), optional("dhchap_key", asString(&keyName)),
		optional("dhchap_ctrlr_key", asString(&ckeyName)))
	if s == nil {
		return
	}
	dhchap, ok := a.namedKey(keyName)
	ckey, cok := a.namedKey(ckeyName)
	if !ok || !cok {
		r.invalid()
		return
	}
	h := s.host(nqn)
	if h == nil || dhchap == nil && ckey != nil {
		r.errno(syscall.EINVAL)
		return
	}
	dhchap.get()
	ckey.get()
	a.putKey(h.key)
	a.putKey(h.ckey)
	h.key, h.ckey = dhchap, ckey
	r.answer(true)
}

func (s *subsystem) hostCalls() []configCall {
	var calls []configCall
	for _, h := range s.hosts {
		params := map[string]any{"nqn": s.nqn, "host": h.nqn}
		for name, k := range map[string]*key{"dhchap_key": h.key, "dhchap_ctrlr_key": h.ckey, "psk": h.psk} {
			if k != nil {
				params[name] = k.name
			}
		}
		calls = append(calls, configCall{"nvmf_subsystem_add_host", params})
	}
	return calls
}
