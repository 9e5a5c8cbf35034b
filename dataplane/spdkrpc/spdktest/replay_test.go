// SPDX-License-Identifier: Apache-2.0

package spdktest

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/weft-storage/weft/dataplane/spdkrpc"
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
	// givenFile came with the project. The others, of which each release has a parentsFile, were recorded for this
	// package by TestRecord.
	givenFile     = "../testdata/transcripts-26.05.json"
	moreFile      = "testdata/more-26.05.json"
	olderFile     = "testdata/older-25.05.json"
	iostatFile    = "testdata/iostat-26.05.json"
	histogramFile = "testdata/histogram-26.05.json"
	parentsFile   = "testdata/parents-"
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

// recordings by the release that they were made of.
var recordings = map[string][]string{"26.05": {givenFile, moreFile, iostatFile, histogramFile, parentsFile + "26.05.json"}, "25.05": {olderFile, parentsFile + "25.05.json"}}

// TestReplay plays every recorded scenario and wants every recorded answer.
func TestReplay(t *testing.T) {
	for version, files := range recordings {
		for _, file := range files {
			all := loadTranscripts(t, file)
			t.Run(filepath.Base(file), func(t *testing.T) {
				play(t, all, startFake(version), func(t *testing.T, c *comparison, s *step, got answer) {
					if s.Method == "rpc_get_methods" && s.Error == nil {
						s.Result = known(t, s.Result)
					}
					c.answer(t, s, got)
				})
			})
		}
	}
}

// known are those of a real target's methods that the fake has, in the real one's order.
func known(t *testing.T, raw json.RawMessage) json.RawMessage {
	t.Helper()
	var names []string
	if err := json.Unmarshal(raw, &names); err != nil {
		t.Fatal(err)
	}
	names = slices.DeleteFunc(names, func(name string) bool { return byName[name].run == nil })
	out, err := json.Marshal(names)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestMethodsAreTheClients: the fake has what our client can send, and nothing else.
func TestMethodsAreTheClients(t *testing.T) {
	sends := spdkrpc.Methods()
	for _, m := range methods {
		if !slices.Contains(sends, m.name) {
			t.Errorf("the client cannot send %s", m.name)
		}
	}
	for _, name := range sends {
		if byName[name].run == nil {
			t.Errorf("the fake has no %s", name)
		}
	}
}

// recordingsOf the release that the real target is.
func recordingsOf(t *testing.T, path string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), path, "--version").CombinedOutput()
	if err != nil {
		t.Fatalf("%s --version: %v: %s", path, err, out)
	}
	for version, files := range recordings {
		if strings.HasPrefix(string(out), "SPDK v"+version) {
			return files
		}
	}
	t.Skipf("nothing was recorded of %s", out)
	return nil
}

// TestReplayOnRealTarget plays the same to the target that WEFT_SPDK_TARGET names.
func TestReplayOnRealTarget(t *testing.T) {
	path := RealTarget(t)
	for _, file := range recordingsOf(t, path) {
		all := loadTranscripts(t, file)
		t.Run(filepath.Base(file), func(t *testing.T) {
			play(t, all, startReal(path), func(t *testing.T, c *comparison, s *step, got answer) {
				if s.Method == "rpc_get_methods" && s.Error == nil {
					c.methods(t, s, got)
					return
				}
				if s.Method == "framework_get_config" && s.Error == nil && got.Error == nil {
					got.Result = recordedSockets(t, s.Result, got.Result)
				}
				c.answer(t, s, got)
			})
		})
	}
}

// recordedSockets is a configuration without the implementations of sockets that the recorded one does not have: a
// target that was built with io_uring has one more.
func recordedSockets(t *testing.T, recorded, got json.RawMessage) json.RawMessage {
	t.Helper()
	var was, is []map[string]any
	if errors.Join(json.Unmarshal(recorded, &was), json.Unmarshal(got, &is)) != nil {
		return got // no configuration: the comparison says so
	}
	implementation := func(entry map[string]any) any {
		params, _ := entry["params"].(map[string]any)
		return params["impl_name"]
	}
	is = slices.DeleteFunc(is, func(e map[string]any) bool {
		known := func(r map[string]any) bool {
			return r["method"] == e["method"] && implementation(r) == implementation(e)
		}
		return e["method"] == "sock_impl_set_options" && !slices.ContainsFunc(was, known)
	})
	out, err := json.Marshal(is)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

var recording = flag.Bool("record", false, "write what the target that "+TargetVariable+" names answers to the recordings of its release")

// TestRecord plays the steps of every recording of its release to a real target and puts its answers there.
func TestRecord(t *testing.T) {
	if !*recording {
		t.Skip("records only with -record")
	}
	path := RealTarget(t)
	for _, file := range recordingsOf(t, path) {
		all := loadTranscripts(t, file)
		play(t, all, startReal(path), func(_ *testing.T, c *comparison, s *step, got answer) {
			s.Result, s.Error = json.RawMessage(strings.ReplaceAll(string(got.Result), c.dir, recordedDir)), got.Error
		})
		var out bytes.Buffer
		enc := json.NewEncoder(&out)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", " ")
		if err := enc.Encode(all); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

type starter func(t *testing.T, s scenario, socket string)

func startFake(version string) starter {
	return func(t *testing.T, s scenario, socket string) {
		Start(t, Options{
			Socket: socket, CoreMask: recordedCores, WaitForRPC: slices.Contains(s.Flags, "--wait-for-rpc"), Version: version,
			// What the recording target's machine has.
			OwnsAddress: func(_, traddr, _ string) bool { return traddr == "127.0.0.1" },
		})
	}
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
