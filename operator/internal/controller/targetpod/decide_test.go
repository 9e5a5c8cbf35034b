// SPDX-License-Identifier: Apache-2.0

package targetpod

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/manifest"
)

var now = time.Date(2026, 11, 20, 8, 0, 0, 0, time.UTC)

func nodeNamed(name string, conditions ...string) *v1alpha1.NvmfNode {
	n := &v1alpha1.NvmfNode{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid-of-n"}}
	n.Spec = v1alpha1.NvmfNodeSpec{Target: "fast", Plan: &v1alpha1.Plan{Engine: v1alpha1.EngineSPDK, SPDK: &v1alpha1.SPDKPlan{}}}
	for _, c := range conditions {
		n.Status.Conditions = append(n.Status.Conditions, metav1.Condition{Type: c, Status: metav1.ConditionTrue})
	}
	return n
}

// running returns a pod that has been ready since, and follows the plan "new", and then changes it.
func running(since time.Duration, changes ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: "weft-target-n", Annotations: map[string]string{manifest.StartupAnnotation: "new"},
		OwnerReferences: []metav1.OwnerReference{{UID: "uid-of-n", Controller: new(true)}},
	}}
	pod.Status = corev1.PodStatus{
		Phase:             corev1.PodRunning,
		Conditions:        []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-since))}},
		ContainerStatuses: []corev1.ContainerStatus{{Name: manifest.TargetContainer, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}},
	}
	for _, change := range changes {
		change(pod)
	}
	return pod
}

func old(p *corev1.Pod) { p.Annotations[manifest.StartupAnnotation] = "old" }

func unready(p *corev1.Pod) { p.Status.Conditions = nil }

func ending(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: now} }

func foreign(p *corev1.Pod) { p.OwnerReferences[0].UID = "another" }

func pendingPod(p *corev1.Pod) {
	p.Status = corev1.PodStatus{Phase: corev1.PodPending}
}

func crashed(reason string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		unready(p)
		p.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}
		p.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "Error"}
	}
}

func evicted(p *corev1.Pod) {
	p.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "low on memory"}
}

func TestDecide(t *testing.T) {
	const onDelete, rolling = v1alpha1.UpdateOnDelete, v1alpha1.UpdateRollingUpdate
	for name, test := range map[string]struct {
		pod      *corev1.Pod
		strategy v1alpha1.UpdateStrategyType
		act      action
		says     string
	}{
		"none yet":                        {nil, onDelete, create, "False/PodPending: creating the target pod"},
		"serves":                          {running(0), onDelete, keep, "True/AsExpected"},
		"starts":                          {running(0, unready), onDelete, keep, "False/PodNotReady: the target is running, but does not answer (yet)"},
		"is not scheduled":                {running(0, pendingPod), onDelete, keep, "False/PodPending: the target pod is not started yet"},
		"crashed, is started again":       {running(0, crashed("")), onDelete, keep, "False/PodFailed: the target exited with code 137 (Error)"},
		"was evicted":                     {running(0, evicted), onDelete, replaceFailed, "False/PodFailed: the target pod failed (Evicted): low on memory"},
		"was evicted, outdated":           {running(0, evicted, old), onDelete, replaceFailed, "False/PodFailed"},
		"is terminating":                  {running(0, ending), onDelete, keep, "False/PodNotReady: the target pod is terminating"},
		"is ending, outdated":             {running(0, ending, old), rolling, keep, "False/PodNotReady: the target pod is terminating"},
		"is not ours":                     {running(0, foreign), onDelete, keep, "False/PodPending: pod weft-target-n does not belong to weft"},
		"is not ours, and failed":         {running(0, foreign, evicted), rolling, keep, "False/PodPending: pod weft-target-n does not belong to weft"},
		"outdated":                        {running(0, old), onDelete, keep, "True/PodOutdated: the target is serving with an outdated plan or image: delete pod weft-target-n"},
		"outdated, by default":            {running(0, old), "", keep, "True/PodOutdated"},
		"outdated, in turn":               {running(0, old), rolling, roll, "True/AsExpected"},
		"outdated, does not answer":       {running(0, old, unready), onDelete, keep, "False/PodNotReady"},
		"outdated, never started":         {running(0, old, pendingPod), onDelete, replaceOutdated, "False/PodPending"},
		"outdated, crashed once":          {running(0, old, crashed("ContainerCreating")), onDelete, keep, "False/PodFailed"},
		"outdated, crashes all the time":  {running(0, old, crashed("CrashLoopBackOff")), onDelete, replaceOutdated, "False/PodFailed"},
		"follows the plan, and crashes":   {running(0, crashed("CrashLoopBackOff")), rolling, keep, "False/PodFailed"},
		"outdated, in turn, and crashing": {running(0, old, crashed("CrashLoopBackOff")), rolling, replaceOutdated, "False/PodFailed"},
	} {
		t.Run(name, func(t *testing.T) {
			wanted := corev1ac.Pod("weft-target-n", "weft-system").WithAnnotations(map[string]string{manifest.StartupAnnotation: "new"})
			d := decide(view{node: nodeNamed("n"), pod: test.pod, wanted: wanted, strategy: v1alpha1.UpdateStrategy{Type: test.strategy}})
			check(t, d, test.act, test.says)
		})
	}
}

func TestDecideWithoutAPlanForSPDK(t *testing.T) {
	for name, test := range map[string]struct {
		pod   *corev1.Pod
		holds bool
		act   action
	}{
		"no pod":                {nil, false, keep},
		"a pod":                 {running(0), false, release},
		"a pod that is pending": {running(0, pendingPod), false, release},
		"a pod and data":        {running(0), true, keep},
		"a pod that is ending":  {running(0, ending), false, keep},
		"another's pod":         {running(0, foreign), false, keep},
	} {
		t.Run(name, func(t *testing.T) {
			node := nodeNamed("n")
			node.Spec = v1alpha1.NvmfNodeSpec{}
			check(t, decide(view{node: node, pod: test.pod, holdsData: test.holds}), test.act, "True/NotNeeded: no target claims the node")
		})
	}
}

func check(t *testing.T, d decision, act action, says string) {
	t.Helper()
	if d.act != act {
		t.Errorf("decides to %s, want %s", d.act, act)
	}
	c := d.condition
	if got := string(c.Status) + "/" + c.Reason + ": " + c.Message; c.Type != v1alpha1.ConditionTargetPodReady || !strings.HasPrefix(got, says) {
		t.Errorf("%s says\n%s\nwant\n%s", c.Type, got, says)
	}
}

func TestEventsForConditions(t *testing.T) {
	is := func(status metav1.ConditionStatus, reason, message string) metav1.Condition {
		return metav1.Condition{Status: status, Reason: reason, Message: message}
	}
	for name, test := range map[string]struct {
		was  *metav1.Condition
		is   metav1.Condition
		want string
	}{
		"not needed":       {nil, is("True", "NotNeeded", ""), ""},
		"first":            {nil, is("False", "PodPending", ""), "Normal"},
		"serves":           {new(is("False", "PodPending", "")), is("True", "AsExpected", ""), "Normal"},
		"refused":          {new(is("False", "PodPending", "")), is("False", "HugepagesMissing", ""), "Warning"},
		"refused again":    {new(is("False", "HugepagesMissing", "12")), is("False", "HugepagesMissing", "13"), ""},
		"refused, first":   {nil, is("False", "PodFailed", ""), "Warning"},
		"has become older": {new(is("True", "AsExpected", "")), is("True", "PodOutdated", ""), "Normal"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := eventType(test.was, test.is); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
