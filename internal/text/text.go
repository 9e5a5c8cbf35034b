// SPDX-License-Identifier: Apache-2.0

// Package text shortens what people read in messages, Events and conditions.
package text

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// MaxEventNote is the bound of an Event's note, in bytes (events.k8s.io/v1).
const MaxEventNote = 1024

// Few joins the first most items with sep and counts the rest: "a, b and 3 more" when sep is ", ",
// "a; b; and 3 more" for any other separator.
func Few(items []string, most int, sep string) string {
	if len(items) <= most {
		return strings.Join(items, sep)
	}
	more := fmt.Sprintf("and %d more", len(items)-most)
	if sep == ", " {
		return strings.Join(items[:most], sep) + " " + more
	}
	return strings.Join(append(slices.Clone(items[:most]), more), sep)
}

// Clip cuts s to at most most bytes, never inside a character, and ends it with "..." when it did.
func Clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	const mark = "..."
	end := max(most-len(mark), 0)
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + mark
}

// Plural writes a count with its noun: "1 volume", "2 volumes".
func Plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
