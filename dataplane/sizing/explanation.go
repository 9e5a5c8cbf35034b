// SPDX-License-Identifier: Apache-2.0

package sizing

import (
	"cmp"
	"slices"
	"strings"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/internal/text"
)

// explanation collects where each number of a plan came from.
type explanation struct{ choices []v1alpha1.Choice }

func (e *explanation) given(setting, value, why string, warnings ...string) {
	e.add(v1alpha1.SourceGiven, setting, value, why, warnings...)
}

func (e *explanation) byDefault(setting, value, why string, warnings ...string) {
	e.add(v1alpha1.SourceDefault, setting, value, why, warnings...)
}

func (e *explanation) computed(setting, value, why string, warnings ...string) {
	e.add(v1alpha1.SourceComputed, setting, value, why, warnings...)
}

// add takes the warnings that are not empty.
func (e *explanation) add(source v1alpha1.ChoiceSource, setting, value, why string, warnings ...string) {
	warnings = slices.DeleteFunc(slices.Clone(warnings), func(w string) bool { return w == "" })
	e.choices = append(e.choices, v1alpha1.Choice{
		Setting: setting, Value: value, Source: source,
		Why: text.Clip(why, v1alpha1.MaxChoiceWords), Warning: text.Clip(strings.Join(warnings, "; "), v1alpha1.MaxChoiceWords),
	})
}

// warn of a number that was explained before.
func (e *explanation) warn(setting, warning string) {
	for i := range e.choices {
		if c := &e.choices[i]; c.Setting == setting {
			if c.Warning != "" {
				warning = c.Warning + "; " + warning
			}
			c.Warning = text.Clip(warning, v1alpha1.MaxChoiceWords)
		}
	}
}

func (e *explanation) sort() {
	slices.SortFunc(e.choices, func(a, b v1alpha1.Choice) int { return cmp.Compare(a.Setting, b.Setting) })
}
