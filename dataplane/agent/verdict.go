// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// maxMessageBytes keeps an engine's long error from filling an object; the API's limit is 32768.
const maxMessageBytes = 1024

// verdict is a condition without its type and times.
type verdict struct {
	status          metav1.ConditionStatus
	reason, message string
}

func yes() verdict { return verdict{metav1.ConditionTrue, v1alpha1.ReasonAsExpected, ""} }

// quiet is the healthy state of a condition of negative polarity.
func quiet() verdict { return verdict{metav1.ConditionFalse, v1alpha1.ReasonAsExpected, ""} }

func yesBecause(reason, format string, args ...any) verdict {
	return verdict{metav1.ConditionTrue, reason, fmt.Sprintf(format, args...)}
}

func no(reason, format string, args ...any) verdict {
	return verdict{metav1.ConditionFalse, reason, fmt.Sprintf(format, args...)}
}

func unknown(reason, message string) verdict {
	return verdict{metav1.ConditionUnknown, reason, message}
}

func (v verdict) ok() bool { return v.status == metav1.ConditionTrue }

// judgement is the verdict on one condition.
type judgement struct {
	condition string
	verdict   verdict
}

// conditions brings the agent's own conditions among existing up to date, and leaves out
// those of other writers: they are not the agent's to apply.
func conditions(existing []metav1.Condition, generation int64, now time.Time, judgements ...judgement) []metav1.Condition {
	var own []metav1.Condition
	for _, j := range judgements {
		if c := meta.FindStatusCondition(existing, j.condition); c != nil {
			own = append(own, *c)
		}
		meta.SetStatusCondition(&own, metav1.Condition{
			Type:               j.condition,
			Status:             j.verdict.status,
			Reason:             j.verdict.reason,
			Message:            truncate(j.verdict.message),
			ObservedGeneration: generation,
			LastTransitionTime: metav1.NewTime(now.Truncate(time.Second)),
		})
	}
	slices.SortFunc(own, byType)
	return own
}

// previous is the verdict that an object bears already.
func previous(existing []metav1.Condition, condition string) (verdict, bool) {
	c := meta.FindStatusCondition(existing, condition)
	if c == nil {
		return verdict{}, false
	}
	return verdict{c.Status, c.Reason, c.Message}, true
}

func truncate(message string) string {
	if len(message) <= maxMessageBytes {
		return message
	}
	return message[:maxMessageBytes-3] + "..."
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// bytesOf is a size as the API writes it.
func bytesOf(n int64) *resource.Quantity { return resource.NewQuantity(n, resource.BinarySI) }

const mebibyte = 1 << 20

// sizeOf a volume in bytes, rounded up to what every engine can keep exactly.
func sizeOf(q resource.Quantity) int64 { return (q.Value() + mebibyte - 1) / mebibyte * mebibyte }

// figure is a number that changes all the time: rounded up to 1 MiB, so that 0 stays
// "never written", and only brought up to date with refresh.
func figure(old *resource.Quantity, n int64, refresh bool) *resource.Quantity {
	rounded := (n + mebibyte - 1) / mebibyte * mebibyte
	if old != nil && (!refresh || old.Value() == rounded) {
		return old
	}
	return bytesOf(rounded)
}
