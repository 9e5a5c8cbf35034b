// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
)

// show the report in a format, and end with the exit code that belongs to it.
func (r *VolumeReport) show(out io.Writer, format *output) error {
	t := newTable(out)
	if done, err := format.encode(out, r); err != nil {
		return err
	} else if !done {
		r.print(t, format.wide())
	}
	if t.err == nil && len(r.Problems) > 0 {
		return &ExitError{CodeUnwell}
	}
	return t.err
}

// print for people: the chain from the top to the bottom, then its users, then what is wrong.
func (r *VolumeReport) print(t *table, wide bool) {
	if r.Note != "" {
		t.line("%s", r.Note)
		t.line("")
	}
	r.printHead(t)
	r.printReplicas(t, wide)
	r.printUsers(t)
	r.printEvents(t, wide)
	t.line("")
	for _, u := range r.Unknown {
		t.line("Unknown, because it could not be read: %s", u)
	}
	for _, a := range r.Attachments {
		if a.DeviceUnknown != "" {
			t.line("Unknown: the device on node %s: %s. To find it there, run: grep -lE 'WEFT-(CRYPT-)?%s-' /sys/block/dm-*/dm/uuid", a.Node, a.DeviceUnknown, r.NvmfVolume.UUID)
		}
	}
	if len(r.Problems) == 0 {
		t.line("No problems found.")
		return
	}
	t.title(red, "Problems:")
	for _, p := range r.Problems {
		t.line("- %s", p)
	}
}

func (r *VolumeReport) printHead(t *table) {
	rows := [][]string{{"Claim:", "none"}, {"PersistentVolume:", "none"}, {"NvmfVolume:", "none"}}
	if c := r.Claim; c != nil {
		about := "does not exist"
		if c.Phase != "" {
			about = list(c.Phase, c.Requested, strings.Join(c.AccessModes, "+"), c.VolumeMode, of("StorageClass", c.StorageClass))
		}
		rows[0][1] = c.Namespace + "/" + c.Name + "\t" + about
	}
	if pv := r.PersistentVolume; pv != nil {
		rows[1][1] = pv.Name + "\t" + list(pv.Phase, of("reclaim policy", pv.ReclaimPolicy), pv.FSType)
	}
	if v := r.NvmfVolume; v != nil {
		replicas := fmt.Sprintf("replicas: %d", v.Replicas)
		if v.Mirrored {
			replicas += " (mirrored)"
		}
		rows[2][1] = v.Name + "\t" + list(v.Size, of("NvmfTarget", v.Target), v.Engine, strings.Join(v.Transports, "+"), replicas)
		rows = append(rows, []string{"UUID:", v.UUID})
	}
	if r.Move != "" {
		rows = append(rows, []string{"Move:", r.Move})
	}
	t.columns(rows)
}

// list what is not empty.
func list(items ...string) string {
	var there []string
	for _, s := range items {
		if s != "" {
			there = append(there, s)
		}
	}
	return strings.Join(there, ", ")
}

// of a name with what it is the name of; empty without a name.
func of(what, name string) string {
	if name == "" {
		return ""
	}
	return what + " " + name
}

func orUnknown(s string) string { return cmp.Or(s, "unknown") }

func (r *VolumeReport) printReplicas(t *table, wide bool) {
	if len(r.Replicas) == 0 {
		return
	}
	rows := [][]string{{"REPLICA", "NODE", "DRIVE", "PATH", "ALLOCATED", "READY", "DATA", "DETAIL"}}
	for _, p := range r.Replicas {
		rows = append(rows, []string{p.Name, p.Node, orUnknown(p.Device), orUnknown(p.Path), size(p.Allocated), p.Ready, p.Data, orDash(p.Detail)})
	}
	t.line("")
	t.columns(rows)
	rows = [][]string{{"REPLICA", "SUBSYSTEM", "PORTALS", "HOST", "OF NODE", "ADMITTED"}}
	for _, p := range r.Replicas {
		served := []string{p.Name, orUnknown(p.NQN), orUnknown(strings.Join(p.Portals, ", "))}
		if len(p.Hosts) == 0 {
			rows = append(rows, append(served, "-", "-", "-"))
		}
		for _, h := range p.Hosts {
			rows = append(rows, append(served[:3:3], h.NQN, orUnknown(h.Node), yes(h.Admitted)))
		}
	}
	t.line("")
	t.columns(rows)
	if !wide {
		return
	}
	rows = [][]string{{"REPLICA", "NSID", "NGUID", "CONDITION", "STATUS", "REASON", "MESSAGE"}}
	for _, p := range r.Replicas {
		for _, c := range p.Conditions {
			rows = append(rows, []string{p.Name, fmt.Sprint(p.NSID), orUnknown(p.NGUID), c.Type, string(c.Status), c.Reason, c.Message})
		}
	}
	t.line("")
	t.columns(rows)
}

func (r *VolumeReport) printUsers(t *table) {
	t.line("")
	if len(r.Attachments) == 0 {
		t.line("Attached to: none")
	} else {
		rows := [][]string{{"ATTACHED TO", "FOR", "ACCESS", "VOLUMEATTACHMENT", "DEVICE"}}
		for _, a := range r.Attachments {
			rows = append(rows, []string{a.Node, a.For, a.Access, orDash(a.VolumeAttachment), a.device()})
		}
		t.columns(rows)
	}
	if len(r.Pods) == 0 {
		t.line("Pods: %s", r.unlessUnread("pods", "none"))
		return
	}
	rows := [][]string{{"POD", "NODE", "PHASE", "READY", "WAITING"}}
	for _, p := range r.Pods {
		rows = append(rows, []string{p.Name, orDash(p.Node), p.Phase, yes(p.Ready), orDash(p.Waiting)})
	}
	t.line("")
	t.columns(rows)
}

// unlessUnread is the text, or unknown where these objects could not be read.
func (r *VolumeReport) unlessUnread(what, text string) string {
	if slices.ContainsFunc(r.Unknown, func(u string) bool { return strings.HasPrefix(u, what+": ") }) {
		return "unknown"
	}
	return text
}

func (r *VolumeReport) printEvents(t *table, wide bool) {
	if len(r.Events) == 0 {
		return
	}
	rows := [][]string{{"LAST EVENTS", "TYPE", "REASON", "OBJECT", "MESSAGE"}}
	for _, e := range r.Events {
		age := e.age
		if e.Count > 1 {
			age += fmt.Sprintf(" (x%d)", e.Count)
		}
		rows = append(rows, []string{age, e.Type, e.Reason, e.Object, e.message(wide)})
	}
	t.line("")
	t.columns(rows)
}
