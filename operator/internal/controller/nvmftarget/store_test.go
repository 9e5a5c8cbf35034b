// SPDX-License-Identifier: Apache-2.0

package nvmftarget

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	policyv1ac "k8s.io/client-go/applyconfigurations/policy/v1"
	toolscache "k8s.io/client-go/tools/cache"
	testingclock "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/manifest"
)

// fields that the manager's cache and the API server select by.
var fields = map[string]func(client.Object) string{
	"spec.node": func(o client.Object) string {
		switch o := o.(type) {
		case *v1alpha1.NvmfReplica:
			return o.Spec.Node
		case *v1alpha1.NvmfSnapshot:
			return o.Spec.Node
		}
		return ""
	},
	"spec.target": func(o client.Object) string {
		switch o := o.(type) {
		case *v1alpha1.NvmfNode:
			return o.Spec.Target
		case *v1alpha1.NvmfVolume:
			return o.Spec.Target
		case *v1alpha1.NvmfReplica:
			return o.Spec.Target
		}
		return ""
	},
}

// store keeps objects in an informer's indexers, and gives them to readers as the manager's cache does: the cache's own
// where a reader says that it only reads, else copies. It counts both.
type store struct {
	t       testing.TB
	kinds   map[reflect.Type]toolscache.Indexer
	version int
	// given counts the objects that readers got, copied those of them that were copied.
	given, copied int
	// told of every change, as an informer's handlers are: before is nil for a new object, now for one that is gone.
	told []func(before, now client.Object)
}

func newStore(t testing.TB) *store {
	return &store{t: t, kinds: map[reflect.Type]toolscache.Indexer{}}
}

func (s *store) of(kind reflect.Type) toolscache.Indexer {
	if s.kinds[kind] == nil {
		indexers := toolscache.Indexers{}
		for name, value := range fields {
			indexers[name] = func(o any) ([]string, error) { return []string{value(o.(client.Object))}, nil }
		}
		s.kinds[kind] = toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, indexers)
	}
	return s.kinds[kind]
}

// put an object as the API server would store it, under a new resourceVersion. It is the store's from then on.
func (s *store) put(o client.Object) {
	s.version++
	o.SetResourceVersion(strconv.Itoa(s.version))
	if o.GetUID() == "" {
		o.SetUID(types.UID(fmt.Sprint("uid-", s.version)))
	}
	before := s.find(o)
	if err := s.of(reflect.TypeOf(o)).Update(o); err != nil {
		s.t.Fatal(err)
	}
	s.tell(before, o)
}

// remove an object; finalizers are the caller's business.
func (s *store) remove(o client.Object) {
	if err := s.of(reflect.TypeOf(o)).Delete(o); err != nil {
		s.t.Fatal(err)
	}
	s.tell(o, nil)
}

func (s *store) tell(before, now client.Object) {
	for _, told := range s.told {
		told(before, now)
	}
}

// find the stored object of the same kind and name; nil when there is none.
func (s *store) find(o client.Object) client.Object {
	found, exists, err := s.of(reflect.TypeOf(o)).Get(o)
	if err != nil {
		s.t.Fatal(err)
	}
	if !exists {
		return nil
	}
	return found.(client.Object)
}

// change a stored object.
func change[T client.Object](s *store, o T, how func(T)) {
	is := s.find(o).DeepCopyObject().(T)
	how(is)
	s.put(is)
}

func (s *store) Get(_ context.Context, key client.ObjectKey, out client.Object, opts ...client.GetOption) error {
	o := client.GetOptions{}
	o.ApplyOptions(opts)
	name := key.Name
	if key.Namespace != "" {
		name = key.String()
	}
	found, exists, err := s.of(reflect.TypeOf(out)).GetByKey(name)
	if err != nil {
		return err
	}
	if !exists {
		return apierrors.NewNotFound(schema.GroupResource{Resource: reflect.TypeOf(out).String()}, key.Name)
	}
	reflect.ValueOf(out).Elem().Set(reflect.ValueOf(s.give(found, o.UnsafeDisableDeepCopy)).Elem())
	return nil
}

func (s *store) give(found any, asIs *bool) runtime.Object {
	o := found.(runtime.Object)
	s.given++
	if asIs == nil || !*asIs {
		s.copied++
		o = o.DeepCopyObject()
	}
	return o
}

func (s *store) List(_ context.Context, list client.ObjectList, opts ...client.ListOption) error {
	o := client.ListOptions{}
	o.ApplyOptions(opts)
	items, ok := reflect.TypeOf(list).Elem().FieldByName("Items")
	if !ok {
		return fmt.Errorf("%T is no list", list)
	}
	indexer := s.of(reflect.PointerTo(items.Type.Elem()))
	var found []any
	if o.FieldSelector == nil {
		found = indexer.List()
	} else {
		first := o.FieldSelector.Requirements()[0]
		var err error
		if found, err = indexer.ByIndex(first.Field, first.Value); err != nil {
			return err
		}
	}
	given := make([]runtime.Object, 0, len(found))
	for _, f := range found {
		is := f.(client.Object)
		if o.Namespace != "" && is.GetNamespace() != o.Namespace || o.LabelSelector != nil && !o.LabelSelector.Matches(labels.Set(is.GetLabels())) || !selected(is, o) {
			continue
		}
		given = append(given, s.give(is, o.UnsafeDisableDeepCopy))
		if o.Limit > 0 && int64(len(given)) == o.Limit {
			break
		}
	}
	return meta.SetList(list, given)
}

func selected(o client.Object, by client.ListOptions) bool {
	if by.FieldSelector == nil {
		return true
	}
	for _, r := range by.FieldSelector.Requirements() {
		if fields[r.Field](o) != r.Value {
			return false
		}
	}
	return true
}

// session of a Reconciler with the store. What it writes is stored when apply is called, so that two Reconcilers can be
// asked about the same state.
type session struct {
	client.Client // what a Reconciler is not known to call fails
	*store
	writes []write
}

type write struct {
	what string
	do   func()
}

func (s *session) Get(ctx context.Context, key client.ObjectKey, out client.Object, opts ...client.GetOption) error {
	return s.store.Get(ctx, key, out, opts...)
}

func (s *session) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	return s.store.List(ctx, list, opts...)
}

func (s *session) Status() client.SubResourceWriter { return statusSession{session: s} }

type statusSession struct {
	client.SubResourceWriter
	session *session
}

func (s statusSession) Apply(ctx context.Context, config runtime.ApplyConfiguration, _ ...client.SubResourceApplyOption) error {
	return s.session.Apply(ctx, config)
}

// Apply what the manifests give: it is refused when it was computed from another version of the object.
func (s *session) Apply(_ context.Context, config runtime.ApplyConfiguration, _ ...client.ApplyOption) error {
	switch c := config.(type) {
	case *manifest.NodeSpec:
		return record(s, c, c.UID, c.ResourceVersion, &v1alpha1.NvmfNode{ObjectMeta: metav1.ObjectMeta{Name: *c.Name}}, func(n *v1alpha1.NvmfNode) {
			n.Spec.Target, n.Spec.Plan, n.Spec.Leaving = c.Spec.Target, c.Spec.Plan, c.Spec.Leaving
			n.Generation++
		})
	case *manifest.NodeConditions:
		return record(s, c, c.UID, c.ResourceVersion, &v1alpha1.NvmfNode{ObjectMeta: metav1.ObjectMeta{Name: *c.Name}}, func(n *v1alpha1.NvmfNode) {
			for _, is := range c.Status.Conditions {
				meta.SetStatusCondition(&n.Status.Conditions, is)
			}
		})
	case *manifest.TargetStatus:
		return record(s, c, c.UID, c.ResourceVersion, &v1alpha1.NvmfTarget{ObjectMeta: metav1.ObjectMeta{Name: *c.Name}}, func(t *v1alpha1.NvmfTarget) {
			t.Status = *c.Status
		})
	case *policyv1ac.PodDisruptionBudgetApplyConfiguration:
		is := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: *c.Namespace, Name: *c.Name}}
		is.Spec.MaxUnavailable = c.Spec.MaxUnavailable
		s.writes = append(s.writes, write{s.text(config), func() { s.put(is) }})
		return nil
	}
	return fmt.Errorf("apply %T: it is not known here", config)
}

func record[T client.Object](s *session, config any, uid *types.UID, version *string, o T, how func(T)) error {
	fresh := func() bool {
		is := s.find(o)
		return is != nil && is.GetUID() == *uid && is.GetResourceVersion() == *version
	}
	if !fresh() {
		return apierrors.NewConflict(schema.GroupResource{}, o.GetName(), fmt.Errorf("version %s", *version))
	}
	s.writes = append(s.writes, write{s.text(config), func() {
		if fresh() {
			change(s.store, o, how)
		}
	}})
	return nil
}

func (s *session) text(config any) string {
	data, err := json.Marshal(config)
	if err != nil {
		s.t.Fatal(err)
	}
	return string(data)
}

// Patch of finalizers: the only one.
func (s *session) Patch(_ context.Context, o client.Object, _ client.Patch, _ ...client.PatchOption) error {
	s.writes = append(s.writes, write{fmt.Sprint("finalizers of ", o.GetName(), o.GetFinalizers()), func() {
		if !o.GetDeletionTimestamp().IsZero() && len(o.GetFinalizers()) == 0 {
			s.remove(o)
		} else {
			s.put(o)
		}
	}})
	return nil
}

// apply what was written, and forget it; it answers how much that was.
func (s *session) apply() int {
	n := len(s.writes)
	for _, w := range s.writes {
		w.do()
	}
	s.writes = nil
	return n
}

// Eventf takes Events down beside the writes.
func (s *session) Eventf(about, related runtime.Object, kind, reason, action, format string, args ...any) {
	name := about.(client.Object).GetName()
	if related != nil {
		name += "/" + related.(client.Object).GetName()
	}
	s.writes = append(s.writes, write{fmt.Sprint("event ", name, kind, reason, action, fmt.Sprintf(format, args...)), func() {}})
}

// reconciler that works on the store, and hears of each change in it.
func (s *store) reconciler(clock *testingclock.FakePassiveClock) (*Reconciler, *session) {
	at := &session{store: s}
	r := &Reconciler{
		Client: at, Live: s, Recorder: at, Clock: clock,
		Pods: manifest.TargetPods{Namespace: "weft-system", Image: "target:2", ImagePullPolicy: corev1.PullIfNotPresent},
	}
	s.told = append(s.told, r.hear)
	return r, at
}

// hear of a change as the manager calls the handlers of an informer's events.
func (r *Reconciler) hear(before, now client.Object) {
	of := now
	if of == nil {
		of = before
	}
	watches := r.watches()
	i := slices.IndexFunc(watches, func(w watch) bool { return reflect.TypeOf(w.kind) == reflect.TypeOf(of) })
	if i < 0 {
		return
	}
	h := watches[i].handler
	switch {
	case before == nil:
		h.Create(context.Background(), event.CreateEvent{Object: now}, nowhere{})
	case now == nil:
		h.Delete(context.Background(), event.DeleteEvent{Object: before}, nowhere{})
	default:
		h.Update(context.Background(), event.UpdateEvent{ObjectOld: before, ObjectNew: now}, nowhere{})
	}
}

// nowhere is a queue of requests that nobody takes.
type nowhere struct{ queue }

func (nowhere) AddAfter(reconcile.Request, time.Duration) {}

// settle reconciles the target until nothing is written any more.
func settle(t testing.TB, r *Reconciler, at *session, target string) {
	t.Helper()
	for range 20 {
		if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: target}}); err != nil {
			t.Fatal(err)
		}
		if at.apply() == 0 {
			return
		}
	}
	t.Fatal("it goes on writing")
}

func newClock() *testingclock.FakePassiveClock {
	return testingclock.NewFakePassiveClock(time.Date(2026, 11, 26, 8, 0, 0, 0, time.UTC))
}
