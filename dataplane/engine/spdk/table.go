// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"iter"
	"strconv"
	"strings"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
)

// setting is one that a plan decides and SPDK tells.
type setting struct {
	// plan is its field in the plan's JSON; [] stands for each transport.
	plan string
	// field of the call that sets it, and of the answer that tells it.
	field string
	// told is the answer's field where it has another name.
	told string
	// name that people see, followed by "is", or by "are" where it is plural.
	name   string
	plural bool
	// call that sets it.
	call string
	// only transports of this type have it. Absent: all.
	only v1alpha1.TransportType
	// live settings change while the target serves; all others need a restart.
	live bool
	// words are SPDK's values by the plan's. Absent: a number, the same for both.
	words map[string]string
	// absent is the plan's value where its field is left out. Absent: nothing is planned then.
	absent string
	// none is SPDK's field that is true where the plan's value is none.
	none string
	// ours is how much more SPDK is told, for what the engine itself needs.
	ours int64
	// before is the field that takes its place in releases with dialect.oneCache.
	before string
}

// Calls that take settings, by SPDK's names.
const (
	setIobuf      = "iobuf_set_options"
	setBdev       = "bdev_set_options"
	setSubsystems = "nvmf_set_max_subsystems"
	setNvmf       = "nvmf_set_config"
	setSockets    = "sock_impl_set_options"
	setTransport  = "nvmf_create_transport"
	setScheduler  = "framework_set_scheduler"
	setHistogram  = "bdev_enable_histogram"
)

const (
	tcp  = v1alpha1.TransportTCP
	rdma = v1alpha1.TransportRDMA

	off  = string(v1alpha1.SwitchDisabled)
	on   = string(v1alpha1.SwitchEnabled)
	none = "none"

	latencyHistograms = "latencyHistograms"
)

var (
	switches = map[string]string{on: "true", off: "false"}
	// groups that a target may be told to take, by the plan's names. One that was told nothing takes any.
	groups = map[string]string{
		string(v1alpha1.DHGroupNone): listOf(spdkrpc.GroupNull), string(v1alpha1.DHGroupFFDHE2048): listOf(spdkrpc.GroupFFDHE2048),
		string(v1alpha1.DHGroupFFDHE3072): listOf(spdkrpc.GroupFFDHE3072), string(v1alpha1.DHGroupFFDHE4096): listOf(spdkrpc.GroupFFDHE4096),
		"any": listOf(spdkrpc.GroupNull, spdkrpc.GroupFFDHE2048, spdkrpc.GroupFFDHE3072, spdkrpc.GroupFFDHE4096, spdkrpc.GroupFFDHE6144, spdkrpc.GroupFFDHE8192),
	}
	placements = map[string]string{
		string(v1alpha1.PlacementNone): fmt.Sprint(spdkrpc.PlacementNone),
		string(v1alpha1.PlacementNAPI): fmt.Sprint(spdkrpc.PlacementNAPI),
		string(v1alpha1.PlacementCPU):  fmt.Sprint(spdkrpc.PlacementCPU),
	}
)

// table of the settings. How a target is started, what needs a restart, and what is reported all come from it; cores,
// poll groups and the mode, which are compared in ways of their own, are in settings.go.
var table = []setting{
	{plan: "authentication.dhGroup", field: "dhchap_dhgroups", name: "Diffie-Hellman group of authentication", call: setNvmf, words: groups},
	{plan: "smallBuffers", field: "small_pool_count", name: "small buffers", plural: true, call: setIobuf},
	{plan: "largeBuffers", field: "large_pool_count", name: "large buffers", plural: true, call: setIobuf},
	{plan: "bdevIOPoolSize", field: "bdev_io_pool_size", name: "I/O descriptors", plural: true, call: setBdev},
	{plan: "maxSubsystems", field: "max_subsystems", name: "subsystems", plural: true, call: setSubsystems, ours: ownSubsystems},

	{plan: "placement", field: "enable_placement_id", name: "placement of TCP connections", call: setSockets, only: tcp, words: placements, absent: string(v1alpha1.PlacementNone)},
	{plan: "sockets.zeroCopySend", field: "enable_zerocopy_send_server", name: "zero-copy send of sockets", call: setSockets, only: tcp, words: switches},
	{plan: "sockets.zeroCopyThreshold", field: "zerocopy_threshold", name: "zero-copy threshold in bytes of sockets", call: setSockets, only: tcp},
	{plan: "sockets.receivePipe", field: "enable_recv_pipe", name: "receive pipe of sockets", call: setSockets, only: tcp, words: switches},
	{plan: "sockets.quickAck", field: "enable_quickack", name: "quick acknowledgement of sockets", call: setSockets, only: tcp, words: switches},
	{plan: "sockets.sendBufferSize", field: "send_buf_size", name: "send buffer in bytes of sockets", call: setSockets, only: tcp},
	{plan: "sockets.receiveBufferSize", field: "recv_buf_size", name: "receive buffer in bytes of sockets", call: setSockets, only: tcp},

	{plan: "transports[].queueDepth", field: "max_queue_depth", name: "queue depth", call: setTransport},
	{plan: "transports[].maxIOQueues", field: "max_io_qpairs_per_ctrlr", name: "I/O queues", call: setTransport},
	{plan: "transports[].inCapsuleDataSize", field: "in_capsule_data_size", name: "in-capsule data bytes", call: setTransport},
	{plan: "transports[].maxIOSize", field: "max_io_size", name: "I/O bytes", call: setTransport},
	{plan: "transports[].smallCache", field: "iobuf_small_cache_size", name: "small buffer cache", call: setTransport, before: "buf_cache_size"},
	{plan: "transports[].largeCache", field: "iobuf_large_cache_size", name: "large buffer cache", call: setTransport, before: "buf_cache_size"},
	{plan: "transports[].srqDepth", field: "max_srq_depth", name: "SRQ depth", call: setTransport, only: rdma, absent: none, none: "no_srq"},
	{plan: "transports[].c2hSuccess", field: "c2h_success", name: "C2H success", call: setTransport, only: tcp, words: switches, absent: on},
	{plan: "transports[].socketPriority", field: "sock_priority", name: "socket priority", call: setTransport, only: tcp, absent: "0"},

	{plan: "scheduler.periodMicroseconds", field: "period", told: "scheduler_period", name: "period of the scheduler", call: setScheduler, live: true},
	{plan: "scheduler.loadLimit", field: "load_limit", name: "load limit of the scheduler", call: setScheduler, live: true},
	{plan: "scheduler.coreLimit", field: "core_limit", name: "core limit of the scheduler", call: setScheduler, live: true},
	{plan: "scheduler.coreBusy", field: "core_busy", name: "busy limit of the scheduler", call: setScheduler, live: true},
}

// values of settings as a plan writes them, by the names that choices and reports have for them, such as
// transports[TCP].queueDepth.
type values map[string]string

// transports is a set of their types.
type transports map[v1alpha1.TransportType]bool

// rows of the table for a target with these transports, with their names in values.
func (t transports) rows() iter.Seq2[string, *setting] {
	return func(yield func(string, *setting) bool) {
		for i := range table {
			row := &table[i]
			for _, name := range t.names(row) {
				if !yield(name, row) {
					return
				}
			}
		}
	}
}

// names in values of a row: one for each transport that has it, or one for the target.
func (t transports) names(row *setting) []string {
	field, each := strings.CutPrefix(row.plan, "transports[]")
	if !each {
		if row.only == "" || t[row.only] {
			return []string{row.plan}
		}
		return nil
	}
	var names []string
	for _, of := range []v1alpha1.TransportType{tcp, rdma} {
		if t[of] && (row.only == "" || row.only == of) {
			names = append(names, "transports["+string(of)+"]"+field)
		}
	}
	return names
}

// planned values, of a plan that a target of this dialect can keep.
func planned(plan *v1alpha1.SPDKPlan, speaks dialect) (transports, values, error) {
	plan = plan.DeepCopy()
	types := transports{}
	for i := range plan.Transports {
		t := &plan.Transports[i]
		types[t.Type] = true
		if speaks.oneCache {
			one := int32(oneCache(uint32(t.SmallCache), uint32(t.LargeCache)))
			t.SmallCache, t.LargeCache = one, one
		}
	}
	given := values{}
	if err := given.flatten("", plan); err != nil {
		return nil, nil, err
	}
	for _, t := range plan.Transports {
		if err := given.flatten("transports["+string(t.Type)+"].", t); err != nil {
			return nil, nil, err
		}
	}
	v := values{}
	for name, row := range types.rows() {
		if value := cmp.Or(given[name], row.absent); value != "" {
			v[name] = value
		}
	}
	return types, v, nil
}

// listOf words as SPDK writes it.
func listOf(words ...spdkrpc.DHCHAPGroup) string {
	text, _ := json.Marshal(words) // strings always marshal
	return string(text)
}

// flatten what marshals as a JSON object into the values of its fields, and of those of objects in it. A list is its
// JSON without space.
func (v values) flatten(prefix string, object any) error {
	text, err := json.Marshal(object)
	if err != nil {
		return err
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var fields map[string]any
	if err := decoder.Decode(&fields); err != nil {
		return err
	}
	for field, value := range fields {
		switch value.(type) {
		case map[string]any:
			if err := v.flatten(prefix+field+".", value); err != nil {
				return err
			}
		case []any:
			list, err := json.Marshal(value)
			if err != nil {
				return err
			}
			v[prefix+field] = string(list)
		case string, json.Number, bool:
			v[prefix+field] = fmt.Sprint(value)
		}
	}
	return nil
}

// fill a call's request with the settings that it takes, those of one transport where it is for one. What the request
// has already stays.
func fill(req any, call string, of transports, v values, speaks dialect) error {
	params := map[string]json.RawMessage{}
	for name, row := range of.rows() {
		value, given := v[name]
		switch {
		case row.call != call || !given:
		case row.none != "" && value == none:
			params[row.none] = json.RawMessage("true")
		default:
			params[row.fieldOf(speaks)] = json.RawMessage(row.asTold(value))
		}
	}
	text, err := json.Marshal(params)
	if err != nil {
		return fmt.Errorf("%s: %w", call, err)
	}
	strict := json.NewDecoder(bytes.NewReader(text))
	strict.DisallowUnknownFields()
	if err := strict.Decode(req); err != nil {
		return fmt.Errorf("%s: %w", call, err)
	}
	return nil
}

// read the settings that a call takes from what SPDK told of them.
func (v values) read(call string, of transports, told any, speaks dialect) error {
	fields := values{}
	if err := fields.flatten("", told); err != nil {
		return fmt.Errorf("%s: %w", call, err)
	}
	for name, row := range of.rows() {
		if row.call != call {
			continue
		}
		v[name] = row.asPlanned(fields[cmp.Or(row.told, row.fieldOf(speaks))])
		if row.none != "" && (fields[row.none] == "true" || v[name] == "0") {
			v[name] = none
		}
	}
	return nil
}

// fieldOf a setting in SPDK's calls.
func (r *setting) fieldOf(speaks dialect) string {
	if speaks.oneCache {
		return cmp.Or(r.before, r.field)
	}
	return r.field
}

// asTold is a planned value as SPDK has it.
func (r *setting) asTold(value string) string { return plus(cmp.Or(r.words[value], value), r.ours) }

// asPlanned is SPDK's value as a plan has it.
func (r *setting) asPlanned(value string) string {
	for word, told := range r.words {
		if told == value {
			return word
		}
	}
	return plus(value, -r.ours)
}

func plus(value string, n int64) string {
	if was, err := strconv.ParseInt(value, 10, 64); err == nil {
		return strconv.FormatInt(was+n, 10)
	}
	return value
}

// transport whose setting this is, by its name in values; false for one of the whole target.
func (r *setting) transport(name string) (v1alpha1.TransportType, bool) {
	of, each := strings.CutPrefix(name, "transports[")
	of, _, _ = strings.Cut(of, "]")
	return v1alpha1.TransportType(of), each
}

// difference in words.
func (r *setting) difference(name, is, want string) string {
	subject, verb := r.name, "is"
	if t, each := r.transport(name); each {
		subject += " of transport " + string(t)
	}
	if r.plural {
		verb = "are"
	}
	return fmt.Sprintf("%s %s %s, but should be %s", subject, verb, inWords(is), inWords(want))
}

// inWords is a value for people.
func inWords(value string) string {
	switch value {
	case on, off:
		return onOff(value == on)
	case none:
		return "0"
	}
	return cmp.Or(value, "unknown")
}

func onOff(is bool) string {
	if is {
		return "on"
	}
	return "off"
}
