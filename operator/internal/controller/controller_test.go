// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/weft-storage/weft/operator/internal/controller"
)

func TestClip(t *testing.T) {
	if got := controller.Clip("short", 1024); got != "short" {
		t.Errorf("got %q", got)
	}
	got := controller.Clip(strings.Repeat("ü", 600), 1024)
	if len(got) > 1024 || !utf8.ValidString(got) || !strings.HasSuffix(got, "ü...") {
		t.Errorf("%d bytes, ends in %q", len(got), got[len(got)-8:])
	}
}
