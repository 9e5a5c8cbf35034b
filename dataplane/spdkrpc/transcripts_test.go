// SPDX-License-Identifier: Apache-2.0

package spdkrpc

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"testing"
)

// step is one call that was recorded on a real target of 26.05.
type step struct {
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  *refusal        `json:"error"`
}

func transcripts(t *testing.T) []step {
	t.Helper()
	b, err := os.ReadFile("testdata/transcripts-26.05.json")
	if err != nil {
		t.Fatal(err)
	}
	var all struct {
		Scenarios []struct {
			Steps []step `json:"steps"`
		} `json:"scenarios"`
	}
	if err := json.Unmarshal(b, &all); err != nil {
		t.Fatal(err)
	}
	var steps []step
	for _, s := range all.Scenarios {
		steps = append(steps, s.Steps...)
	}
	return steps
}

// wantClasses has the class of every refusal in the transcripts, and of some that
// SPDK's source has and nobody recorded.
var wantClasses = []struct {
	Error
	class error
}{
	{Error{"nvmf_create_transport", -1, "Method may only be called after framework is initialized using framework_start_init RPC."}, ErrWrongState},
	{Error{"iobuf_get_stats", -1, "Method may only be called after framework is initialized using framework_start_init RPC."}, ErrWrongState},
	{Error{"framework_start_init", -1, "Method may only be called before framework is initialized. Use --wait-for-rpc command line parameter and then issue this RPC before the framework_start_init RPC."}, ErrWrongState},
	{Error{"iobuf_set_options", -1, "Method may only be called before framework is initialized. Use --wait-for-rpc command line parameter and then issue this RPC before the framework_start_init RPC."}, ErrWrongState},
	{Error{"nvmf_set_max_subsystems", -32603, "Must not call more than once"}, ErrWrongState},
	{Error{"no_such_method", -32601, "Method not found"}, ErrInvalid},
	{Error{"iobuf_set_options", -22, "Invalid argument"}, ErrInvalid},
	{Error{"nvmf_set_config", -32602, "Invalid parameters"}, ErrInvalid},
	{Error{"framework_set_scheduler", -32603, "Unknown error -22"}, ErrInvalid},
	{Error{"bdev_set_options", -32602, "Pool size 128 too small for cache size 256"}, ErrInvalid},
	{Error{"nvmf_get_transports", -19, "No such device"}, ErrNotFound},
	{Error{"nvmf_create_transport", -32603, "Transport type 'TCP' already exists"}, ErrExists},
	{Error{"nvmf_create_transport", -32602, "Invalid transport type 'NOPE'"}, ErrInvalid},
	{Error{"nvmf_create_transport", -32603, "Transport type 'TCP' create failed"}, ErrUnknown},
	{Error{"nvmf_create_transport", -32603, "Failed to create transport."}, ErrUnknown},
	{Error{"nvmf_create_transport", -32602, "Invalid parameters"}, ErrInvalid},
	{Error{"bdev_aio_create", -2, "No such file or directory"}, ErrNotFound},
	{Error{"bdev_aio_create", -17, "File exists"}, ErrExists},
	{Error{"bdev_get_bdevs", -19, "No such device"}, ErrNotFound},
	{Error{"bdev_lvol_create_lvstore", -19, "No such device"}, ErrNotFound},
	{Error{"bdev_lvol_create_lvstore", -1, "Operation not permitted"}, ErrExists},
	{Error{"bdev_lvol_get_lvstores", -19, "No such device"}, ErrNotFound},
	{Error{"bdev_lvol_create", -17, "File exists"}, ErrExists},
	{Error{"bdev_lvol_create", -19, "No such device"}, ErrNotFound},
	{Error{"bdev_lvol_create", -32602, "No space left on device"}, ErrNoSpace},
	{Error{"bdev_lvol_resize", -19, "No such device"}, ErrNotFound},
	{Error{"bdev_lvol_delete", -19, "No such device"}, ErrNotFound},
	{Error{"bdev_lvol_delete", -32603, "Operation not permitted"}, ErrBusy},
	{Error{"bdev_lvol_snapshot", -32602, "File exists"}, ErrExists},
	{Error{"bdev_lvol_snapshot", -19, "No such device"}, ErrNotFound},
	{Error{"bdev_lvol_clone", -32602, "File exists"}, ErrExists},
	{Error{"bdev_lvol_clone", -32602, "Invalid argument"}, ErrInvalid},
	{Error{"bdev_lvol_set_parent", -19, "No such device"}, ErrNotFound},
	{Error{"bdev_lvol_set_parent", -32602, "File exists"}, ErrExists},
	{Error{"bdev_lvol_set_parent", -32602, "Invalid argument"}, ErrInvalid},
	{Error{"bdev_lvol_set_parent", -32602, "Device or resource busy"}, ErrBusy},
	{Error{"bdev_lvol_decouple_parent", -32602, "Invalid argument"}, ErrInvalid},
	{Error{"bdev_get_iostat", -19, "No such device"}, ErrNotFound},
	{Error{"nvmf_create_subsystem", -32603, "Unable to create subsystem nqn.2026-11.storage.weft:a"}, ErrUnknown},
	{Error{"nvmf_create_subsystem", -32603, "Unable to create subsystem not-an-nqn"}, ErrUnknown},
	{Error{"nvmf_get_subsystems", -19, "No such device"}, ErrNotFound},
	{Error{"nvmf_delete_subsystem", -32602, "Invalid parameters"}, ErrUnknown},
	{Error{"nvmf_subsystem_add_ns", -32602, "Invalid parameters"}, ErrUnknown},
	{Error{"nvmf_subsystem_remove_ns", -32602, "Invalid parameters"}, ErrUnknown},
	{Error{"nvmf_subsystem_add_host", -32603, "Internal error"}, ErrUnknown},
	{Error{"nvmf_subsystem_add_host", -32602, "Invalid parameters"}, ErrUnknown},
	{Error{"nvmf_subsystem_remove_host", -32603, "Internal error"}, ErrUnknown},
	{Error{"nvmf_subsystem_add_listener", -32602, "Invalid parameters"}, ErrUnknown},
	{Error{"nvmf_subsystem_remove_listener", -32602, "Invalid parameters"}, ErrUnknown},
	{Error{"keyring_file_add_key", -1, "Operation not permitted"}, ErrInvalid},
	{Error{"keyring_file_add_key", -17, "File exists"}, ErrExists},
	{Error{"keyring_file_remove_key", -126, "Required key not available"}, ErrNotFound},

	{Error{"bdev_lvol_create", -32602, "Cannot allocate memory"}, ErrNoMemory}, // glibc's text
	{Error{"bdev_lvol_create", -32602, "Out of memory"}, ErrNoMemory},          // musl's
	{Error{"bdev_lvol_resize", -32602, "Device or resource busy"}, ErrBusy},
	{Error{"bdev_lvol_resize", -32602, "Resource busy"}, ErrBusy},
	{Error{"bdev_lvol_create", -32602, "Input/output error"}, ErrUnknown},
	{Error{"framework_set_scheduler", -32603, "No error information"}, ErrInvalid},
	{Error{"bdev_lvol_inflate", -12, "Cannot allocate memory"}, ErrNoMemory},
	{Error{"bdev_nvme_get_controllers", -22, "Controller drive0 does not exist"}, ErrNotFound},
	{Error{"bdev_nvme_set_options", -1, "RPC not permitted with nvme controllers already attached"}, ErrWrongState},
	{Error{"nvmf_delete_subsystem", -32603, "Subsystem is already being destroyed."}, ErrBusy},
	{Error{"nvmf_subsystem_remove_host", -32603, "Timeout reached during host removal"}, ErrBusy},
	{Error{"bdev_aio_delete", -1, "Operation not permitted"}, ErrUnknown},
	{Error{"bdev_get_bdevs", 5, "?"}, ErrUnknown},
}

var classes = []error{ErrNotFound, ErrExists, ErrWrongState, ErrNoMemory, ErrNoSpace, ErrBusy, ErrInvalid, ErrUnknown}

func TestClasses(t *testing.T) {
	for _, c := range wantClasses {
		var got []string
		for _, class := range classes {
			if errors.Is(fmt.Errorf("wrapped: %w", &c.Error), class) {
				got = append(got, class.Error())
			}
		}
		if len(got) != 1 || got[0] != c.class.Error() {
			t.Errorf("%v: is %q, want %q", &c.Error, got, c.class)
		}
	}
}

func TestEveryRecordedErrorHasItsClass(t *testing.T) {
	listed := map[Error]bool{}
	for _, c := range wantClasses {
		listed[c.Error] = true
	}
	recorded := 0
	for _, s := range transcripts(t) {
		if s.Error == nil {
			continue
		}
		recorded++
		if e := (Error{s.Method, s.Error.Code, s.Error.Message}); !listed[e] {
			t.Errorf("%v is not listed", &e)
		}
	}
	if recorded < 40 {
		t.Errorf("only %d errors were recorded", recorded)
	}
}

// notOurs are recorded calls that the package does not offer.
var notOurs = map[string]bool{"no_such_method": true}

// What was recorded can be said with the request types, word for word.
func TestRecordedRequests(t *testing.T) {
	types := requestTypes()
	for _, s := range transcripts(t) {
		requestType, ok := types[s.Method]
		if notOurs[s.Method] || odd(s.Params) {
			continue
		}
		if !ok {
			t.Errorf("%s cannot be called", s.Method)
			continue
		}
		request := reflect.New(requestType)
		decoder := json.NewDecoder(bytes.NewReader(s.Params))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(request.Interface()); err != nil {
			t.Errorf("%s %s: %v", s.Method, s.Params, err)
			continue
		}
		params, err := json.Marshal(request.Elem().Interface())
		if err != nil {
			t.Fatal(err)
		}
		wire := appendRequest(nil, &call{id: 1, method: s.Method, params: params})
		var got struct {
			Params json.RawMessage `json:"params"`
		}
		if err := json.Unmarshal(wire, &got); err != nil {
			t.Fatal(err)
		}
		if !sameParams(t, got.Params, s.Params) {
			t.Errorf("%s: sent %s, recorded %s", s.Method, got.Params, s.Params)
		}
	}
}

// odd parameters were recorded to see how SPDK refuses or ignores them.
func odd(params json.RawMessage) bool {
	var p map[string]any
	if json.Unmarshal(params, &p) != nil {
		return false
	}
	_, typo := p["no_such_parameter"]
	_, text := p["max_queue_depth"].(string)
	space, _ := p["namespace"].(map[string]any)
	_, hidden := space["no_auto_visible"] // a namespace is never hidden from a host of weft's
	return typo || text || hidden
}

// sameParams compares sent with recorded parameters.
func sameParams(t *testing.T, sent, recorded json.RawMessage) bool {
	t.Helper()
	var x, y map[string]any
	if len(sent) > 0 {
		if err := json.Unmarshal(sent, &x); err != nil {
			t.Fatal(err)
		}
	}
	if err := json.Unmarshal(recorded, &y); err != nil {
		t.Fatal(err)
	}
	if y["sock_priority"] == 0.0 {
		delete(y, "sock_priority") // its default, so it is not sent
	}
	return reflect.DeepEqual(x, y)
}

// What was recorded as a result has the type that its request says.
func TestRecordedResults(t *testing.T) {
	types := requestTypes()
	for _, s := range transcripts(t) {
		requestType, ok := types[s.Method]
		if !ok || s.Error != nil {
			continue
		}
		if err := decode(s.Result, reflect.New(resultType(requestType)).Interface()); err != nil {
			t.Errorf("%s %s: %v", s.Method, s.Result, err)
		}
	}
}

// requestTypes by method.
func requestTypes() map[string]reflect.Type {
	types := map[string]reflect.Type{}
	for _, r := range requests {
		types[r.method()] = reflect.TypeOf(r)
	}
	return types
}

// resultType of a request: the R of its answers[R].
func resultType(request reflect.Type) reflect.Type {
	return request.Field(0).Type.Field(0).Type.Elem().Elem()
}
