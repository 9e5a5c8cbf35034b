// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/internal/text"
)

const (
	// claimGrace within which a new claim, or a new pod of one, may wait.
	claimGrace = 10 * time.Second
	// phaseOfPod selects pods by their phase.
	phaseOfPod = "status.phase"
	// isDefaultClass is the annotation of the default StorageClass.
	isDefaultClass = "storageclass.kubernetes.io/is-default-class"
	// selectedNode is the annotation that the scheduler sets on a claim once it has chosen a node for its pod.
	selectedNode = "volume.kubernetes.io/selected-node"
)

// waitingClaim is a claim that does not get a volume of weft.
type waitingClaim struct {
	claim *corev1.PersistentVolumeClaim
	// target of its StorageClass; "" if it is not known.
	target string
	// why it waits, after a colon; "" if nothing says it.
	why string
}

// ofWeft are the classes of weft among all, by name.
func ofWeft(classes []storagev1.StorageClass) []string {
	var names []string
	for _, c := range classes {
		if c.Provisioner == v1alpha1.DriverName {
			names = append(names, c.Name)
		}
	}
	slices.Sort(names)
	return names
}

// classOf a claim; nil: it names none, or one that does not exist.
func classOf(claim *corev1.PersistentVolumeClaim, classes []storagev1.StorageClass) *storagev1.StorageClass {
	name := claim.Spec.StorageClassName
	return find(classes, func(c *storagev1.StorageClass) bool { return name != nil && *name == c.Name })
}

// lacksClass says of a claim that it has no StorageClass that could give it a volume, after a colon; "" if it has one,
// or wants none.
func lacksClass(claim *corev1.PersistentVolumeClaim, classes []storagev1.StorageClass) string {
	var why string
	switch name := claim.Spec.StorageClassName; {
	case name == nil && slices.ContainsFunc(classes, func(c storagev1.StorageClass) bool { return c.Annotations[isDefaultClass] == "true" }):
		return ""
	case name == nil:
		why = ": it names no StorageClass, and the cluster has no default one"
	case *name == "" || classOf(claim, classes) != nil:
		return ""
	default:
		why = fmt.Sprintf(": StorageClass %s does not exist", *name)
	}
	if names := ofWeft(classes); len(names) > 0 {
		why += "; StorageClasses of weft: " + text.Few(names, maxNamed, ", ")
	}
	return why
}

// provisioningFailed is the reason of the Events that csi-provisioner writes on a claim.
const provisioningFailed = "ProvisioningFailed"

// lastFailure to make the volume of an object, as csi-provisioner told it, after a colon; "" if it told of none. The
// Events are sorted by time.
func lastFailure(events []corev1.Event, id types.UID) string {
	for i := range slices.Backward(events) {
		if e := &events[i]; e.Reason == provisioningFailed && e.InvolvedObject.UID == id {
			return ": " + oneLine(e.Message)
		}
	}
	return ""
}

// rpcError is what gRPC writes before the message of an error.
var rpcError = regexp.MustCompile(`rpc error: code = \w+ desc = `)

// oneLine is a message on one line, without what gRPC adds to it.
func oneLine(message string) string {
	return rpcError.ReplaceAllString(strings.Join(strings.Fields(message), " "), "")
}

// readClaims finds the claims that wait for a volume of weft. What may not be read is noted.
func (s *status) readClaims(ctx context.Context, api client.Reader) {
	var (
		classes storagev1.StorageClassList
		claims  corev1.PersistentVolumeClaimList
		pods    corev1.PodList
	)
	if !s.read(ctx, api, "StorageClasses", &classes) || len(ofWeft(classes.Items)) == 0 || !s.read(ctx, api, "PersistentVolumeClaims", &claims) {
		return
	}
	var waiting []*corev1.PersistentVolumeClaim
	first := false
	for i := range claims.Items {
		c := &claims.Items[i]
		if c.Status.Phase == corev1.ClaimPending && c.DeletionTimestamp == nil && s.now.Sub(c.CreationTimestamp.Time) >= claimGrace && concernsWeft(c, classes.Items) {
			waiting = append(waiting, c)
			first = first || waitsForPod(c, classes.Items)
		}
	}
	// A pod whose claim has no volume is Pending, and few pods are.
	if first && !s.read(ctx, api, "pods that wait for claims", &pods, client.MatchingFields{phaseOfPod: string(corev1.PodPending)}) {
		waiting = slices.DeleteFunc(waiting, func(c *corev1.PersistentVolumeClaim) bool { return waitsForPod(c, classes.Items) })
	}
	for _, c := range waiting {
		w := waitingClaim{claim: c, why: cmp.Or(lacksClass(c, classes.Items), restoring(c))}
		if class := classOf(c, classes.Items); class != nil {
			w.target = class.Parameters["target"]
		}
		if waitsForPod(c, classes.Items) {
			pod := find(pods.Items, func(p *corev1.Pod) bool {
				return p.Namespace == c.Namespace && usesClaim(p, c.Name) && s.now.Sub(p.CreationTimestamp.Time) >= claimGrace
			})
			if pod == nil {
				continue
			}
			w.why = fmt.Sprintf(": pod %s waits: %s", pod.Name, orUnknown(reportPod(pod).Waiting))
		}
		s.waiting = append(s.waiting, w)
	}
}

// concernsWeft says of a claim without a volume whether weft is, or may be, to make it: its class is weft's, or does
// not exist. One that names none is meant for weft only if no other driver has a class.
func concernsWeft(claim *corev1.PersistentVolumeClaim, classes []storagev1.StorageClass) bool {
	if class := classOf(claim, classes); class != nil {
		return class.Provisioner == v1alpha1.DriverName
	}
	return lacksClass(claim, classes) != "" && (claim.Spec.StorageClassName != nil || len(ofWeft(classes)) == len(classes))
}

// restoredByVelero labels a volume that Velero's data mover fills, and the claim that it is for selects it.
const restoredByVelero = "velero.io/dynamic-pv-restore"

// restoring says of a claim why it waits while Velero restores its data: the provisioner, which makes no volumes for
// claims that select one, has Warnings of it all the time.
func restoring(claim *corev1.PersistentVolumeClaim) string {
	if s := claim.Spec.Selector; s == nil || s.MatchLabels[restoredByVelero] == "" {
		return ""
	}
	return ": Velero fills a volume for it (kubectl get datadownloads -A)"
}

// waitsForPod says of a claim that its volume is made only for a pod, and that no node was chosen for one yet.
func waitsForPod(claim *corev1.PersistentVolumeClaim, classes []storagev1.StorageClass) bool {
	class := classOf(claim, classes)
	return class != nil && class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer && claim.Annotations[selectedNode] == ""
}

// read a list, and note it if that cannot be done.
func (s *status) read(ctx context.Context, api client.Reader, what string, list client.ObjectList, options ...client.ListOption) bool {
	err := api.List(ctx, list, options...)
	if err != nil {
		s.unread = append(s.unread, what+": "+err.Error())
	}
	return err == nil
}

// explainClaims asks the Events why the claims wait that will be told, as long as they may be read.
func (s *status) explainClaims(ctx context.Context, api client.Reader) {
	for i := range s.waiting[:min(len(s.waiting), maxProblemVolumes)] {
		w := &s.waiting[i]
		if w.why != "" {
			continue
		}
		var events corev1.EventList
		if !s.read(ctx, api, "Events of claims", &events, client.InNamespace(w.claim.Namespace), client.MatchingFields{eventsOf: string(w.claim.UID)}) {
			return
		}
		byTime(events.Items)
		w.why = lastFailure(events.Items, w.claim.UID)
	}
}

// claimProblems are told of the first claims that wait.
func (s *status) claimProblems(concern func(target, node string) bool) []string {
	var all [][]string
	for _, w := range s.waiting {
		if concern(w.target, "") {
			all = append(all, []string{fmt.Sprintf("claim %s/%s is Pending for %s%s; see kubectl weft volume -n %s %s", w.claim.Namespace, w.claim.Name,
				duration.HumanDuration(s.now.Sub(w.claim.CreationTimestamp.Time)), w.why, w.claim.Namespace, w.claim.Name)})
		}
	}
	return firstFew(all, "claims that are Pending (kubectl get pvc -A)")
}
