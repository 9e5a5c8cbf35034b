// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// starts tells how long each pod took to start, a line each, the slowest last: the seconds from its creation until its
// sandbox had a network, until each of its containers ran, and until it was ready. The API keeps whole seconds.
func starts(pods []corev1.Pod) string {
	type start struct {
		ready time.Duration
		line  string
	}
	var all []start
	for _, pod := range pods {
		since := func(t time.Time) time.Duration { return t.Sub(pod.CreationTimestamp.Time) }
		words := []string{pod.Name + " on " + pod.Spec.NodeName}
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodReadyToStartContainers && c.Status == corev1.ConditionTrue {
				words = append(words, fmt.Sprintf("network %s", since(c.LastTransitionTime.Time)))
			}
		}
		for _, c := range pod.Status.ContainerStatuses {
			if c.State.Running == nil {
				words = append(words, c.Name+" does not run")
				continue
			}
			word := fmt.Sprintf("%s %s", c.Name, since(c.State.Running.StartedAt.Time))
			if c.RestartCount > 0 {
				word += fmt.Sprintf(" after %d restarts", c.RestartCount)
			}
			words = append(words, word)
		}
		this := start{ready: -1}
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
				this.ready = since(c.LastTransitionTime.Time)
				words = append(words, fmt.Sprintf("ready %s", this.ready))
			}
		}
		this.line = strings.Join(words, ", ") + "\n"
		all = append(all, this)
	}
	slices.SortFunc(all, func(a, b start) int { return cmp.Or(cmp.Compare(a.ready, b.ready), cmp.Compare(a.line, b.line)) })
	var out strings.Builder
	for _, s := range all {
		out.WriteString(s.line)
	}
	return out.String()
}
