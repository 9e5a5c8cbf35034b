// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/internal/text"
)

// Each replica of this service notices each change, and so does nobody twice but by a name of the Event's own: the name
// is made of what happened, and whoever comes second finds that it exists. client-go's recorder cannot do that, because
// it puts the time into the name. What a replica reads when it starts is not a change, and is not told.

// mostTries to write an Event. With the delays between them, from 1 s to 1 min, they take about five minutes.
const mostTries = 10

// happening is what Events are to be written about: a change of an object, or something else that was noticed.
type happening struct {
	volume  string
	was, is client.Object
	notice  notice
}

func newUntold() workqueue.TypedRateLimitingInterface[happening] {
	return workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[happening](time.Second, time.Minute))
}

// notice a change of an object, by its two states in the cache. It only compares them: what takes time is done by
// TellEvents.
func (s *Service) notice(was, is any) {
	before, ok := was.(client.Object)
	now, same := is.(client.Object)
	if !ok || !same || len(noticesOf(before, now, nil)) == 0 {
		return
	}
	volume := now.GetName()
	if rep, ok := now.(*v1alpha1.NvmfReplica); ok {
		volume = rep.Spec.Volume.Name
	}
	s.untold.Add(happening{volume: volume, was: before, is: now})
}

// noticeProgress of the copies to a mirror's members.
func (s *Service) noticeProgress(ctx context.Context, was, is any) {
	before, _ := was.(*v1alpha1.NvmfMirror)
	now, ok := is.(*v1alpha1.NvmfMirror)
	if before == nil || !ok {
		return
	}
	// An Event more or less is of no concern: what cannot be read is not told.
	vol, err := s.volumes.peek(ctx, now.Name)
	if err == nil && vol != nil && len(progressNotices(before, now, nil, vol.Spec.Size.Value())) > 0 {
		s.untold.Add(happening{volume: now.Name, was: before, is: now})
	}
}

// TellEvents writes Events about replicas and moves, on the claims of their volumes, until the context ends. Nothing
// waits for it. An Event that cannot be written within minutes is given up.
func (s *Service) TellEvents(ctx context.Context) {
	go func() {
		<-ctx.Done()
		s.untold.ShutDown()
	}()
	for s.tellNext(ctx) {
	}
}

// tellNext waits for something to tell, and tells whether there can be more.
func (s *Service) tellNext(ctx context.Context) bool {
	h, stopped := s.untold.Get()
	if stopped {
		return false
	}
	defer s.untold.Done(h)
	err := s.tell(ctx, h)
	switch {
	case err == nil:
	case s.untold.NumRequeues(h) < mostTries && !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) && !apierrors.IsNotFound(err):
		s.untold.AddRateLimited(h)
		return true
	case ctx.Err() == nil:
		klog.FromContext(ctx).Error(err, "Cannot write an Event", "volume", h.volume)
	}
	s.untold.Forget(h)
	return true
}

// tell what happened. It can be repeated.
func (s *Service) tell(ctx context.Context, h happening) error {
	vol, err := s.volumes.get(ctx, s.client, h.volume)
	if err != nil || vol == nil {
		return err
	}
	notices := []notice{h.notice}
	if h.is != nil {
		notices = noticesOf(h.was, h.is, vol.Spec.Members)
		if is, ok := h.is.(*v1alpha1.NvmfMirror); ok {
			notices = append(notices, progressNotices(h.was.(*v1alpha1.NvmfMirror), is, vol.Spec.Members, vol.Spec.Size.Value())...)
		}
	}
	claim, err := s.claimOf(ctx, vol)
	if err != nil {
		return err
	}
	for _, n := range notices {
		if err := s.client.Create(ctx, eventOf(n, vol, claim)); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("write Event %s: %w", n.reason, err)
		}
	}
	return nil
}

// claimOf a volume: the PersistentVolumeClaim that is bound to its PersistentVolume; nil if there is none. The volume's
// annotations do not say: they name the claim for which the volume was made, and it may be another one's now, by a
// PersistentVolume of another name.
func (s *Service) claimOf(ctx context.Context, vol *v1alpha1.NvmfVolume) (*corev1.ObjectReference, error) {
	name := lastPersistentVolume(vol)
	var pv corev1.PersistentVolume
	if err := s.live.Get(ctx, keyOf(name), &pv); apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("read PersistentVolume %s: %w", name, err)
	}
	source := pv.Spec.CSI
	if source == nil || source.Driver != v1alpha1.DriverName || source.VolumeHandle != vol.Name || pv.Status.Phase != corev1.VolumeBound || pv.Spec.ClaimRef == nil {
		return nil, nil
	}
	ref := pv.Spec.ClaimRef
	return &corev1.ObjectReference{
		APIVersion: corev1.SchemeGroupVersion.String(), Kind: "PersistentVolumeClaim", Namespace: ref.Namespace, Name: ref.Name, UID: ref.UID,
	}, nil
}

// eventOf a notice, on the volume's claim, or on the volume if it has none. Events on objects without a namespace are
// in default.
func eventOf(n notice, vol *v1alpha1.NvmfVolume, claim *corev1.ObjectReference) *eventsv1.Event {
	e := &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("%s.%x", vol.Name, sha256.Sum256([]byte(n.key)))[:len(vol.Name)+17], Namespace: metav1.NamespaceDefault,
		},
		EventTime:           metav1.NowMicro(),
		ReportingController: fieldManager, ReportingInstance: fieldManager, Action: "Reconcile",
		Type: n.kind, Reason: n.reason, Note: text.Clip(n.note, text.MaxEventNote),
		Regarding: corev1.ObjectReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NvmfVolume", Name: vol.Name, UID: vol.UID},
	}
	if claim != nil {
		volume := e.Regarding
		e.Namespace, e.Regarding, e.Related = claim.Namespace, *claim, &volume
	}
	return e
}
