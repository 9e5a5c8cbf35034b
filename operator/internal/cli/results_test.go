// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// result of a command as -o json prints it, in one line.
func (r *rig) result(run func(w *watcher) error) (string, int) {
	r.t.Helper()
	r.format = outputJSON
	r.out.Reset()
	r.results.Reset()
	err := run(r.watcher())
	code := exitCode(err)
	if code == 0 {
		r.do(err)
	}
	var line bytes.Buffer
	r.do(json.Compact(&line, r.results.Bytes()))
	return line.String(), code
}

// The fields of what commands did are what programs read: their names stay.
func TestResultsForPrograms(t *testing.T) {
	const data = `"volume":"databases/data","name":"v-data"`
	const moving = `"replica":"v-data-0","from":"a","to":"b"`
	const requested = `[{"volume":"databases/data","replica":"v-data-0","from":"a","state":"Requested"}]`
	const stored = `"replicas":["v-data-0"],"snapshots":[]`
	move := func(o moveOptions) func(*rig, *watcher) error {
		return func(r *rig, w *watcher) error { return moveClaim(r.ctx, w, "databases", "data", o) }
	}
	empty := func(drive string, o drainOptions) func(*rig, *watcher) error {
		return func(r *rig, w *watcher) error {
			o.max = 4
			return drain(r.ctx, w, source{node: "a", drive: drive}, o)
		}
	}
	cordons := func(cordon, dryRun bool) func(*rig, *watcher) error {
		return func(r *rig, w *watcher) error { return cordonNodes(r.ctx, w, []string{"a"}, cordon, dryRun) }
	}
	rotate := func(o rotateOptions) func(*rig, *watcher) error {
		return func(r *rig, w *watcher) error { return rotateVolumes(r.ctx, w, "", o) }
	}
	for name, c := range map[string]struct {
		before func(*rig)
		run    func(*rig, *watcher) error
		want   string
		code   int
	}{
		"move, dry run": {nil, move(moveOptions{to: "b", dryRun: true}), `{"dryRun":true,` + data + `,"result":"Requested",` + moving + `}`, 0},
		"move":          {nil, move(moveOptions{to: "b"}), `{"dryRun":false,` + data + `,"result":"Requested",` + moving + `}`, 0},
		"move again": {func(r *rig) { r.do(moveClaim(r.ctx, r.watcher(), "databases", "data", moveOptions{to: "b"})) }, move(moveOptions{}),
			`{"dryRun":false,` + data + `,"result":"Running",` + moving + `}`, 0},
		"move until it is complete": {func(r *rig) { r.steps = []func(){func() { r.add("v-data", "b") }, func() { r.remove("v-data") }} }, move(moveOptions{wait: true}),
			`{"dryRun":false,` + data + `,"result":"Moved",` + moving + `}`, 0},
		"move that is cancelled meanwhile": {func(r *rig) {
			r.steps = []func(){func() {
				r.do(moveClaim(r.ctx, newWatcher(r.api, &r.out), "databases", "data", moveOptions{cancel: true}))
			}}
		}, move(moveOptions{to: "b", wait: true}), `{"dryRun":false,` + data + `,"result":"Cancelled",` + moving + `}`, CodeUnwell},
		"cancel nothing":    {nil, move(moveOptions{cancel: true}), `{"dryRun":false,` + data + `,"result":"NotRunning"}`, 0},
		"cordon":            {nil, cordons(true, false), `{"dryRun":false,"nodes":[{"name":"a","unschedulable":true,"changed":true,"target":"fast","replicas":1,"newVolumesOn":["b","c"]}]}`, 0},
		"uncordon, dry run": {nil, cordons(false, true), `{"dryRun":true,"nodes":[{"name":"a","unschedulable":false,"changed":false,"target":"fast"}]}`, 0},
		"drain, dry run": {nil, empty("", drainOptions{dryRun: true}), `{"dryRun":true,"node":"a","unschedulable":true,"requested":` + requested +
			`,"left":{"empty":false,` + stored + `,"running":[],"canMove":["v-data-0"],"cannotMove":[],"passing":[]}}`, 0},
		"drain": {nil, empty("", drainOptions{}), `{"dryRun":false,"node":"a","unschedulable":true,"requested":` + requested +
			`,"left":{"empty":false,` + stored + `,"running":` + requested + `,"canMove":[],"cannotMove":[],"passing":[]}}`, CodeUnwell},
		"drain until it is empty": {func(r *rig) { r.steps = []func(){r.moved("v-data", "b")} }, empty("", drainOptions{wait: true}), `{"dryRun":false,"node":"a","unschedulable":true,"requested":` +
			requested + `,"left":{"empty":true,"replicas":[],"snapshots":[],"running":[],"canMove":[],"cannotMove":[],"passing":[]}}`, 0},
		"retire what cannot move": {func(r *rig) {
			v := r.volume("v-data")
			v.Spec.Attachments[0].Access = v1alpha1.AccessSharedWrite
			r.do(r.api.Update(r.ctx, v))
		}, empty("eui.a", drainOptions{}), `{"dryRun":false,"node":"a","drive":"eui.a","unschedulable":true,"requested":[],"left":{"empty":false,` + stored +
			`,"running":[],"canMove":[],"cannotMove":[{"name":"v-data-0","volume":"databases/data","reason":"the volume is attached for shared access (nodes worker)`, CodeUnwell},
		"retire, undone": {nil, empty("eui.a", drainOptions{undo: true}), `{"dryRun":false,"node":"a","drive":"eui.a","unschedulable":false,"requested":[]}`, 0},
		"rebalance": {nil, func(r *rig, w *watcher) error {
			return rebalance(r.ctx, w, "fast", rebalanceOptions{max: 1, within: 10, dryRun: true})
		},
			`{"dryRun":true,"target":"fast","requested":[],"running":[],"nodes":[{"name":"a","getsReplicas":true,"total":"1Ti","promised":"0","promisedAfterwards":"0"},`, 0},
		"rotate, dry run": {nil, rotate(rotateOptions{all: true, dryRun: true}), `{"dryRun":true,"volumes":[{` + data + `,"result":"Requested"}]}`, 0},
		"rotate, refused": {func(r *rig) {
			v := r.volume("v-data")
			v.Spec.Replicas = 2
			r.do(r.api.Update(r.ctx, v))
		}, rotate(rotateOptions{target: "fast"}),
			`{"dryRun":false,"volumes":[{` + data + `,"result":"Refused","reason":"it is about to be mirrored`, 0},
		"rotate until it is complete": {func(r *rig) {
			r.steps = []func(){func() {
				r.replica("v-data-0", func(rep *v1alpha1.NvmfReplica) { rep.Spec.Hosts[0].KeyRotation = r.volume("v-data").Spec.KeyRotation })
			}}
		}, rotate(rotateOptions{all: true, wait: true}), `{"dryRun":false,"volumes":[{` + data + `,"result":"Rotated"}]}`, 0},
		"drop": {nil, func(r *rig, w *watcher) error { return tellDropped(r.ctx, w, "a", "eui.a") },
			`{"node":"a","drive":"eui.a","dropped":true,"lostReplicas":[{"name":"v-data-0","volume":"v-data"}]}`, 0},
	} {
		t.Run(name, func(t *testing.T) {
			_, objects := keyedVolume("data")
			r := newRig(t, objects...)
			r.replica("v-data-0", func(rep *v1alpha1.NvmfReplica) { rep.Status.Device = "eui.a" })
			if c.before != nil {
				c.before(r)
			}
			got, code := r.result(func(w *watcher) error { return c.run(r, w) })
			if code != c.code || !strings.HasPrefix(got, c.want) || strings.HasSuffix(c.want, "}") && got != c.want {
				t.Errorf("exit code %d:\n%s\nwant %d:\n%s", code, got, c.code, c.want)
			}
			if r.out.Len() == 0 {
				t.Error("no lines on standard error")
			}
		})
	}
}

// A command that fails prints no object.
func TestNoResultOfAFailure(t *testing.T) {
	r := newRig(t)
	r.format = outputYAML
	for name, err := range map[string]error{
		"move": moveClaim(r.ctx, r.watcher(), "databases", "nobody", moveOptions{}), "cordon": cordonNodes(r.ctx, r.watcher(), []string{"a", "nobody"}, true, false),
		"drain": drain(r.ctx, r.watcher(), source{node: "nobody"}, drainOptions{max: 1}),
	} {
		if err == nil || r.results.Len() > 0 {
			t.Errorf("%s: %v:\n%s", name, err, r.results.String())
		}
	}
}
