// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

func classNamed(name, provisioner string) *storagev1.StorageClass {
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner, Parameters: map[string]string{"target": "fast"}}
}

// pendingClaim of namespace default, made five minutes before noon.
func pendingClaim(name string, class *string) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.NewTime(noon.Add(-5 * time.Minute))}}
	c.Spec.StorageClassName, c.Status.Phase = class, corev1.ClaimPending
	return c
}

// warning of a minute before noon.
func warning(about client.ObjectKey, id types.UID, kind, reason, message string) *corev1.Event {
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: about.Namespace, Name: about.Name + "." + reason},
		InvolvedObject: corev1.ObjectReference{Kind: kind, Name: about.Name, UID: id},
		Type:           corev1.EventTypeWarning, Reason: reason, Message: message, LastTimestamp: metav1.NewTime(noon.Add(-time.Minute)),
	}
}

// failed to make the volume of a claim.
func failed(c *corev1.PersistentVolumeClaim, message string) *corev1.Event {
	return warning(client.ObjectKeyFromObject(c), c.UID, "PersistentVolumeClaim", provisioningFailed, message)
}

// weftPod is not Ready since three minutes before noon.
func weftPod(name, component, node string, waits corev1.ContainerStateWaiting) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "weft-system", Name: name, UID: types.UID("uid-" + name),
		Labels: map[string]string{"app.kubernetes.io/name": "weft", v1alpha1.ComponentLabel: component}}}
	pod.Spec.NodeName = node
	pod.Status = corev1.PodStatus{Phase: corev1.PodPending,
		Conditions:        []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: metav1.NewTime(noon.Add(-3 * time.Minute))}},
		ContainerStatuses: []corev1.ContainerStatus{{Name: component, State: corev1.ContainerState{Waiting: &waits}}}}
	return pod
}

// around are objects, and what the status says of them.
type around struct {
	objects []client.Object
	about   string
	forbid  []string
	// alone: without the classes of weft.
	alone  bool
	change func(*status)
	want   []string
	not    string
}

// says what the status says of the small cluster with the objects around it.
func (a around) says(t *testing.T, objects ...client.Object) {
	t.Helper()
	r := newRig(t, append(objects, a.objects...)...)
	s := small()
	if a.change != nil {
		a.change(s)
	}
	s.lookAround(r.ctx, forbids{r.api, a.forbid})
	var out bytes.Buffer
	if a.about == "" {
		s.overview(&table{out: &out})
	} else {
		s.about(&table{out: &out}, a.about)
	}
	got := spaces.ReplaceAllString(out.String(), " ")
	for _, w := range a.want {
		if !strings.Contains(got, w) {
			t.Errorf("want %q in:\n%s", w, got)
		}
	}
	if a.not != "" && strings.Contains(got, a.not) {
		t.Errorf("do not want %q in:\n%s", a.not, got)
	}
	if well := strings.Contains(got, "No problems found."); well == s.unwell {
		t.Errorf("unwell is %v:\n%s", s.unwell, got)
	}
}

func TestStatusTellsOfClaimsThatWait(t *testing.T) {
	ours, first := classNamed("weft-fast", v1alpha1.DriverName), classNamed("weft-first", v1alpha1.DriverName)
	first.VolumeBindingMode = new(storagev1.VolumeBindingWaitForFirstConsumer)
	others := classNamed("nfs", "nfs.example.com")
	byDefault := classNamed("weft-default", v1alpha1.DriverName)
	byDefault.Annotations = map[string]string{isDefaultClass: "true"}
	chosen := pendingClaim("data", new("weft-first"))
	chosen.Annotations = map[string]string{selectedNode: "a"}
	isNew, ends, bound := pendingClaim("data", new("weft-fast")), pendingClaim("data", new("weft-fast")), pendingClaim("data", new("weft-fast"))
	isNew.CreationTimestamp = metav1.NewTime(noon.Add(-5 * time.Second))
	ends.DeletionTimestamp, ends.Finalizers = new(metav1.NewTime(noon)), []string{"x"}
	bound.Status.Phase = corev1.ClaimBound
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "app"}, Spec: corev1.PodSpec{Volumes: []corev1.Volume{{
		VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}}}
	pod.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "no free storage"}}}
	newPod := pod.DeepCopy()
	newPod.CreationTimestamp = metav1.NewTime(noon.Add(-time.Second))
	restored, selects := pendingClaim("data", new("weft-fast")), failed(pendingClaim("data", nil), "claim Selector is not supported")
	restored.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{restoredByVelero: "default.data.x"}}
	refused := failed(pendingClaim("data", nil), "infeasible. rpc error: code = InvalidArgument desc = StorageClass parameters: replicas")
	var many []client.Object
	for i := range 12 {
		many = append(many, pendingClaim(fmt.Sprintf("many-%02d", i), new("weft-fast")))
	}
	const is = "- claim default/data is Pending for 5m"
	const see = "; see kubectl weft volume -n default data\n"
	for name, c := range map[string]around{
		"a claim that the driver refuses":  {objects: []client.Object{pendingClaim("data", new("weft-fast")), refused}, want: []string{is + ": infeasible. StorageClass parameters: replicas" + see}},
		"no Events":                        {objects: []client.Object{pendingClaim("data", new("weft-fast"))}, want: []string{is + see}},
		"a claim that Velero restores":     {objects: []client.Object{restored, selects}, want: []string{is + ": Velero fills a volume for it (kubectl get datadownloads -A)" + see}},
		"of the target":                    {about: "fast", objects: []client.Object{pendingClaim("data", new("weft-fast"))}, want: []string{is + see}},
		"not of a node":                    {about: "a", objects: []client.Object{pendingClaim("data", new("weft-fast"))}, not: "data"},
		"a new claim":                      {objects: []client.Object{isNew}, not: "data"},
		"a claim that is deleted":          {objects: []client.Object{ends}, not: "data"},
		"a claim that is bound":            {objects: []client.Object{bound}, not: "data"},
		"a class that does not exist":      {objects: []client.Object{pendingClaim("data", new("fats"))}, want: []string{is + ": StorageClass fats does not exist; StorageClasses of weft: weft-fast, weft-first" + see}},
		"no class, and no default":         {objects: []client.Object{pendingClaim("data", nil)}, want: []string{is + ": it names no StorageClass, and the cluster has no default one; StorageClasses of weft: weft-fast, weft-first" + see}},
		"no class, and others have some":   {objects: []client.Object{pendingClaim("data", nil), others}, not: "data"},
		"no class, and a default":          {objects: []client.Object{pendingClaim("data", nil), byDefault}, not: "data"},
		"no class is wanted":               {objects: []client.Object{pendingClaim("data", new(""))}, not: "data"},
		"a class of another driver":        {objects: []client.Object{pendingClaim("data", new("nfs")), others}, not: "data"},
		"no pod":                           {objects: []client.Object{pendingClaim("data", new("weft-first"))}, not: "data"},
		"a pod that waits":                 {objects: []client.Object{pendingClaim("data", new("weft-first")), pod}, want: []string{is + ": pod app waits: Unschedulable: no free storage" + see}},
		"a new pod":                        {objects: []client.Object{pendingClaim("data", new("weft-first")), newPod}, not: "data"},
		"a node was chosen":                {objects: []client.Object{chosen, refused}, want: []string{is + ": infeasible."}},
		"many":                             {objects: many, want: []string{"many-09\n- and 2 more claims that are Pending (kubectl get pvc -A)"}, not: "many-10"},
		"claims may not be listed":         {objects: many, forbid: []string{"PersistentVolumeClaim"}, want: []string{"Unknown, because it could not be read: PersistentVolumeClaims: "}, not: "many"},
		"Events may not be listed":         {objects: many, forbid: []string{"Event"}, want: []string{"could not be read: Events of claims: ", "\nProblems:\n- claim default/many-00 is Pending for 5m; see"}},
		"pods may not be listed":           {objects: []client.Object{pendingClaim("data", new("weft-first")), pod}, forbid: []string{"Pod"}, want: []string{"could not be read: pods that wait for claims: "}, not: "data"},
		"StorageClasses may not be listed": {objects: many, forbid: []string{"StorageClass"}, want: []string{"could not be read: StorageClasses: "}, not: "many"},
		"no class of weft":                 {alone: true, objects: []client.Object{pendingClaim("data", new("fats")), pendingClaim("more", nil)}, not: "default/"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.alone {
				c.says(t)
			} else {
				c.says(t, ours, first)
			}
		})
	}
}

func TestStatusTellsOfWeftsPods(t *testing.T) {
	creating := corev1.ContainerStateWaiting{Reason: "ContainerCreating"}
	back := corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "Back-off pulling image \"spdk:1\""}
	waits := weftPod("weft-operator-1", componentOperator, "b", creating)
	sandbox := warning(client.ObjectKeyFromObject(waits), waits.UID, "Pod", "FailedCreatePodSandBox", "no pause image")
	dns := warning(client.ObjectKeyFromObject(waits), waits.UID, "Pod", "MissingClusterDNS", "no DNS")
	short, ready, ended := waits.DeepCopy(), waits.DeepCopy(), waits.DeepCopy()
	short.Status.Conditions[0].LastTransitionTime = metav1.NewTime(noon.Add(-30 * time.Second))
	ready.Status.Conditions[0].Status = corev1.ConditionTrue
	ended.Status.Phase = corev1.PodFailed
	nowhere := waits.DeepCopy()
	nowhere.Spec.NodeName = ""
	nowhere.Status.Conditions = append(nowhere.Status.Conditions, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "no node"})
	var many []client.Object
	for i := range 12 {
		many = append(many, weftPod(fmt.Sprintf("weft-agent-%02d", i), componentAgent, "b", creating))
	}
	const is = "- pod weft-system/weft-operator-1 on node b is not Ready for 3m: "
	notAnswering := func(s *status) {
		const reason = v1alpha1.ReasonEngineNotAnswering
		s.nodes[0].Status.Conditions = append(s.nodes[0].Status.Conditions, condition(v1alpha1.ConditionTargetPodReady, metav1.ConditionFalse, v1alpha1.ReasonPodPending))
		s.nodes[0].Status.Conditions[1] = condition(v1alpha1.ConditionReady, metav1.ConditionFalse, reason)
		for i := range s.replicas {
			s.replicas[i].Status.Conditions = []metav1.Condition{condition(v1alpha1.ConditionReady, metav1.ConditionFalse, reason)}
		}
		s.replicas[0].Status.Conditions = append(s.replicas[0].Status.Conditions, condition(v1alpha1.ConditionCreated, metav1.ConditionFalse, v1alpha1.ReasonNoSpace))
	}
	for name, c := range map[string]around{
		"a Warning":             {objects: []client.Object{waits, sandbox, dns}, want: []string{is + "FailedCreatePodSandBox: no pause image\n"}},
		"no Warning":            {objects: []client.Object{waits, dns}, want: []string{is + "ContainerCreating\n"}},
		"of its node":           {about: "b", objects: []client.Object{waits}, want: []string{is}},
		"not of another node":   {about: "a", objects: []client.Object{waits}, not: "weft-operator-1"},
		"not scheduled":         {objects: []client.Object{nowhere}, want: []string{"weft-operator-1 on node unknown is not Ready for 3m: Unschedulable: no node\n"}},
		"its image":             {objects: []client.Object{weftPod("weft-agent-1", componentAgent, "b", back)}, want: []string{"for 3m: the image of container agent cannot be pulled: Back-off pulling image \"spdk:1\"\n"}},
		"not long":              {objects: []client.Object{short}, not: "weft-operator-1"},
		"ready":                 {objects: []client.Object{ready}, not: "weft-operator-1"},
		"ended":                 {objects: []client.Object{ended}, not: "weft-operator-1"},
		"of another part":       {objects: []client.Object{weftPod("weft-pull-a", "target-pull", "a", back)}, not: "weft-pull-a"},
		"many":                  {objects: many, want: []string{"weft-agent-09 on node b is not Ready for 3m: ContainerCreating\n- and 2 more pods of weft that are not Ready (kubectl get pods -A -l app.kubernetes.io/name=weft)"}, not: "weft-agent-10"},
		"pods cannot be read":   {objects: many, forbid: []string{"Pod"}, want: []string{"could not be read: weft's pods: "}, not: "weft-agent"},
		"Events cannot be read": {objects: many, forbid: []string{"Event"}, want: []string{"could not be read: Events of weft's pods: ", "weft-agent-09 on node b is not Ready for 3m: ContainerCreating\n"}},
		"the image of a target pod": {
			objects: []client.Object{weftPod("weft-target-a", v1alpha1.ComponentTarget, "a", back)}, change: notAnswering,
			want: []string{"Problems:\n- NvmfNode a: the target pod does not start, because its image cannot be pulled: Back-off pulling image \"spdk:1\"; set target.image in the chart's values, " +
				"see docs/tasks/change-the-target-image.md (conditions of the node and its replicas that follow from it, not listed: 4)\n" +
				"- NvmfVolume pvc-0, NvmfReplica pvc-0-0: Created is False: NoSpace: the message of NoSpace\n- NvmfVolume pvc-2, NvmfReplica pvc-2-0: Ready is False: EngineNotAnswering"},
			not: "weft-target-a"},
	} {
		t.Run(name, func(t *testing.T) { c.says(t) })
	}
}

func TestStatusReportsWhatIsUnknown(t *testing.T) {
	s := small()
	s.lookAround(t.Context(), forbids{newRig(t).api, []string{"Pod"}})
	var r StatusReport
	text, err := json.Marshal(s.report(nil))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &r); err != nil || len(r.Unknown) != 1 || len(r.Problems) != 0 {
		t.Errorf("got %+v, %v", r, err)
	}
}
