// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/internal/text"
)

// MaxMessageBytes keeps an engine's long error from filling an object or an Event; the API's limits are 32768 for a
// condition and 1024 for an Event.
const MaxMessageBytes = 1024

// named is how many names a message lists; the rest is counted.
const named = 5

// What a condition says, without its type and times.

func yes() metav1.Condition { return yesBecause(v1alpha1.ReasonAsExpected, "") }

// quiet is the healthy state of a condition of negative polarity.
func quiet() metav1.Condition { return no(v1alpha1.ReasonAsExpected, "") }

func yesBecause(reason, format string, args ...any) metav1.Condition {
	return metav1.Condition{Status: metav1.ConditionTrue, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

func no(reason, format string, args ...any) metav1.Condition {
	return metav1.Condition{Status: metav1.ConditionFalse, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

func unknown(reason, message string) metav1.Condition {
	return metav1.Condition{Status: metav1.ConditionUnknown, Reason: reason, Message: message}
}

func isTrue(c metav1.Condition) bool { return c.Status == metav1.ConditionTrue }

// typed is what c says, as the condition of a type.
func typed(conditionType string, c metav1.Condition) metav1.Condition {
	c.Type = conditionType
	return c
}

// Conditions brings the agent's own conditions among existing up to date, in the order of their types, with messages of
// at most MaxMessageBytes. Those of other writers are left out: they are not the agent's to apply.
func Conditions(existing []metav1.Condition, generation int64, now time.Time, own ...metav1.Condition) []metav1.Condition {
	var current []metav1.Condition
	for _, c := range own {
		if was := meta.FindStatusCondition(existing, c.Type); was != nil {
			current = append(current, *was)
		}
		c.Message = text.Clip(c.Message, MaxMessageBytes)
		c.ObservedGeneration = generation
		c.LastTransitionTime = metav1.NewTime(now.Truncate(time.Second))
		meta.SetStatusCondition(&current, c)
	}
	slices.SortFunc(current, func(a, b metav1.Condition) int { return strings.Compare(a.Type, b.Type) })
	return current
}
