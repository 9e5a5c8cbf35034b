// SPDX-License-Identifier: Apache-2.0

package text_test

import (
	"testing"

	"github.com/weft-storage/weft/internal/text"
)

func TestFew(t *testing.T) {
	for _, c := range []struct {
		items []string
		sep   string
		want  string
	}{
		{nil, ", ", ""},
		{[]string{"a", "b"}, ", ", "a, b"},
		{[]string{"a", "b", "c"}, ", ", "a, b and 1 more"},
		{[]string{"a", "b", "c", "d"}, "; ", "a; b; and 2 more"},
	} {
		if got := text.Few(c.items, 2, c.sep); got != c.want {
			t.Errorf("Few(%q, 2, %q) = %q, want %q", c.items, c.sep, got, c.want)
		}
	}
}

func TestFewLeavesItsItems(t *testing.T) {
	items := []string{"a", "b", "c"}
	text.Few(items, 1, "; ")
	if items[1] != "b" {
		t.Errorf("Few wrote into its argument: %q", items)
	}
}

func TestClipNeverCutsACharacter(t *testing.T) {
	for _, c := range []struct {
		s    string
		most int
		want string
	}{
		{"short", 5, "short"},
		{"longer", 5, "lo..."},
		{"äöüäöü", 8, "äö..."}, // two bytes a character: the fifth byte is inside one
	} {
		if got := text.Clip(c.s, c.most); got != c.want {
			t.Errorf("Clip(%q, %d) = %q, want %q", c.s, c.most, got, c.want)
		}
	}
}

func TestPlural(t *testing.T) {
	if one, two := text.Plural(1, "volume"), text.Plural(2, "volume"); one != "1 volume" || two != "2 volumes" {
		t.Errorf("got %q and %q", one, two)
	}
}
