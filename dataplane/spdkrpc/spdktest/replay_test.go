// SPDX-License-Identifier: Apache-2.0

package spdktest

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

// transcripts are what a real target answered.
type transcripts struct {
	Target    string     `json:"target"`
	Scenarios []scenario `json:"scenarios"`
}

type scenario struct {
	Name  string   `json:"scenario"`
	Flags []string `json:"flags"`
	Steps []step   `json:"steps"`
}

type step struct {
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	// Together: sent in one write with the steps before and after it that have this too.
	Together bool            `json:"together,omitempty"`
	Result   json.RawMessage `json:"result,omitempty"`
	Error    *rpcError       `json:"error,omitempty"`
}

const (
	// givenFile came with the project, moreFile was recorded for this package by TestRecord.
	givenFile     = "../testdata/transcripts-26.05.json"
	moreFile      = "testdata/more-26.05.json"
	recordedDir   = "/var/lib/weft" // where the disks and keys of the recording lay
	recordedCores = "0x3"
)

func loadTranscripts(t *testing.T, path string) transcripts {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("read the recorded answers: %v", err)
	}
	var all transcripts
	if err := json.Unmarshal(raw, &all); err != nil {
		t.Fatalf("read %s: %v", path, err)
	}
	if len(all.Scenarios) == 0 {
		t.Fatalf("%s has no scenarios", path)
	}
	return all
}

// TestReplay plays every recorded scenario and wants every recorded answer.
func TestReplay(t *testing.T) {
	for _, file := range []string{givenFile, moreFile} {
		all := loadTranscripts(t, file)
		t.Run(filepath.Base(file), func(t *testing.T) {
			play(t, all, startFake, func(t *testing.T, c *comparison, s *step, got answer) { c.answer(t, s, got) })
		})
	}
}

// TestReplayOnRealTarget plays the same to the target that WEFT_SPDK_TARGET names.
func TestReplayOnRealTarget(t *testing.T) {
	path := RealTarget(t)
	for _, file := range []string{givenFile, moreFile} {
		all := loadTranscripts(t, file)
		t.Run(filepath.Base(file), func(t *testing.T) {
			play(t, all, startReal(path), func(t *testing.T, c *comparison, s *step, got answer) {
				if s.Method == "rpc_get_methods" {
					c.methods(t, s, got)
					return
				}
				c.answer(t, s, got)
			})
		})
	}
}

var recording = flag.Bool("record", false, "write what the target that "+TargetVariable+" names answers to "+moreFile)

// TestRecord plays the steps of moreFile to a real target and puts its answers there.
func TestRecord(t *testing.T) {
	if !*recording {
		t.Skip("records only with -record")
	}
	all := loadTranscripts(t, moreFile)
	play(t, all, startReal(RealTarget(t)), func(_ *testing.T, c *comparison, s *step, got answer) {
		s.Result, s.Error = json.RawMessage(strings.ReplaceAll(string(got.Result), c.dir, recordedDir)), got.Error
	})
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	if err := enc.Encode(all); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(moreFile, out.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

type starter func(t *testing.T, s scenario, socket string)

func startFake(t *testing.T, s scenario, socket string) {
	Start(t, Options{
		Socket: socket, CoreMask: recordedCores, WaitForRPC: slices.Contains(s.Flags, "--wait-for-rpc"),
		// What the recording target's machine has.
		OwnsAddress: func(_, traddr, _ string) bool { return traddr == "127.0.0.1" },
	})
}

func startReal(path string) starter {
	return func(t *testing.T, s scenario, socket string) {
		StartReal(t, path, socket, append([]string{"-m", recordedCores}, s.Flags...)...)
	}
}

// play gives every scenario a target and a disk of its own, but for a second life, which finds the first one's.
func play(t *testing.T, all transcripts, start starter, judge func(*testing.T, *comparison, *step, answer)) {
	var dir string
	for i := range all.Scenarios {
		s := all.Scenarios[i]
		if !strings.Contains(s.Name, "second life") {
			dir = shortTempDir(t)
			makeRecordedFiles(t, dir)
		}
		t.Run(s.Name, func(t *testing.T) {
			socket := filepath.Join(shortTempDir(t), "spdk.sock")
			start(t, s, socket)
			c := dial(t, socket)
			compared := newComparison(dir)
			for first := 0; first < len(s.Steps); {
				last := first + 1
				for s.Steps[first].Together && last < len(s.Steps) && s.Steps[last].Together {
					last++
				}
				for i, got := range c.together(compared, s.Steps[first:last]) {
					judge(t, compared, &s.Steps[first+i], got)
				}
				first = last
			}
		})
	}
}

func makeRecordedFiles(t *testing.T, dir string) {
	t.Helper()
	for name, mode := range map[string]os.FileMode{"key1": 0o600, "key2": 0o644} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("DHHC-1:00:fake:\n"), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(dir, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	for name, size := range map[string]int64{"disk0.bin": 2 << 30, "disk1.bin": 64 << 20, "odd.bin": 1<<20 + 512} {
		makeDisk(t, filepath.Join(dir, name), size)
	}
}

func makeDisk(t *testing.T, path string, size int64) string {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	return path
}

// shortTempDir keeps Unix sockets within 107 bytes, which the paths of t.TempDir may not.
func shortTempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "spdk")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// A comparison holds recorded answers against new ones. What may differ:
//   - UUIDs, and NGUIDs made of them: one recorded stands for one new one throughout the scenario
//   - the directory of disks and keys
//   - numbers that the clock or the machine makes: the keys in measured
type comparison struct {
	dir   string
	there map[string]string // recorded UUID to new one
	back  map[string]string
}

var measured = []string{
	"tick_rate", "ticks", "pid", "tid", "busy", "idle", "elapsed", "irq", "sys", "usr",
	"cache", "read_latency_ticks", "max_read_latency_ticks", "min_read_latency_ticks",
}

func newComparison(dir string) *comparison {
	return &comparison{dir: dir, there: map[string]string{}, back: map[string]string{}}
}

func (c *comparison) paths(raw []byte) string {
	return strings.ReplaceAll(string(raw), recordedDir, c.dir)
}

func (c *comparison) answer(t *testing.T, want *step, got answer) {
	t.Helper()
	what := fmt.Sprintf("%s %s", want.Method, bytes.Join(bytes.Fields(want.Params), nil))
	if want.Error != nil || got.Error != nil {
		if !reflect.DeepEqual(want.Error, got.Error) {
			t.Errorf("%s:\n want error %v\n  got error %v, result %s", what, want.Error, got.Error, got.Result)
		}
		return
	}
	var recorded, answered any
	if err := json.Unmarshal([]byte(c.paths(want.Result)), &recorded); err != nil {
		t.Fatalf("%s: recorded answer: %v", what, err)
	}
	if err := json.Unmarshal(got.Result, &answered); err != nil {
		t.Fatalf("%s: answer %s: %v", what, got.Result, err)
	}
	for _, d := range c.differences("", recorded, answered) {
		t.Errorf("%s: %s", what, d)
	}
}

// methods may be listed in another order, which the linker makes, and without those of a library that was not built in.
func (c *comparison) methods(t *testing.T, want *step, got answer) {
	t.Helper()
	var recorded, answered []string
	if err := errors.Join(json.Unmarshal(want.Result, &recorded), json.Unmarshal(got.Result, &answered)); err != nil {
		t.Fatal(err)
	}
	for _, m := range recorded {
		if !slices.Contains(answered, m) && m != "keyring_linux_set_options" {
			t.Errorf("method %s is missing", m)
		}
	}
	for _, m := range answered {
		if !slices.Contains(recorded, m) {
			t.Errorf("method %s is too much", m)
		}
	}
}

func (c *comparison) differences(at string, want, got any) []string {
	differ := []string{fmt.Sprintf("at %q: want %v, got %v", at, want, got)}
	switch want := want.(type) {
	case map[string]any:
		object, ok := got.(map[string]any)
		if !ok {
			return differ
		}
		return c.objects(at, want, object)
	case []any:
		list, ok := got.([]any)
		if !ok || len(list) != len(want) {
			return differ
		}
		var all []string
		for i := range want {
			all = append(all, c.differences(fmt.Sprintf("%s[%d]", at, i), want[i], list[i])...)
		}
		return all
	case string:
		s, ok := got.(string)
		if !ok || !c.same(want, s) {
			return differ
		}
		return nil
	}
	if want != got {
		return differ
	}
	return nil
}

func (c *comparison) objects(at string, want, got map[string]any) []string {
	var all []string
	for k, v := range want {
		other, ok := got[k]
		switch {
		case !ok:
			all = append(all, fmt.Sprintf("at %q: %q is missing", at, k))
		case slices.Contains(measured, k):
			if reflect.TypeOf(v) != reflect.TypeOf(other) {
				all = append(all, fmt.Sprintf("at %q: %q is %v", at, k, other))
			}
		default:
			all = append(all, c.differences(at+"."+k, v, other)...)
		}
	}
	for k, v := range got {
		if _, ok := want[k]; !ok {
			all = append(all, fmt.Sprintf("at %q: %q: %v is too much", at, k, v))
		}
	}
	return all
}

// same is equality but for UUIDs, which must match one to one.
func (c *comparison) same(want, got string) bool {
	a, errA := uuid.Parse(want)
	b, errB := uuid.Parse(got)
	if errA != nil || errB != nil || len(want) != len(got) || strings.ToUpper(want) == want != (strings.ToUpper(got) == got) {
		return want == got
	}
	there, seen := c.there[a.String()]
	back, seenBack := c.back[b.String()]
	if !seen && !seenBack {
		c.there[a.String()], c.back[b.String()] = b.String(), a.String()
		return true
	}
	return there == b.String() && back == a.String()
}

// A client is as little as it takes to call a target.
type client struct {
	t    *testing.T
	conn net.Conn
	dec  *json.Decoder
	id   int
}

type answer struct {
	ID     json.RawMessage `json:"id"`
	Result json.RawMessage `json:"result"`
	Error  *rpcError       `json:"error"`
}

func dial(t *testing.T, socket string) *client {
	t.Helper()
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return &client{t: t, conn: conn, dec: json.NewDecoder(conn)}
}

func (c *client) send(method string, params any) int {
	c.t.Helper()
	c.id++
	body := encodeCall(c.t, c.id, method, params)
	if _, err := c.conn.Write(body); err != nil {
		c.t.Fatalf("send %s: %v", method, err)
	}
	return c.id
}

// together sends calls in one write, and returns their answers in the order of the calls.
func (c *client) together(paths *comparison, steps []step) []answer {
	c.t.Helper()
	var all bytes.Buffer
	first := c.id + 1
	for _, s := range steps {
		c.id++
		all.Write(encodeCall(c.t, c.id, s.Method, json.RawMessage(paths.paths(s.Params))))
	}
	if _, err := c.conn.Write(all.Bytes()); err != nil {
		c.t.Fatal(err)
	}
	answers := make([]answer, len(steps))
	for range steps {
		a, err := c.receive()
		if err != nil {
			c.t.Fatalf("answer of %v: %v", steps, err)
		}
		var id int
		if err := json.Unmarshal(a.ID, &id); err != nil {
			c.t.Fatal(err)
		}
		answers[id-first] = a
	}
	return answers
}

func encodeCall(t *testing.T, id int, method string, params any) []byte {
	t.Helper()
	call := map[string]any{"jsonrpc": "2.0", "id": id, "method": method}
	if raw, ok := params.(json.RawMessage); params != nil && (!ok || len(raw) > 0 && string(raw) != "null") {
		call["params"] = params
	}
	body, err := json.Marshal(call)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

func (c *client) receive() (answer, error) {
	var a answer
	err := c.dec.Decode(&a)
	return a, err
}

func (c *client) call(method string, params any) answer {
	c.t.Helper()
	c.send(method, params)
	a, err := c.receive()
	if err != nil {
		c.t.Fatalf("answer of %s: %v", method, err)
	}
	return a
}

// must calls and wants no error; into, if given, takes the result.
func (c *client) must(method string, params, into any) {
	c.t.Helper()
	a := c.call(method, params)
	if a.Error != nil {
		c.t.Fatalf("%s %v: %v", method, params, *a.Error)
	}
	if into != nil {
		if err := json.Unmarshal(a.Result, into); err != nil {
			c.t.Fatalf("%s %v: %s: %v", method, params, a.Result, err)
		}
	}
}

// fails calls and wants this error.
func (c *client) fails(method string, params any, code int, message string) {
	c.t.Helper()
	a := c.call(method, params)
	if a.Error == nil || a.Error.Code != code || a.Error.Message != message {
		c.t.Errorf("%s %v: want %d %q, got %+v %s", method, params, code, message, a.Error, a.Result)
	}
}
