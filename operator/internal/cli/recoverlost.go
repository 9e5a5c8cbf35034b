// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// provisionedBy is what Kubernetes writes on a PersistentVolume, and what the provisioner deletes it by.
const provisionedBy = "pv.kubernetes.io/provisioned-by"

// provisionerIdentity is what csi-provisioner adds to the attributes of volumes that it makes. The CSI controller
// refuses to attach such a volume once its VolumeAttachment is gone; others can be attached by callers beside
// Kubernetes.
const provisionerIdentity = "storage.kubernetes.io/csiProvisionerIdentity"

// recoveredKey is an annotation of NvmfVolumes that recover --lost has created: what they lack was not deleted on
// purpose.
const recoveredKey = "weft.storage/recovered"

// recoverLost lists what is lost, or makes the objects of what was chosen: of each volume the NvmfVolume first, so that
// what is interrupted is found again by the next call. The CSI controller makes the replicas, and for a volume with
// several the record that is in doubt, which it then recovers from their headers. Beside output for programs, what
// fails is written to stderr.
func recoverLost(ctx context.Context, w *watcher, stderr io.Writer, namespace string, args []string, o recoverOptions) error {
	f, err := w.look(ctx)
	if err != nil {
		return err
	}
	claims, err := claimsByName(ctx, w.api)
	if err != nil {
		return err
	}
	report := f.lost(claims)
	volumes, snapshots, err := report.choose(namespace, args, o.all)
	if err != nil {
		return err
	}
	if done, err := o.output.encode(w.out, report); err != nil {
		return err
	} else if !done {
		report.print(w.table)
	}
	if !o.all && len(args) == 0 {
		return w.err
	}
	if o.all && !o.incomplete && len(report.Incomplete) > 0 {
		return fmt.Errorf("nothing was recovered, because there may be newer data of the same claims: %s; wait, or repair that; or recover volumes by name, or all that is listed with --incomplete", strings.Join(report.Incomplete, "; "))
	}
	m := &maker{watcher: w, o: o, claims: claims, failures: w.table}
	if !o.output.forPeople() {
		m.failures = newTable(stderr)
	}
	for _, v := range volumes {
		m.recover(ctx, v)
	}
	for _, s := range snapshots {
		m.recoverSnapshot(ctx, s)
	}
	var left []string
	if o.all {
		left = report.leftOut()
	}
	if len(left) > 0 {
		m.say("left out, for the reasons above: %s", strings.Join(left, ", "))
	}
	if !o.dryRun && len(volumes) > 0 && m.failed == 0 {
		m.say("wait until kubectl weft status lists no problem; nodes that have drives of another cluster, or lost their own records, first suspect a restore, which you declare there")
	}
	if m.failed > 0 || len(left) > 0 {
		return w.ends(CodeUnwell)
	}
	return w.err
}

// claimsByName are all claims, by NAMESPACE/NAME.
func claimsByName(ctx context.Context, api client.Reader) (map[string]corev1.PersistentVolumeClaim, error) {
	var list corev1.PersistentVolumeClaimList
	if err := api.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("list PersistentVolumeClaims: %w", unread(err))
	}
	claims := map[string]corev1.PersistentVolumeClaim{}
	for _, c := range list.Items {
		claims[c.Namespace+"/"+c.Name] = c
	}
	return claims, nil
}

// leftOut names what --all does not recover.
func (r *lostReport) leftOut() []string {
	var left []string
	for _, v := range r.Volumes {
		switch {
		case len(v.Refused) > 0:
			left = append(left, volumePrefix+v.Name+" (refused)")
		case len(v.ByName) > 0:
			left = append(left, volumePrefix+v.Name+" (only by name)")
		}
	}
	for _, s := range r.Snapshots {
		if len(s.Refused) > 0 {
			left = append(left, "snapshot "+s.Name+" (refused)")
		}
	}
	for _, u := range r.Unknown {
		left = append(left, fmt.Sprintf("%s on node %s (unknown)", u.UUID, u.Node))
	}
	slices.Sort(left)
	return slices.Compact(left)
}

// choose what was asked for. With all, that is all that can be recovered without being named.
func (r *lostReport) choose(namespace string, args []string, all bool) (volumes []*lostVolume, snapshots []lostSnapshot, err error) {
	if len(args) == 0 {
		if all {
			volumes = slices.DeleteFunc(slices.Clone(r.Volumes), func(v *lostVolume) bool { return len(v.Refused)+len(v.ByName) > 0 })
			snapshots = slices.DeleteFunc(slices.Clone(r.Snapshots), func(s lostSnapshot) bool { return len(s.Refused) > 0 })
		}
		return volumes, snapshots, nil
	}
	arg := args[0]
	name, byName := strings.CutPrefix(arg, volumePrefix)
	for _, v := range r.Volumes {
		if byName && v.Name == name || !byName && (v.UUID == arg || v.Claim == namespace+"/"+arg) {
			volumes = append(volumes, v)
		}
	}
	// Of one volume, a replica and the PersistentVolume can be lost: what cannot be recovered keeps not the other.
	if oneOf := func(v *lostVolume) bool { return v.UUID != volumes[0].UUID }; len(volumes) > 1 && !slices.ContainsFunc(volumes, oneOf) {
		can := slices.DeleteFunc(slices.Clone(volumes), func(v *lostVolume) bool { return len(v.Refused) > 0 })
		volumes = append(can, volumes...)[:max(1, len(can))]
	}
	several := slices.ContainsFunc(volumes, func(v *lostVolume) bool { return v.UUID != volumes[0].UUID })
	switch {
	case len(volumes) == 0:
		return nil, nil, fmt.Errorf("no lost volume is %s (namespace %s); see all with: kubectl weft recover --lost", arg, namespace)
	case several:
		return nil, nil, fmt.Errorf("%d lost volumes are %s; specify the UUID of one, from kubectl weft recover --lost -o json", len(volumes), arg)
	case len(volumes[0].Refused) > 0:
		return nil, nil, fmt.Errorf("volume %s%s cannot be recovered: %s", volumePrefix, volumes[0].Name, strings.Join(volumes[0].Refused, "; "))
	}
	for _, s := range r.Snapshots {
		if s.Volume == volumes[0].Name && len(s.Refused) == 0 {
			snapshots = append(snapshots, s)
		}
	}
	return volumes, snapshots, nil
}

// maker of lost objects. What fails for one keeps no other.
type maker struct {
	*watcher
	o recoverOptions
	// claims that exist, by NAMESPACE/NAME.
	claims map[string]corev1.PersistentVolumeClaim
	// failures are written here, and counted.
	failures *table
	failed   int
}

// say a line, unless the output is for programs.
func (m *maker) say(format string, args ...any) {
	if m.o.output.forPeople() {
		m.line(format, args...)
	}
}

// would is what lines about changes end with.
func (m *maker) would() string {
	if m.o.dryRun {
		return " (dry run)"
	}
	return ""
}

// create an object, if there is none of its name. A dry run goes as far as the API server, which checks it.
func (m *maker) create(ctx context.Context, kind string, obj client.Object) bool {
	options := []client.CreateOption{client.FieldOwner(fieldManager)}
	if m.o.dryRun {
		options = append(options, client.DryRunAll)
	}
	name := obj.GetName()
	if obj.GetNamespace() != "" {
		name = obj.GetNamespace() + "/" + name
	}
	err := m.api.Create(ctx, obj, options...)
	switch {
	case err == nil:
		m.say("%s %s created%s", kind, name, m.would())
		return true
	case apierrors.IsAlreadyExists(err):
		is := obj.DeepCopyObject().(client.Object)
		if err = m.api.Get(ctx, client.ObjectKeyFromObject(obj), is); err == nil {
			err = other(obj, is)
		}
		if err == nil {
			m.say("%s %s exists, and stays as it is", kind, name)
			return true
		}
	}
	m.fails("%s %s: %v", kind, name, err)
	return false
}

// fails says what failed, and counts it.
func (m *maker) fails(format string, args ...any) {
	m.failed++
	m.failures.line(format, args...)
}

// other fails if what exists is not what was to be created, but another of its name.
func other(wanted, is client.Object) error {
	differs := func(what, wanted, is string) error {
		if is == wanted {
			return nil
		}
		return fmt.Errorf("exists and is another one: its %s is %q, not %q", what, is, wanted)
	}
	switch is := is.(type) {
	case *v1alpha1.NvmfVolume:
		return differs("uuid", wanted.(*v1alpha1.NvmfVolume).Spec.UUID, is.Spec.UUID)
	case *v1alpha1.NvmfSnapshot:
		return differs("uuid", wanted.(*v1alpha1.NvmfSnapshot).Spec.UUID, is.Spec.UUID)
	case *corev1.PersistentVolumeClaim:
		return differs("volumeName", wanted.(*corev1.PersistentVolumeClaim).Spec.VolumeName, is.Spec.VolumeName)
	case *corev1.PersistentVolume:
		if is.Spec.CSI == nil || is.Spec.CSI.Driver != v1alpha1.DriverName {
			return errors.New("exists and is another one: it is not of " + v1alpha1.DriverName)
		}
		return differs("volumeHandle", wanted.(*corev1.PersistentVolume).Spec.CSI.VolumeHandle, is.Spec.CSI.VolumeHandle)
	}
	return fmt.Errorf("exists, and a %T is not compared", is)
}

// recover a volume: what it lacks of NvmfVolume, PersistentVolume, and claim if that is wanted.
func (m *maker) recover(ctx context.Context, v *lostVolume) {
	if len(v.joins) > 0 {
		m.join(ctx, v)
		return
	}
	if !v.Exists {
		v.complete()
		if !m.create(ctx, "NvmfVolume", v.volume) {
			return
		}
		if v.volume.Spec.Recovery != nil {
			m.say("  the record of its replicas is recovered from their headers; see how far that is: kubectl weft recover %s%s --dry-run", volumePrefix, v.Name)
		}
	}
	described := v.volume.Spec.PersistentVolume
	if described == nil {
		m.say("  PersistentVolume of %s%s: not described; create it with volumeHandle %s", volumePrefix, v.Name, v.Name)
		return
	}
	if described.ClaimName == "" {
		m.say("  PersistentVolume %s of %s%s: it had no claim, and any claim could be bound to it; create it with volumeHandle %s and a claimRef", described.Name, volumePrefix, v.Name, v.Name)
		return
	}
	pv := persistentVolumeOf(v.volume)
	ref := pv.Spec.ClaimRef
	if claim := m.claims[ref.Namespace+"/"+ref.Name]; claim.DeletionTimestamp == nil && claim.Spec.VolumeName == pv.Name {
		ref.UID = claim.UID
	}
	if !m.create(ctx, "PersistentVolume", pv.DeepCopy()) || !m.admits(ctx, pv) {
		return
	}
	if was := described.ReclaimPolicy; was != "" && was != string(corev1.PersistentVolumeReclaimRetain) {
		m.say("  its reclaimPolicy was %s and is Retain now; once you have seen the data, set it back: kubectl patch pv %s -p '{\"spec\":{\"persistentVolumeReclaimPolicy\":\"%s\"}}'", was, described.Name, was)
	}
	m.beside(pv)
	if m.o.claims {
		m.create(ctx, "PersistentVolumeClaim", claimOf(v.volume))
	}
}

// beside says how to use a recovered volume while a claim of the name that its claim had uses another one. In another
// cluster, that claim has nothing to do with it.
func (m *maker) beside(pv *corev1.PersistentVolume) {
	ref := pv.Spec.ClaimRef
	claim := ref.Namespace + "/" + ref.Name
	if uses := m.claims[claim].Spec.VolumeName; uses != "" && uses != pv.Name {
		m.say("  PersistentVolumeClaim %s uses PersistentVolume %s; to use both, reserve this one for a claim of another name, and create that with volumeName %s: kubectl patch pv %s -p '{\"spec\":{\"claimRef\":{\"namespace\":\"%s\",\"name\":\"NAME\"}}}'",
			claim, uses, pv.Name, pv.Name, ref.Namespace)
	}
}

// admits makes a PersistentVolume that exists admit the claim that names it. A claim that was bound before, and is Lost
// now, is only bound to a PersistentVolume with its UID (syncBoundClaim of Kubernetes' volume controller). One with the
// UID of another claim is a person's to change.
func (m *maker) admits(ctx context.Context, wanted *corev1.PersistentVolume) bool {
	uid, is := wanted.Spec.ClaimRef.UID, &corev1.PersistentVolume{}
	if uid == "" {
		return true
	}
	if err := m.api.Get(ctx, client.ObjectKeyFromObject(wanted), is); err != nil {
		if apierrors.IsNotFound(err) && m.o.dryRun {
			return true
		}
		m.fails("PersistentVolume %s: %v", wanted.Name, err)
		return false
	}
	ref := is.Spec.ClaimRef
	if ref == nil || ref.UID == uid {
		return true
	}
	claim := wanted.Spec.ClaimRef.Namespace + "/" + wanted.Spec.ClaimRef.Name
	if ref.UID != "" || ref.Namespace+"/"+ref.Name != claim {
		m.fails("PersistentVolume %s: it is reserved for claim %s/%s with UID %q, so PersistentVolumeClaim %s is not bound to it; if that claim is the volume's, run: kubectl patch pv %s -p '{\"spec\":{\"claimRef\":{\"namespace\":\"%s\",\"name\":\"%s\",\"uid\":\"%s\"}}}'",
			is.Name, ref.Namespace, ref.Name, ref.UID, claim, is.Name, wanted.Spec.ClaimRef.Namespace, wanted.Spec.ClaimRef.Name, uid)
		return false
	}
	options := []client.PatchOption{client.FieldOwner(fieldManager)}
	if m.o.dryRun {
		options = append(options, client.DryRunAll)
	}
	changed := is.DeepCopy()
	changed.Spec.ClaimRef.UID = uid
	if err := m.api.Patch(ctx, changed, client.MergeFromWithOptions(is, client.MergeFromWithOptimisticLock{}), options...); err != nil {
		m.fails("PersistentVolume %s: set the UID of PersistentVolumeClaim %s: %v", is.Name, claim, err)
		return false
	}
	m.say("PersistentVolume %s reserved for PersistentVolumeClaim %s, which names it%s", is.Name, claim, m.would())
	return true
}

// complete the NvmfVolume as the CSI controller makes it. Its replicas are used, so that nobody makes or formats one;
// the record of several is to be recovered, and nobody can attach the volume before it is.
func (v *lostVolume) complete() {
	vol := v.volume
	vol.Name, vol.Finalizers = v.Name, []string{v1alpha1.ReplicasFinalizer}
	vol.Annotations, vol.Labels = map[string]string{recoveredKey: "true"}, map[string]string{}
	if pv := vol.Spec.PersistentVolume; pv != nil {
		v1alpha1.SetNames(&vol.ObjectMeta, pv.Name, pv.ClaimNamespace, pv.ClaimName)
	}
	last := 0
	for _, r := range v.volume.Spec.Members {
		if rest, is := strings.CutPrefix(r.Name, v.Name+"-"); is {
			number, _, _ := strings.Cut(rest, "-")
			n, _ := strconv.Atoi(number) // another name has none
			last = max(last, n)
		}
	}
	vol.Annotations[v1alpha1.LastReplicaKey] = strconv.Itoa(last)
	if vol.Replicated() {
		vol.Spec.Recovery = &v1alpha1.VolumeRecovery{ID: uuid.NewString(), Attachments: v1alpha1.RecoveryWaits}
	}
}

func (m *maker) recoverSnapshot(ctx context.Context, s lostSnapshot) {
	s.snapshot.Name, s.snapshot.Finalizers = s.Name, []string{v1alpha1.EngineFinalizer}
	if m.create(ctx, "NvmfSnapshot", s.snapshot) {
		m.say("  to use it, create a VolumeSnapshotContent with snapshotHandle %s, and a VolumeSnapshot", s.Name)
	}
}

// persistentVolumeOf a volume that had a claim, as it was, for a claim of the same name and whatever UID. It is
// retained: Kubernetes would have the data deleted if that claim turns out to be bound to another one.
func persistentVolumeOf(vol *v1alpha1.NvmfVolume) *corev1.PersistentVolume {
	d := vol.Spec.PersistentVolume
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: d.Name, Annotations: map[string]string{provisionedBy: v1alpha1.DriverName}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:    corev1.ResourceList{corev1.ResourceStorage: capacityOf(vol)},
			AccessModes: accessModes(d), StorageClassName: d.StorageClass, MountOptions: d.MountOptions,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain, VolumeMode: volumeMode(d),
			ClaimRef: &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: d.ClaimNamespace, Name: d.ClaimName},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: v1alpha1.DriverName, VolumeHandle: vol.Name, FSType: d.FSType,
				VolumeAttributes:   map[string]string{"uuid": vol.Spec.UUID, "target": vol.Spec.Target, provisionerIdentity: v1alpha1.DriverName},
				NodeStageSecretRef: secretOf(d.StageSecret), NodePublishSecretRef: secretOf(d.PublishSecret),
			}},
		},
	}
}

// claimOf a volume, which is bound to its PersistentVolume.
func claimOf(vol *v1alpha1.NvmfVolume) *corev1.PersistentVolumeClaim {
	d := vol.Spec.PersistentVolume
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: d.ClaimNamespace, Name: d.ClaimName},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: accessModes(d), StorageClassName: &d.StorageClass, VolumeMode: volumeMode(d), VolumeName: d.Name,
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: capacityOf(vol)}},
		},
	}
}

// capacityOf a volume: what pods get of it.
func capacityOf(vol *v1alpha1.NvmfVolume) resource.Quantity {
	return *resource.NewQuantity(vol.Spec.Size.Value()-vol.Spec.Encryption.HeaderBytes(), resource.BinarySI)
}

func accessModes(d *v1alpha1.PersistentVolumeDescription) []corev1.PersistentVolumeAccessMode {
	var modes []corev1.PersistentVolumeAccessMode
	for _, mode := range d.AccessModes {
		modes = append(modes, corev1.PersistentVolumeAccessMode(mode))
	}
	return modes
}

func volumeMode(d *v1alpha1.PersistentVolumeDescription) *corev1.PersistentVolumeMode {
	if d.VolumeMode == "" {
		return nil
	}
	return new(corev1.PersistentVolumeMode(d.VolumeMode))
}

func secretOf(s *v1alpha1.DescribedSecret) *corev1.SecretReference {
	if s == nil {
		return nil
	}
	return &corev1.SecretReference{Namespace: s.Namespace, Name: s.Name}
}
