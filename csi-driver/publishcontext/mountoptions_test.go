// SPDX-License-Identifier: Apache-2.0

package publishcontext

import (
	"strings"
	"testing"
)

func TestCheckMountOptions(t *testing.T) {
	for flags, want := range map[string]string{
		"":                                "",
		"noatime discard commit=30":       "",
		"barrier=1 errors=remount-ro":     "",
		"data=ordered":                    "",
		"context=\"system_u:object_r:x\"": "",
		"noatime,nobarrier":               "leave out nobarrier: writes that were acknowledged would be lost",
		"barrier=0":                       "barrier=0: writes",
		"noload":                          "noload: without its journal",
		"data=writeback":                  "data=writeback: after a crash",
		"errors=continue":                 "errors=continue: a filesystem that met an error",
		"errors=panic":                    "errors=panic: an error of one volume",
		"ro":                              "ro: that is said by the claim's access modes",
		"logdev=/dev/sda":                 "logdev=/dev/sda: a volume is one device",
		"remount":                         "remount: it does not mount",
		"nouuid":                          "nouuid: weft sets it",
		"rbind norecovery rbind":          "leave out norecovery: without its journal replayed, the filesystem is what a crash left; rbind: it does not",
	} {
		err := CheckMountOptions(strings.Fields(flags))
		if err == nil && want != "" || err != nil && (want == "" || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: got %v, want %q", flags, err, want)
		}
	}
}
