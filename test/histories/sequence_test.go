// SPDX-License-Identifier: Apache-2.0

package histories

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/controller"
	"github.com/weft-storage/weft/dataplane/engine"
)

// operations of a sequence, after which everything is compared, taken down, and compared again.
const (
	operations = 14
	most       = 5 // volumes, and snapshots
	maxSize    = 64 * mib
)

func (w *world) run() {
	for range operations {
		w.tally.operations.Add(1)
		w.operate()
	}
	w.agree()
	for len(w.volumes)+len(w.snapshots)+len(w.orphans) > 0 {
		w.takeDown()
	}
	w.agree()
	w.leavesNothing()
}

// leavesNothing of all that there was. The mark of a snapshot may stay until the target's next start.
func (w *world) leavesNothing() {
	w.Helper()
	w.tell("restart the target")
	w.must(w.storage.RestartTarget(context.WithoutCancel(w.ctx)))
	var left []string
	err := w.until("all logical volumes to go", func() (bool, error) {
		state, serves := w.serving()
		opened := func(p engine.Pool) bool { return p.Err == nil }
		left = slices.DeleteFunc(w.storage.Target().Lvols(), func(name string) bool { return name == "clean" || name == "soiled" }) // marks
		return serves && slices.ContainsFunc(state.Pools, opened) && len(left) == 0, nil
	})
	if err != nil {
		w.Fatalf("%v: %v are left", err, left)
	}
}

// any of the volumes for which fits says so; nil when there is none.
func (w *world) any(fits func(v *volume) bool) *volume {
	n := w.rng.IntN(1 << 20)
	var fitting []*volume
	for _, v := range w.volumes {
		if fits(v) {
			fitting = append(fitting, v)
		}
	}
	if len(fitting) == 0 {
		return nil
	}
	return fitting[n%len(fitting)]
}

// other host.
func (w *world) other(h *host) *host {
	if h == w.hosts[0] {
		return w.hosts[1]
	}
	return w.hosts[0]
}

func fromSnapshot(s *snapshot) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: s.id}}}
}

func fromVolume(v *volume) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: v.id}}}
}

func (w *world) dropSnapshot() {
	i := w.rng.IntN(len(w.snapshots))
	s := w.snapshots[i]
	w.snapshots = slices.Delete(w.snapshots, i, i+1)
	w.deleteSnapshot(s)
}

func (w *world) dropVolume(v *volume) {
	w.volumes = slices.DeleteFunc(w.volumes, func(other *volume) bool { return other == v })
	w.delete(v)
}

// takeDown one volume, snapshot or orphan.
func (w *world) takeDown() {
	if len(w.orphans) > 0 {
		w.endOrphan()
		return
	}
	if len(w.volumes) == 0 || len(w.snapshots) > 0 && w.rng.IntN(2) == 0 {
		w.dropSnapshot()
		return
	}
	v := w.volumes[w.rng.IntN(len(w.volumes))]
	w.read(v)
	for len(v.hosts) > 0 {
		w.detach(v, v.hosts[0])
	}
	if !v.whole() {
		w.settleMistakes()
		return
	}
	w.dropVolume(v)
}

// refusals of what must not be done with a volume that is in use on one host.
func (w *world) refusals(v *volume) {
	h, other := v.hosts[0], w.other(v.hosts[0])
	unstaged := *v
	unstaged.contexts = map[*host]map[string]string{other: v.contexts[h]}
	alone, otherwise := unstaged, unstaged
	alone.shared = false
	otherwise.use = use{block: true, shared: !v.shared}
	for _, c := range []struct {
		call call
		code codes.Code
	}{
		{w.deletion(v, codes.FailedPrecondition), codes.FailedPrecondition},
		{w.creation(v, v.size+growth, nil, codes.AlreadyExists), codes.AlreadyExists},
		{w.publication(&alone, other, codes.FailedPrecondition), codes.FailedPrecondition},
		{w.publication(&otherwise, other, codes.FailedPrecondition), codes.FailedPrecondition},
		{other.mounting(&unstaged, codes.FailedPrecondition), codes.FailedPrecondition},
		{w.unpublication(v, other), codes.OK},
	} {
		if err := w.make(c.call); status.Code(err) != c.code {
			w.Fatalf("%s: %v, want %s", c.call.name, err, c.code)
		}
	}
	w.read(v)
}

// list what there is; it is what there should be.
func (w *world) list() {
	listed := map[string]string{}
	w.must(w.make(w.onController("ListVolumes", func(ctx context.Context, s *controller.Service) error {
		resp, err := s.ListVolumes(ctx, &csi.ListVolumesRequest{})
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, e := range resp.GetEntries() {
			slices.Sort(e.Status.PublishedNodeIds)
			if strings.HasPrefix(e.Volume.VolumeId, w.target+"-") {
				listed[e.Volume.VolumeId] = fmt.Sprint(e.Volume.CapacityBytes, e.Status.PublishedNodeIds)
			}
		}
		return err
	})))
	want := map[string]string{}
	for _, v := range w.volumes {
		want[v.id] = fmt.Sprint(v.size, v.nodes())
	}
	if !reflect.DeepEqual(listed, want) {
		w.Fatalf("listed %v, want %v", listed, want)
	}
}

// agree compares objects, engine and hosts with what should be, once all are at rest, and every cluster of every volume
// and snapshot.
func (w *world) agree() {
	w.Helper()
	w.tell("compare")
	for _, h := range w.hosts {
		w.must(h.turnRDMA(false, false))
	}
	var is, want []string
	err := w.until("objects, engine and hosts to agree", func() (bool, error) {
		is, want = nil, w.expected()
		for _, h := range w.hosts {
			if err := h.mend(); err != nil {
				is = append(is, err.Error())
			}
		}
		for _, found := range []func() ([]string, error){w.objects, w.engine, w.attachments} {
			part, err := found()
			if err != nil {
				is = append(is, err.Error())
			}
			is = append(is, part...)
		}
		slices.Sort(is)
		return slices.Equal(is, want), nil
	})
	if err != nil {
		w.Fatalf("%v:\nthere is\n  %s\nand should be\n  %s", err, strings.Join(is, "\n  "), strings.Join(want, "\n  "))
	}
	w.checkWords()
}

// replicaLine is what there is to say of an NvmfReplica.
const replicaLine = "object %s: replica %s of %s, %s, size %d of %d, hosts %v of %v, limits %v of %v, %s"

func (w *world) expected() []string {
	var all []string
	add := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	for _, v := range w.volumes {
		hosts := v.nodes()
		for _, h := range v.hosts {
			for t := range strings.SplitSeq(strings.ToLower(v.transports()), ",") {
				add("%s is connected to %s over %s, live", h.name, v.replica(), t)
			}
			add("%s has the record %s.json", h.name, v.id)
			add("%s has the device weft-%s", h.name, v.uuid)
			add("%s has %s mounted", h.name, h.mounted(v))
			add("%s has %s mounted", h.name, h.staged(v))
		}
		add("object %s: volume %s of %d, attached to %v, limits %v, %s", v.id, v.uuid, v.size, hosts, v.limits, v.state(volumeKind, "there"))
		add(replicaLine, v.replica(), v.uuid, v.id, v.uuid, v.size, v.size, hosts, hosts, v.limits, v.limits, v.state(replicaKind, "ready"))
		add("engine: volume %s of %d bytes, limits %v", v.uuid, v1alpha1.WithOverhead(v.size), v.limits)
		add("engine: %s serves %s to %v", v.replica(), v.uuid, hosts)
	}
	for _, s := range w.snapshots {
		add("object %s: snapshot %s of %s and %s, size %d, ready", s.id, s.uuid, s.of, replicaOf(s.of), s.size)
		add("engine: snapshot %s of %d bytes", s.uuid, v1alpha1.WithOverhead(s.size))
	}
	for _, o := range w.orphans {
		if !o.left {
			add("%s is an orphan: %s of %d bytes", o.uuid, o.kind, o.size)
		}
		switch v, nobody := o.volume, []string{}; {
		case v == nil:
			add("engine: snapshot %s of %d bytes", o.uuid, v1alpha1.WithOverhead(o.size))
		case o.left:
			add(replicaLine, v.replica(), v.uuid, v.id, v.uuid, v.size, v.size, nobody, nobody, v.limits, v.limits, "ready")
			add("engine: %s serves %s to %v", v.replica(), v.uuid, nobody)
			fallthrough
		default:
			add("engine: volume %s of %d bytes, an orphan", o.uuid, v1alpha1.WithOverhead(o.size))
		}
	}
	slices.Sort(all)
	return all
}

func (w *world) objects() ([]string, error) {
	var all []string
	var vols v1alpha1.NvmfVolumeList
	var reps v1alpha1.NvmfReplicaList
	var snaps v1alpha1.NvmfSnapshotList
	if err := api.List(w.ctx, &vols, client.MatchingFields{"spec.target": w.target}); err != nil {
		return nil, err
	}
	for _, list := range []client.ObjectList{&reps, &snaps} {
		if err := api.List(w.ctx, list, client.MatchingFields{"spec.node": w.storage.Name}); err != nil {
			return nil, err
		}
	}
	state := func(deleted *metav1.Time, conditions []metav1.Condition) string {
		if deleted != nil {
			return "being deleted"
		}
		for _, c := range conditions {
			if c.Type == v1alpha1.ConditionReady && c.Status == metav1.ConditionTrue {
				return "ready"
			}
		}
		return fmt.Sprint("not ready: ", conditions)
	}
	for _, v := range vols.Items {
		attached, is := []string{}, "there"
		for _, h := range v.Spec.Attachments {
			attached = append(attached, h.Node)
		}
		slices.Sort(attached)
		if v.DeletionTimestamp != nil {
			is = "being deleted"
		}
		all = append(all, fmt.Sprintf("object %s: volume %s of %d, attached to %v, limits %v, %s", v.Name, v.Spec.UUID, v.Spec.Size.Value(), attached, limitsIn(v.Spec.QoS), is))
	}
	for _, v := range reps.Items {
		asked, admitted := []string{}, []string{}
		for _, h := range v.Spec.Hosts {
			asked = append(asked, h.Node)
			w.nodeOf[h.NQN] = h.Node
		}
		for _, h := range v.Status.Hosts {
			admitted = append(admitted, w.nodeOf[h.NQN])
		}
		slices.Sort(asked)
		slices.Sort(admitted)
		all = append(all, fmt.Sprintf(replicaLine, v.Name, v.Spec.UUID, v.Spec.Volume.Name, v.Spec.Volume.UUID, bytesIn(v.Status.Size), v.Spec.Size.Value(),
			admitted, asked, limitsIn(v.Status.QoS), limitsIn(v.Spec.QoS), state(v.DeletionTimestamp, v.Status.Conditions)))
	}
	for _, s := range snaps.Items {
		all = append(all, fmt.Sprintf("object %s: snapshot %s of %s and %s, size %d, %s", s.Name, s.Spec.UUID, s.Spec.Volume, s.Spec.Replica, bytesIn(s.Status.Size), state(s.DeletionTimestamp, s.Status.Conditions)))
	}
	for uuid, o := range w.listedOrphans() {
		all = append(all, fmt.Sprintf("%s is an orphan: %s of %d bytes", uuid, o.Kind, o.Size.Value()))
	}
	return all, nil
}

// bytesIn a status; 0 where it does not say.
func bytesIn(q *resource.Quantity) int64 {
	if q == nil {
		return 0
	}
	return q.Value()
}

func (w *world) engine() ([]string, error) {
	state, err := w.storage.Gather(w.ctx)
	var all []string
	for _, v := range state.Volumes {
		if w.orphanOf(string(v.ID)) != nil { // its limits are what they were until the target restarts
			all = append(all, fmt.Sprintf("engine: volume %s of %d bytes, an orphan", v.ID, v.SizeBytes))
			continue
		}
		all = append(all, fmt.Sprintf("engine: volume %s of %d bytes, limits %v", v.ID, v.SizeBytes, v.QoS))
	}
	for _, s := range state.Snapshots {
		all = append(all, fmt.Sprintf("engine: snapshot %s of %d bytes", s.ID, s.SizeBytes))
	}
	for _, x := range state.Exports {
		var volumes []string
		for _, ns := range x.Namespaces {
			volumes = append(volumes, string(ns.Volume))
		}
		hosts := []string{}
		for _, nqn := range x.Hosts {
			hosts = append(hosts, w.nodeOf[nqn])
		}
		slices.Sort(hosts)
		of, _ := v1alpha1.ReplicaOfSubsystem(x.NQN)
		all = append(all, fmt.Sprintf("engine: %s serves %s to %v", of, strings.Join(volumes, ", "), hosts))
	}
	return all, err
}

func (w *world) attachments() ([]string, error) {
	var all []string
	for _, h := range w.hosts {
		for _, name := range h.kernel.Controllers() {
			nqn, err := h.attribute(name, "subsysnqn")
			transport, err2 := h.attribute(name, "transport")
			state, err3 := h.attribute(name, "state")
			if err := errors.Join(err, err2, err3); err != nil {
				return nil, err
			}
			of, _ := v1alpha1.ReplicaOfSubsystem(nqn)
			all = append(all, fmt.Sprintf("%s is connected to %s over %s, %s", h.name, of, transport, state))
		}
		records, err := filepath.Glob(filepath.Join(h.records(), "*.json"))
		if err != nil {
			return nil, err
		}
		for _, path := range records {
			all = append(all, fmt.Sprintf("%s has the record %s", h.name, filepath.Base(path)))
		}
		for _, label := range h.kernel.Mapped() {
			all = append(all, fmt.Sprintf("%s has the device %s", h.name, label))
		}
		table, err := h.mounter.Table()
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(table) {
			all = append(all, fmt.Sprintf("%s has %s mounted", h.name, strings.Fields(line)[4]))
		}
	}
	return all, nil
}

// checkWords of all volumes and snapshots, with or without objects, as they lie on the drive.
func (w *world) checkWords() {
	w.Helper()
	check := func(id, lvol string, size int64, words map[uint64]uint64) {
		for at := range uint64(size / cluster) {
			word, err := w.readWord(lvol, at)
			if err != nil || word != words[at] {
				w.Fatalf("cluster %d of %s is %#x, %v; %#x was written", at, id, word, err, words[at])
			}
		}
	}
	volumes, snapshots := slices.Clone(w.volumes), slices.Clone(w.snapshots)
	for _, o := range w.orphans {
		if o.volume != nil {
			volumes = append(volumes, o.volume)
		} else {
			snapshots = append(snapshots, o.snapshot)
		}
	}
	for _, v := range volumes {
		check(v.id, v.uuid, v.size, v.words)
	}
	lvols := w.storage.Target().Lvols()
	for _, s := range snapshots {
		i := slices.IndexFunc(lvols, func(name string) bool { return strings.HasPrefix(name, "s-"+s.uuid) })
		if i < 0 {
			w.Fatalf("no logical volume of snapshot %s among %v", s.id, lvols)
		}
		check(s.id, lvols[i], s.size, s.words)
	}
}
