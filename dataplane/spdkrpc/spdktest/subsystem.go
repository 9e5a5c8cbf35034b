// SPDX-License-Identifier: Apache-2.0

package spdktest

import (
	"cmp"
	"encoding/json"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unicode/utf8"
)

const discoveryNQN = "nqn.2014-08.org.nvmexpress.discovery"

// A subsystem with all that belongs to it. What pauses it (namespaces, listeners, ANA states, and reading some of
// it) waits in line; hosts do not.
type subsystem struct {
	app          *app
	nqn          string
	serial       string
	model        string
	maxNS        uint32
	allowAnyHost bool
	ana          bool
	minCntlid    uint16
	maxCntlid    uint16
	dmrsl        uint32
	wzsl         uint8
	passthrough  bool
	nssr         bool

	hosts      []*host      // the latest first
	listeners  []*listener  // the latest first
	namespaces []*namespace // by id
	connected  []*Connection
	nextCntlid uint16

	changes    []change
	destroying bool
}

// A change of a subsystem, and the namespace whose I/O must have ended before: 0 for none, allNamespaces for all.
type change struct {
	run       func()
	namespace uint32
}

const allNamespaces = ^uint32(0)

// change has f run while the subsystem is paused, after all earlier changes; answers are sent when it has resumed.
func (s *subsystem) change(f func()) { s.changeNamespace(0, f) }

// changeNamespace waits for the I/O of a namespace too.
func (s *subsystem) changeNamespace(id uint32, f func()) {
	s.changes = append(s.changes, change{f, id})
	if len(s.changes) == 1 {
		s.app.post(s.nextChange)
	}
}

func (s *subsystem) nextChange() {
	next := s.changes[0]
	for _, n := range s.namespaces {
		if n.bdev.held > 0 && (next.namespace == allNamespaces || next.namespace == n.id) {
			n.bdev.released = append(n.bdev.released, s.nextChange)
			return
		}
	}
	next.run()
	s.changes = s.changes[1:]
	if len(s.changes) > 0 {
		s.app.post(s.nextChange)
	}
}

// paused is change for a request; a subsystem that is being deleted does not pause any more.
func (s *subsystem) paused(r *request, f func()) { s.pausedNamespace(r, 0, f) }

func (s *subsystem) pausedNamespace(r *request, id uint32, f func()) {
	if s.destroying {
		r.fail(codeInternal, msgInternal)
		return
	}
	s.changeNamespace(id, f)
}

// sortedSubsystems in the order of their NQNs, which is how a target lists them.
func (a *app) sortedSubsystems() []*subsystem {
	all := make([]*subsystem, 0, len(a.subsystems))
	for _, s := range a.subsystems {
		all = append(all, s)
	}
	slices.SortFunc(all, func(x, y *subsystem) int { return cmp.Compare(x.nqn, y.nqn) })
	return all
}

type addressInfo struct {
	Trtype  string `json:"trtype"`
	Adrfam  string `json:"adrfam"`
	Traddr  string `json:"traddr"`
	Trsvcid string `json:"trsvcid"`
}

type hostInfo struct {
	NQN  string `json:"nqn"`
	Key  string `json:"dhchap_key,omitempty"`
	CKey string `json:"dhchap_ctrlr_key,omitempty"`
}

type namespaceInfo struct {
	NSID     uint32 `json:"nsid"`
	BdevName string `json:"bdev_name"`
	Name     string `json:"name"`
	NGUID    string `json:"nguid,omitempty"`
	EUI64    string `json:"eui64,omitempty"`
	UUID     string `json:"uuid,omitempty"`
	ANAGroup uint32 `json:"anagrpid,omitempty"`
}

type subsystemInfo struct {
	NQN             string        `json:"nqn"`
	Subtype         string        `json:"subtype"`
	ListenAddresses []addressInfo `json:"listen_addresses"`
	AllowAnyHost    bool          `json:"allow_any_host"`
	Hosts           []hostInfo    `json:"hosts"`
	*nvmeSubsystemInfo
}

type nvmeSubsystemInfo struct {
	SerialNumber  string          `json:"serial_number"`
	ModelNumber   string          `json:"model_number"`
	MaxNamespaces uint32          `json:"max_namespaces,omitempty"`
	Passthrough   *bool           `json:"passthrough,omitempty"`
	MinCntlid     uint16          `json:"min_cntlid"`
	MaxCntlid     uint16          `json:"max_cntlid"`
	DMRSL         *uint32         `json:"dmrsl,omitempty"`
	WZSL          *uint8          `json:"wzsl,omitempty"`
	Namespaces    []namespaceInfo `json:"namespaces"`
}

func (s *subsystem) info() subsystemInfo {
	info := subsystemInfo{
		NQN: s.nqn, Subtype: "NVMe", AllowAnyHost: s.allowAnyHost, ListenAddresses: []addressInfo{}, Hosts: []hostInfo{},
		nvmeSubsystemInfo: &nvmeSubsystemInfo{
			SerialNumber: s.serial, ModelNumber: s.model, MaxNamespaces: s.maxNS,
			MinCntlid: s.minCntlid, MaxCntlid: s.maxCntlid,
			Namespaces: []namespaceInfo{},
		},
	}
	if !s.app.before(release2601) {
		info.Passthrough = &s.passthrough
	}
	if !s.app.before(release2605) {
		info.DMRSL, info.WZSL = &s.dmrsl, &s.wzsl
	}
	for _, l := range s.listeners {
		info.ListenAddresses = append(info.ListenAddresses, l.address.info())
	}
	for _, h := range s.hosts {
		info.Hosts = append(info.Hosts, h.info())
	}
	for _, n := range s.namespaces {
		ns := namespaceInfo{
			NSID: n.id, BdevName: n.bdev.name, Name: n.bdev.name, NGUID: n.nguid, EUI64: n.eui64, UUID: n.uuid,
		}
		if s.ana {
			ns.ANAGroup = n.anaGroup
		}
		info.Namespaces = append(info.Namespaces, ns)
	}
	return info
}

func (a *app) nvmfGetSubsystems(r *request) {
	var nqn, target string
	if r.params != nil && !r.decode(optional("nqn", asString(&nqn)), onTarget(&target)) {
		r.invalid()
		return
	}
	if wrongTarget(r, target) {
		return
	}
	discovery := subsystemInfo{
		NQN: discoveryNQN, Subtype: "Discovery", AllowAnyHost: true, ListenAddresses: []addressInfo{}, Hosts: []hostInfo{},
	}
	infos := []subsystemInfo{}
	for _, s := range a.sortedSubsystems() {
		if nqn == "" || nqn == s.nqn {
			infos = append(infos, s.info())
		}
	}
	if nqn == "" || nqn == discoveryNQN {
		i, _ := slices.BinarySearchFunc(infos, discovery, func(x, y subsystemInfo) int { return cmp.Compare(x.NQN, y.NQN) })
		infos = slices.Insert(infos, i, discovery)
	}
	if len(infos) == 0 {
		r.errno(syscall.ENODEV)
		return
	}
	r.answer(infos)
}

const (
	maxSerial         = 20
	maxModel          = 40
	defaultNamespaces = 32
	maxControllerID   = 0xffef
)

func asPrintable(dst *string, most int) func(json.RawMessage) error {
	return func(raw json.RawMessage) error {
		var s string
		if err := asString(&s)(raw); err != nil {
			return err
		}
		for i := range len(s) {
			if s[i] < 0x20 || s[i] > 0x7e {
				return errParams
			}
		}
		if len(s) > most {
			return errParams
		}
		*dst = s
		return nil
	}
}

func (a *app) nvmfCreateSubsystem(r *request) {
	s := &subsystem{
		app: a, model: "SPDK bdev Controller", maxNS: defaultNamespaces, minCntlid: 1, maxCntlid: maxControllerID,
		dmrsl: 2 << 20, wzsl: 12, serial: "00000000000000000000",
	}
	var target string
	var discard, zeroes uint64
	var withDiscard, withZeroes bool
	discardKiB := optional("max_discard_size_kib", asGiven(&withDiscard, asUint(&discard)))
	zeroesKiB := optional("max_write_zeroes_size_kib", asGiven(&withZeroes, asUint(&zeroes)))
	limits := []field{optional("dmrsl", asUint(&s.dmrsl)), optional("wzsl", asUint(&s.wzsl)), discardKiB, zeroesKiB}
	if a.before(release2605) {
		limits, s.dmrsl, s.wzsl = []field{discardKiB, zeroesKiB}, 0, 0
	}
	serial, model := asPrintable(&s.serial, maxSerial), asPrintable(&s.model, maxModel)
	if !r.decode(append(limits, required("nqn", asString(&s.nqn)), onTarget(&target),
		optional("serial_number", serial), optional("model_number", model),
		optional("max_namespaces", asUint(&s.maxNS)), optional("allow_any_host", asBool(&s.allowAnyHost)),
		optional("ana_reporting", asBool(&s.ana)), optional("min_cntlid", asUint(&s.minCntlid)),
		optional("max_cntlid", asUint(&s.maxCntlid)), optional("passthrough", asBool(&s.passthrough)),
		optional("enable_nssr", asBool(&s.nssr)))...) {
		r.invalid()
		return
	}
	if target != "" && target != targetName {
		r.failf(codeInternal, "Unable to find target %s", target)
		return
	}
	if withDiscard {
		s.dmrsl = uint32(discard << 1)
	}
	if withZeroes {
		if zeroes != 0 && (zeroes < 8 || zeroes&(zeroes-1) != 0) {
			r.failf(codeInvalidParams, "Invalid max_write_zeroes_size_kib %d", zeroes)
			return
		}
		s.wzsl = uint8(max(0, bits.Len64(zeroes>>2)-1))
	}
	if s.maxNS == 0 {
		s.maxNS = defaultNamespaces
	}
	taken := a.subsystems[s.nqn] != nil || s.nqn == discoveryNQN
	// The discovery subsystem counts too.
	if taken || !validNQN(s.nqn) || uint32(len(a.subsystems))+1 >= a.nvmf.maxSubsystems {
		r.failf(codeInternal, "Unable to create subsystem %s", s.nqn)
		return
	}
	if s.minCntlid > s.maxCntlid || s.minCntlid < 1 || s.maxCntlid > maxControllerID {
		r.failf(codeInvalidParams, "Invalid cntlid range [%d-%d]", s.minCntlid, s.maxCntlid)
		return
	}
	s.nextCntlid = s.minCntlid
	a.subsystems[s.nqn] = s
	s.change(func() { a.post(func() { r.answer(true) }) })
}

func (a *app) nvmfDeleteSubsystem(r *request) {
	var nqn, target string
	if !r.decode(required("nqn", asString(&nqn)), onTarget(&target)) {
		r.invalid()
		return
	}
	if wrongTarget(r, target) {
		return
	}
	s := a.subsystems[nqn]
	if s == nil {
		r.invalid()
		return
	}
	if s.destroying {
		r.fail(codeInternal, "Subsystem is already being destroyed.")
		return
	}
	s.destroying = true
	s.changeNamespace(allNamespaces, func() {
		for _, l := range slices.Clone(s.listeners) {
			s.removeListener(l)
		}
		for _, n := range slices.Clone(s.namespaces) {
			s.removeNamespace(n.id)
		}
		for _, h := range slices.Clone(s.hosts) {
			s.removeHost(h)
		}
		s.disconnect(func(*Connection) bool { return true })
		delete(a.subsystems, s.nqn)
		a.post(func() { r.answer(true) })
	})
}

// findSubsystem decodes the parameters and finds the subsystem, or answers as most methods do when there is none.
func (a *app) findSubsystem(r *request, relaxed bool, fields ...field) *subsystem {
	var nqn, target string
	fields = append(fields, required("nqn", asString(&nqn)), onTarget(&target))
	if !r.decodeAs(!relaxed, fields) {
		r.invalid()
		return nil
	}
	if wrongTarget(r, target) {
		return nil
	}
	s := a.subsystems[nqn]
	if s == nil {
		r.invalid()
	}
	return s
}

const (
	maxNQN        = 223
	minNQN        = 11
	maxLabel      = 63
	uuidNQNPrefix = "nqn.2014-08.org.nvmexpress:uuid:"
)

// validNQN: nqn.yyyy-mm.reverse.domain:anything, or the form with a UUID.
func validNQN(nqn string) bool {
	if len(nqn) < minNQN || len(nqn) > maxNQN {
		return false
	}
	if nqn == discoveryNQN {
		return true
	}
	if rest, ok := strings.CutPrefix(nqn, uuidNQNPrefix); ok {
		return validUUID(rest)
	}
	if nqn[:4] != "nqn." || nqn[8] != '-' || len(nqn) < 13 || nqn[11] != '.' {
		return false
	}
	if _, err := strconv.ParseUint(nqn[4:8]+nqn[9:11], 10, 32); err != nil {
		return false
	}
	domain, name, ok := strings.Cut(nqn[12:], ":")
	return ok && name != "" && utf8.ValidString(name) && validDomain(domain)
}

func validDomain(domain string) bool {
	label := 0
	for i := range len(domain) {
		c := domain[i]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		switch {
		case c == '.':
			if label == 0 || domain[i-1] == '-' {
				return false
			}
			label = 0
			continue
		case label == 0 && !letter:
			return false
		case !letter && (c < '0' || c > '9') && c != '-':
			return false
		case c == '-' && i == len(domain)-1:
			return false
		}
		if label++; label > maxLabel+1 {
			return false
		}
	}
	return true
}
