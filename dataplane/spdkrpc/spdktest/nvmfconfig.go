// SPDX-License-Identifier: Apache-2.0

package spdktest

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
)

// nvmfConfig is what is set of the NVMe-oF target before it starts, and the poll groups it then has.
type nvmfConfig struct {
	pollGroupsMask  []int            // nil: every core
	pollGroups      []int            // the core of each
	cpumasks        map[uint64][]int // of threads that were moved, and placed where they went
	placed          map[uint64]int
	turn            int // of the cores that threads are placed on
	digests         []string
	dhgroups        []string
	discoveryFilter string
	dupHostPolicy   string
	passthrough     map[string]bool
	maxSubsystems   uint32 // 0: not set
	crdt            [3]uint16
}

var (
	dhchapDigests  = []string{"sha256", "sha384", "sha512"}
	dhchapDHGroups = []string{"null", "ffdhe2048", "ffdhe3072", "ffdhe4096", "ffdhe6144", "ffdhe8192"}
	passthroughs   = []string{
		"identify_ctrlr", "identify_uuid_list", "get_log_page", "get_set_features", "sanitize", "security_send_recv",
		"fw_update", "nvme_mi", "vendor_specific",
	}
)

const (
	targetName           = "nvmf_tgt"
	defaultMaxSubsystems = 1024
)

func defaultNvmf() nvmfConfig {
	c := nvmfConfig{
		digests: dhchapDigests, dhgroups: dhchapDHGroups, discoveryFilter: "match_any", dupHostPolicy: "allow",
		passthrough: map[string]bool{}, cpumasks: map[uint64][]int{}, placed: map[uint64]int{},
	}
	for _, p := range passthroughs {
		c.passthrough[p] = false
	}
	return c
}

// start gives every core of the mask a poll group.
func (c *nvmfConfig) start(cores []int) {
	c.pollGroups = cores
	if c.pollGroupsMask != nil {
		c.pollGroups = c.pollGroupsMask
	}
	if c.maxSubsystems == 0 {
		c.maxSubsystems = defaultMaxSubsystems
	}
}

func (a *app) nvmfSetConfig(r *request) {
	c := a.nvmf
	passthrough := map[string]bool{}
	if r.params != nil && !r.decode(
		optional("poll_groups_mask", func(raw json.RawMessage) error {
			var mask string
			if err := asString(&mask)(raw); err != nil {
				return err
			}
			cores, err := parseCores(mask)
			if err != nil || !subset(cores, a.cores) {
				return errParams
			}
			c.pollGroupsMask = cores
			return nil
		}),
		optional("discovery_filter", func(raw json.RawMessage) error {
			return asDiscoveryFilter(raw, &c.discoveryFilter)
		}),
		optional("dhchap_digests", asSomeOf(&c.digests, dhchapDigests...)),
		optional("dhchap_dhgroups", asSomeOf(&c.dhgroups, dhchapDHGroups...)),
		optional("dup_host_policy", asOneOf(&c.dupHostPolicy, "allow", "restrict_per_listener")),
		optional("admin_cmd_passthru", func(raw json.RawMessage) error {
			return json.Unmarshal(raw, &passthrough)
		})) {
		r.invalid()
		return
	}
	for name := range passthrough {
		if !slices.Contains(passthroughs, name) {
			r.invalid()
			return
		}
	}
	maps.Copy(c.passthrough, passthrough)
	a.nvmf = c
	r.answer(true)
}

// asDiscoveryFilter reads match_any, or some of transport, address and svcid.
func asDiscoveryFilter(raw json.RawMessage, dst *string) error {
	var s string
	if err := asString(&s)(raw); err != nil {
		return err
	}
	parts := strings.Split(s, ",")
	for _, p := range parts {
		if p == "match_any" && len(parts) > 1 {
			return errParams
		}
		if !slices.Contains([]string{"match_any", "transport", "address", "svcid"}, p) {
			return errParams
		}
	}
	*dst = shownFilter(parts)
	return nil
}

// shownFilter is what 26.05 shows of a filter: it sets the bits one place higher than it reads them. What it would
// show of svcid lies beyond the end of its table; here it is left out.
func shownFilter(parts []string) string {
	var shown []string
	if slices.Contains(parts, "transport") {
		shown = append(shown, "address")
	}
	if slices.Contains(parts, "address") {
		shown = append(shown, "svcid")
	}
	if len(shown) == 0 {
		return "match_any"
	}
	return strings.Join(shown, ",")
}

func (a *app) nvmfSetMaxSubsystems(r *request) {
	if a.nvmf.maxSubsystems != 0 {
		r.fail(codeInternal, "Must not call more than once")
		return
	}
	var most uint32
	if r.params != nil && !r.decode(required("max_subsystems", asUint(&most))) {
		r.invalid()
		return
	}
	a.nvmf.maxSubsystems = most
	r.answer(true)
}

// onTarget is the parameter that most nvmf methods take; wrongTarget answers when it names another than ours.
func onTarget(name *string) field { return optional("tgt_name", asString(name)) }

func wrongTarget(r *request, name string) bool {
	if name == "" || name == targetName {
		return false
	}
	r.fail(codeInternal, msgNoTarget)
	return true
}

// nvmfConfigCalls writes the configuration in the order in which it can be played back: listeners last.
func (a *app) nvmfConfigCalls() []configCall {
	c := a.nvmf
	conf := map[string]any{
		"discovery_filter": c.discoveryFilter, "admin_cmd_passthru": c.passthrough, "dhchap_digests": c.digests,
		"dhchap_dhgroups": c.dhgroups, "dup_host_policy": c.dupHostPolicy,
	}
	if c.pollGroupsMask != nil {
		conf["poll_groups_mask"] = formatCores(c.pollGroupsMask)
	}
	calls := []configCall{
		{"nvmf_set_config", conf},
		{"nvmf_set_max_subsystems", map[string]any{"max_subsystems": c.maxSubsystems}},
		{"nvmf_set_crdt", map[string]any{"crdt1": c.crdt[0], "crdt2": c.crdt[1], "crdt3": c.crdt[2]}},
	}
	for _, t := range a.transports {
		calls = append(calls, configCall{"nvmf_create_transport", t.info(a.before(release2605))})
	}
	subsystems := a.sortedSubsystems()
	for _, s := range subsystems {
		calls = append(calls, s.createCall())
	}
	for _, part := range []func(*subsystem) []configCall{
		(*subsystem).hostCalls, (*subsystem).namespaceCalls, (*subsystem).namespaceHostCalls,
		(*subsystem).listenerCalls,
	} {
		for _, s := range subsystems {
			calls = append(calls, part(s)...)
		}
	}
	return calls
}
