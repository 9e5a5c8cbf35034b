// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/internal/text"
)

// What nodes list as orphans, with what was stored with the data about its objects. All of it is what nodes say, so
// each line names the node; what is in doubt is said, and not decided.

// lostReport is what is on drives without objects.
type lostReport struct {
	Volumes   []*lostVolume  `json:"volumes"`
	Snapshots []lostSnapshot `json:"snapshots"`
	// Unknown is data of which it is not known what it was.
	Unknown []lostData `json:"unknown"`
	// Unlisted counts the data that nodes have no room to list, by node.
	Unlisted map[string]int32 `json:"unlisted,omitempty"`
	// Incomplete says what there may be that is not listed.
	Incomplete []string `json:"incomplete,omitempty"`
}

// lostVolume has data on drives and no NvmfVolume, or no PersistentVolume.
type lostVolume struct {
	// Name of the NvmfVolume, and its UUID.
	Name string `json:"name"`
	UUID string `json:"uuid"`
	// Claim as NAMESPACE/NAME, and the PersistentVolume.
	Claim            string `json:"claim,omitempty"`
	PersistentVolume string `json:"persistentVolume,omitempty"`
	StorageClass     string `json:"storageClass,omitempty"`
	Size             string `json:"size"`
	Encryption       string `json:"encryption,omitempty"`
	// Secret with the key, as NAMESPACE/NAME.
	Secret   string        `json:"secret,omitempty"`
	Replicas []lostReplica `json:"replicas,omitempty"`
	// Exists: the NvmfVolume does, and only its PersistentVolume or claim is missing.
	Exists bool `json:"exists,omitempty"`
	// Doubts are said, and the volume can be recovered all the same. What is in ByName has to be named for that. What
	// is Refused cannot be recovered.
	Doubts  []string `json:"doubts,omitempty"`
	ByName  []string `json:"onlyByName,omitempty"`
	Refused []string `json:"refused,omitempty"`

	// nameTaken says which other volume has its name; empty: none.
	nameTaken string
	// volume that is to be created, or that exists.
	volume *v1alpha1.NvmfVolume
	// joins are replicas to be added to the volume that exists.
	joins []v1alpha1.VolumeMember
}

// lostReplica of a lost volume.
type lostReplica struct {
	Name string `json:"name"`
	UUID string `json:"uuid"`
	Node string `json:"node"`
	// Device where it was found. Empty: it was not.
	Device string `json:"device,omitempty"`
	Size   string `json:"size,omitempty"`
}

// lostSnapshot has data and no NvmfSnapshot.
type lostSnapshot struct {
	Name    string   `json:"name"`
	UUID    string   `json:"uuid"`
	Volume  string   `json:"volume"`
	Node    string   `json:"node"`
	Device  string   `json:"device"`
	Size    string   `json:"size"`
	Refused []string `json:"refused,omitempty"`

	snapshot *v1alpha1.NvmfSnapshot
}

// lostData is an orphan of which nothing else is known.
type lostData struct {
	Node   string `json:"node"`
	Device string `json:"device"`
	Kind   string `json:"kind"`
	UUID   string `json:"uuid"`
	Size   string `json:"size"`
	Why    string `json:"why"`
}

// foundOrphan on a node.
type foundOrphan struct {
	v1alpha1.Orphan
	node *v1alpha1.NvmfNode
}

func (o foundOrphan) at() string { return fmt.Sprintf("node %s, device %s", o.node.Name, o.Device) }

// lost is what the nodes have without objects, and the volumes whose PersistentVolumes are missing. The claims are
// those that exist, by NAMESPACE/NAME.
func (f *fleet) lost(claims map[string]corev1.PersistentVolumeClaim) *lostReport {
	r := &lostReport{Volumes: []*lostVolume{}, Snapshots: []lostSnapshot{}, Unknown: []lostData{}}
	byVolume, volumeOf := map[string][]foundOrphan{}, map[string]string{}
	var undescribed, snapshots []foundOrphan
	for i := range f.nodes {
		n := &f.nodes[i]
		if more := n.Status.OrphanCount - int32(len(n.Status.Orphans)); more > 0 {
			if r.Unlisted == nil {
				r.Unlisted = map[string]int32{}
			}
			r.Unlisted[n.Name] = more
		}
		for _, o := range n.Status.Orphans {
			switch is := (foundOrphan{o, n}); {
			case o.Description == nil || o.Name == "" || o.Kind == v1alpha1.OrphanReplica && o.Description.VolumeUUID == "":
				undescribed = append(undescribed, is)
			case o.Kind == v1alpha1.OrphanSnapshot:
				if !f.hasSnapshot(is) {
					snapshots = append(snapshots, is)
				}
			default:
				byVolume[o.Description.VolumeUUID] = append(byVolume[o.Description.VolumeUUID], is)
				for _, m := range o.Description.Members {
					volumeOf[m.UUID] = o.Description.VolumeUUID
				}
			}
		}
	}
	// A replica without a description of its own may be in that of another one.
	for _, o := range undescribed {
		if of := volumeOf[o.UUID]; of != "" && o.Kind == v1alpha1.OrphanReplica {
			byVolume[of] = append(byVolume[of], o)
			continue
		}
		r.Unknown = append(r.Unknown, lostData{Node: o.node.Name, Device: o.Device, Kind: string(o.Kind), UUID: o.UUID, Size: o.Size.String(),
			Why: cmp.Or(o.Undescribed, "its description does not say what it belongs to")})
	}
	for _, uuid := range slices.Sorted(maps.Keys(byVolume)) {
		if v := f.lostVolume(uuid, byVolume[uuid]); v != nil {
			r.Volumes = append(r.Volumes, v)
		}
	}
	for i := range f.volumes {
		if v := f.withoutPersistentVolume(&f.volumes[i]); v != nil {
			r.Volumes = append(r.Volumes, v)
		}
	}
	r.ambiguous()
	for _, v := range r.Volumes {
		v.rivals(f, claims)
	}
	r.Incomplete = f.incomplete(r.Unlisted)
	for _, o := range snapshots {
		s := f.lostSnapshot(o, snapshots)
		// It names its volume, and could be taken for one of the other volume of that name.
		if i := slices.IndexFunc(r.Volumes, func(v *lostVolume) bool { return v.Name == s.Volume && v.nameTaken != "" }); i >= 0 {
			s.Refused = append(s.Refused, fmt.Sprintf("it is of volume %s, whose name is taken: %s", s.Volume, r.Volumes[i].nameTaken))
		}
		r.Snapshots = append(r.Snapshots, s)
	}
	slices.SortStableFunc(r.Volumes, func(a, b *lostVolume) int { return cmp.Or(cmp.Compare(a.Claim, b.Claim), cmp.Compare(a.Name, b.Name)) })
	return r
}

// ambiguous are volumes of one name, and volumes of one claim.
func (r *lostReport) ambiguous() {
	for _, v := range r.Volumes {
		for _, other := range r.Volumes {
			switch {
			case v == other, v.UUID == other.UUID: // of one volume, a replica and the PersistentVolume can be lost
			case v.Name == other.Name:
				v.nameTaken = fmt.Sprintf("another lost volume has the same name, and UUID %s: they are from two clusters; remove the drives of one of them", other.UUID)
				v.Refused = append(v.Refused, v.nameTaken)
			case v.Claim != "" && v.Claim == other.Claim:
				v.ByName = append(v.ByName, fmt.Sprintf("volume %s%s was of the same claim; recover the one that you need", volumePrefix, other.Name))
			}
		}
	}
}

// rivals of a lost volume: what its claim uses now, which may be newer.
func (v *lostVolume) rivals(f *fleet, claims map[string]corev1.PersistentVolumeClaim) {
	if v.Claim == "" {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(f.claims)) {
		if name != v.Name && f.claims[name] == v.Claim {
			v.ByName = append(v.ByName, fmt.Sprintf("claim %s is bound to volume %s%s, which may have later data; this one is recovered beside it, and no claim uses it until you create one", v.Claim, volumePrefix, name))
			return
		}
	}
	if bound := claims[v.Claim].Spec.VolumeName; bound != "" && bound != v.PersistentVolume {
		v.ByName = append(v.ByName, fmt.Sprintf("claim %s exists and is bound to PersistentVolume %s, which may have later data; to use this volume instead, delete the claim first", v.Claim, bound))
	}
}

// lostVolume of which replicas were found without objects; nil if its NvmfVolume exists and lists them.
func (f *fleet) lostVolume(uuid string, found []foundOrphan) *lostVolume {
	d, doubts, refused := newestOf(found)
	v := &lostVolume{Name: d.Volume, UUID: uuid, Encryption: string(d.Encryption), Doubts: doubts, Refused: refused}
	if is := f.volume(d.Volume); is != nil && is.Spec.UUID == uuid {
		return f.unlistedReplicas(v, is, d, found)
	} else if is != nil {
		v.nameTaken = fmt.Sprintf("NvmfVolume %s exists and has another UUID, %s", is.Name, is.Spec.UUID)
		v.Refused = append(v.Refused, v.nameTaken)
	}
	if is := find(f.volumes, func(o *v1alpha1.NvmfVolume) bool { return o.Spec.UUID == uuid && o.Name != d.Volume }); is != nil {
		v.Refused = append(v.Refused, fmt.Sprintf("NvmfVolume %s has the same UUID", is.Name))
	}
	members := f.members(v, d, found)
	target := v.targetOf(d, found)
	v.volume = &v1alpha1.NvmfVolume{Spec: v1alpha1.NvmfVolumeSpec{
		UUID: uuid, Target: target, Replicas: max(1, d.Replicas), Members: members, Mirrored: d.Mirrored || len(members) > 1, Size: v.sizeOf(d, found),
		Encryption: d.Encryption, Trailer: d.Trailer, DeviceClass: d.DeviceClass, Zones: d.Zones, ZoneLabel: d.ZoneLabel, QoS: d.QoS, Used: true, PersistentVolume: d.PersistentVolume,
	}}
	if d.Connection != nil {
		v.volume.Spec.Connection = *d.Connection
	}
	if d.SourceVolume != "" || d.SourceSnapshot != "" {
		v.volume.Spec.Source = &v1alpha1.VolumeSource{Volume: d.SourceVolume, Snapshot: d.SourceSnapshot}
	} else if !d.Used {
		v.ByName = append(v.ByName, "it was never attached and is no copy, so it has no data; create its claim again instead")
	}
	v.Size = v.volume.Spec.Size.String()
	v.describePersistentVolume(f, d.PersistentVolume)
	return v
}

// newestOf the descriptions, and what is in doubt about them. Of two of the same NvmfVolume, that of the higher
// generation is newer. Of two that are of different ones, nobody can say.
func newestOf(found []foundOrphan) (newest v1alpha1.OrphanDescription, doubts, refused []string) {
	var of foundOrphan
	for _, o := range found {
		d := o.Description
		if d != nil && (of.node == nil || d.VolumeUID == of.Description.VolumeUID && d.VolumeGeneration > of.Description.VolumeGeneration) {
			of = o
		}
	}
	newest = *of.Description
	for _, o := range found {
		d := o.Description
		if d == nil {
			doubts = append(doubts, fmt.Sprintf("%s (%s): %s", o.UUID, o.at(), o.Undescribed))
			continue
		}
		is := *d
		is.VolumeGeneration = newest.VolumeGeneration
		same := d.VolumeUID == newest.VolumeUID
		is.VolumeUID = newest.VolumeUID
		switch {
		case equality.Semantic.DeepEqual(is, newest):
		case same:
			doubts = append(doubts, fmt.Sprintf("%s describes the volume as it was earlier (generation %d, not %d, which is on %s)", o.at(), d.VolumeGeneration, newest.VolumeGeneration, of.at()))
		default:
			refused = append(refused, fmt.Sprintf("%s and %s describe it differently, and it is not known which is newer", of.at(), o.at()))
		}
	}
	return newest, doubts, refused
}

// members of a lost volume: those that were found, where they were found, and those that its description lists.
func (f *fleet) members(v *lostVolume, d v1alpha1.OrphanDescription, found []foundOrphan) []v1alpha1.VolumeMember {
	at := map[string]foundOrphan{}
	for _, o := range found {
		if first, twice := at[o.UUID]; twice {
			v.Refused = append(v.Refused, fmt.Sprintf("replica %s is on two drives: %s, and %s; remove the one that is a copy", o.UUID, first.at(), o.at()))
			continue
		}
		at[o.UUID] = o
		if len(o.OtherDevices) > 0 {
			v.Refused = append(v.Refused, fmt.Sprintf("replica %s is on several drives of node %s: %s; remove those that are copies", o.UUID, o.node.Name, strings.Join(append([]string{o.Device}, o.OtherDevices...), ", ")))
		}
	}
	var members []v1alpha1.VolumeMember
	for _, m := range d.Members {
		o, here := at[m.UUID]
		has := find(f.replicas, func(r *v1alpha1.NvmfReplica) bool { return r.Spec.UUID == m.UUID })
		switch {
		case here:
			delete(at, m.UUID)
			m.Node = o.node.Name
			v.Replicas = append(v.Replicas, lostReplica{Name: m.Name, UUID: m.UUID, Node: m.Node, Device: o.Device, Size: o.Size.String()})
		case has != nil:
			m.Node = has.Spec.Node
			v.Replicas = append(v.Replicas, lostReplica{Name: m.Name, UUID: m.UUID, Node: m.Node, Device: has.Status.Device})
		default:
			doubt := fmt.Sprintf("replica %s was not found on node %s; it may have later data than the others", m.Name, m.Node)
			if f.node(m.Node) == nil {
				doubt = fmt.Sprintf("replica %s was on node %s, which is not a storage node of this cluster yet; it may have later data than the others: start that node first, or the node that has its drive now", m.Name, m.Node)
			}
			v.Doubts = append(v.Doubts, doubt)
			v.Replicas = append(v.Replicas, lostReplica{Name: m.Name, UUID: m.UUID, Node: m.Node})
		}
		members = append(members, m)
	}
	for _, uuid := range slices.Sorted(maps.Keys(at)) {
		o := at[uuid]
		v.Replicas = append(v.Replicas, lostReplica{Name: o.Name, UUID: uuid, Node: o.node.Name, Device: o.Device, Size: o.Size.String()})
		if len(d.Members) > 0 {
			v.Doubts = append(v.Doubts, fmt.Sprintf("replica %s (%s) is not in the newest description; it may be older, or newer", o.Name, o.at()))
		}
		members = append(members, v1alpha1.VolumeMember{Name: o.Name, UUID: uuid, Node: o.node.Name})
	}
	switch {
	case len(members) > 1 && !d.Mirrored:
		v.Refused = append(v.Refused, "it has several replicas, but never had a mirror: it is not known which is newer")
	case len(members) > v1alpha1.MaxVolumeMembers:
		v.Refused = append(v.Refused, fmt.Sprintf("it has %d replicas, more than %d", len(members), v1alpha1.MaxVolumeMembers))
	}
	return members
}

// targetOf a lost volume: that of the nodes that have its data now.
func (v *lostVolume) targetOf(d v1alpha1.OrphanDescription, found []foundOrphan) string {
	target := found[0].node.Spec.Target
	for _, o := range found {
		if o.node.Spec.Target != target {
			v.Refused = append(v.Refused, fmt.Sprintf("nodes %s and %s have it and are of different NvmfTargets", found[0].node.Name, o.node.Name))
			return target
		}
	}
	switch {
	case target == "":
		v.Refused = append(v.Refused, fmt.Sprintf("no NvmfTarget claims node %s", found[0].node.Name))
	case d.Target != target:
		v.Doubts = append(v.Doubts, fmt.Sprintf("it was of NvmfTarget %s; NvmfTarget %s serves it from now on", d.Target, target))
	}
	return target
}

// sizeOf a lost volume, by its description: what lies on the drive was rounded up to clusters.
func (v *lostVolume) sizeOf(d v1alpha1.OrphanDescription, found []foundOrphan) resource.Quantity {
	if d.Size != nil {
		return d.Size.DeepCopy()
	}
	v.Doubts = append(v.Doubts, "its size is not described; that of its data is taken")
	return found[0].Size.DeepCopy()
}

// describePersistentVolume of a lost volume, as far as it is known.
func (v *lostVolume) describePersistentVolume(f *fleet, pv *v1alpha1.PersistentVolumeDescription) {
	if pv == nil {
		v.Doubts = append(v.Doubts, "its PersistentVolume is not described, and is not created: the volume was never attached, or not since weft describes it")
		return
	}
	v.nameClaim(pv)
	if pv.ClaimName == "" {
		v.Doubts = append(v.Doubts, "its PersistentVolume had no claim, and is not created: any claim could be bound to it")
	}
	if pv.StageSecret != nil {
		v.Secret = pv.StageSecret.Namespace + "/" + pv.StageSecret.Name
	}
	for volume, is := range f.persistent {
		if is.Name == pv.Name && volume != v.Name {
			v.Refused = append(v.Refused, fmt.Sprintf("PersistentVolume %s exists and is of volume %s", pv.Name, volume))
		}
	}
}

// nameClaim, PersistentVolume and StorageClass of a lost volume.
func (v *lostVolume) nameClaim(pv *v1alpha1.PersistentVolumeDescription) {
	v.PersistentVolume, v.StorageClass = pv.Name, pv.StorageClass
	if pv.ClaimName != "" {
		v.Claim = pv.ClaimNamespace + "/" + pv.ClaimName
	}
}

// withoutPersistentVolume is a volume with a description of its PersistentVolume that has none, or one that waits for
// its claim; nil for another one.
func (f *fleet) withoutPersistentVolume(is *v1alpha1.NvmfVolume) *lostVolume {
	described, pv := is.Spec.PersistentVolume, f.persistent[is.Name]
	if described == nil || described.ClaimName == "" || is.DeletionTimestamp != nil || pv != nil && (pv.Status.Phase != corev1.VolumeAvailable || pv.Spec.ClaimRef == nil) {
		return nil
	}
	v := &lostVolume{Name: is.Name, UUID: is.Spec.UUID, Size: is.Spec.Size.String(), Encryption: string(is.Spec.Encryption), Exists: true, volume: is}
	for _, m := range is.Spec.Members {
		v.Replicas = append(v.Replicas, lostReplica{Name: m.Name, UUID: m.UUID, Node: m.Node})
	}
	v.describePersistentVolume(f, described)
	if is.Annotations[recoveredKey] == "" {
		v.ByName = append(v.ByName, "its PersistentVolume or claim may have been deleted on purpose")
	}
	return v
}

// hasSnapshot: the NvmfSnapshot of an orphan exists, as after it was recovered, and its node did not see that yet.
func (f *fleet) hasSnapshot(o foundOrphan) bool {
	return find(f.snapshots, func(s *v1alpha1.NvmfSnapshot) bool {
		return s.Name == o.Name && s.Spec.UUID == o.UUID && s.Spec.Node == o.node.Name
	}) != nil
}

// lostSnapshot of all that were found.
func (f *fleet) lostSnapshot(o foundOrphan, all []foundOrphan) lostSnapshot {
	s := lostSnapshot{Name: o.Name, UUID: o.UUID, Volume: o.Description.Volume, Node: o.node.Name, Device: o.Device, Size: o.Size.String()}
	if is := find(f.snapshots, func(s *v1alpha1.NvmfSnapshot) bool { return s.Name == o.Name }); is != nil {
		s.Refused = append(s.Refused, fmt.Sprintf("NvmfSnapshot %s exists, with UUID %s", is.Name, is.Spec.UUID))
	}
	twice := slices.ContainsFunc(all, func(other foundOrphan) bool {
		return (other.node != o.node || other.Device != o.Device) && (other.UUID == o.UUID || other.Name == o.Name)
	})
	if twice || len(o.OtherDevices) > 0 {
		s.Refused = append(s.Refused, "it is on several drives; remove those that are copies, or of another cluster")
	}
	if o.Replica == "" || s.Volume == "" {
		s.Refused = append(s.Refused, "its description does not say what it was taken of")
	}
	s.snapshot = &v1alpha1.NvmfSnapshot{Spec: v1alpha1.NvmfSnapshotSpec{
		UUID: o.UUID, Volume: s.Volume, Replica: o.Replica, Node: s.Node, Encryption: o.Description.Encryption, Trailer: o.Description.Trailer, Taken: true,
	}}
	return s
}

// print what is lost.
func (r *lostReport) print(t *table) {
	if len(r.Volumes)+len(r.Snapshots)+len(r.Unknown) == 0 {
		t.line("no volumes or snapshots without objects were found")
	}
	var notes []string
	if len(r.Volumes) > 0 {
		rows := [][]string{{"CLAIM", "VOLUME", "SIZE", "CLASS", "FOUND ON", "NOT FOUND", "RECOVERABLE"}}
		for _, v := range r.Volumes {
			rows = append(rows, []string{orDash(v.Claim), volumePrefix + v.Name, v.Size, orDash(v.StorageClass), orDash(v.on(true)), orDash(v.on(false)), v.recoverable()})
			for _, note := range slices.Concat(v.Refused, v.ByName, v.Doubts) {
				notes = append(notes, volumePrefix+v.Name+": "+note)
			}
			if v.Secret != "" {
				notes = append(notes, fmt.Sprintf("%s%s: its node gets Secret %s", volumePrefix, v.Name, v.Secret))
			}
		}
		t.columns(rows)
	}
	if len(r.Snapshots) > 0 {
		t.line("")
		rows := [][]string{{"SNAPSHOT", "OF VOLUME", "SIZE", "NODE", "DEVICE", "RECOVERABLE"}}
		for _, s := range r.Snapshots {
			rows = append(rows, []string{s.Name, s.Volume, s.Size, s.Node, s.Device, map[bool]string{true: "yes", false: "no"}[len(s.Refused) == 0]})
			for _, note := range s.Refused {
				notes = append(notes, "snapshot "+s.Name+": "+note)
			}
		}
		t.columns(rows)
	}
	if len(r.Unknown) > 0 {
		t.line("")
		rows := [][]string{{"UNKNOWN", "UUID", "SIZE", "NODE", "DEVICE", "WHY"}}
		for _, u := range r.Unknown {
			rows = append(rows, []string{u.Kind, u.UUID, u.Size, u.Node, u.Device, u.Why})
		}
		t.columns(rows)
	}
	notes = append(notes, r.Incomplete...)
	if len(notes) > 0 {
		t.line("")
	}
	for _, note := range notes {
		t.line("- %s", note)
	}
}

// on which nodes its replicas were found, or not.
func (v *lostVolume) on(found bool) string {
	var nodes []string
	for _, r := range v.Replicas {
		if (r.Device != "" || v.Exists) == found {
			nodes = append(nodes, r.Node)
		}
	}
	return text.Few(nodes, maxNamed, ", ")
}

func (v *lostVolume) recoverable() string {
	switch {
	case len(v.Refused) > 0:
		return "no"
	case len(v.ByName) > 0:
		return "by name"
	case v.Exists:
		return "its PersistentVolume"
	case len(v.Doubts) > 0:
		return "in doubt"
	}
	return "yes"
}
