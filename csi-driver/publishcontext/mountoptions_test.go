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
		"noatime,nobarrier":               "remove nobarrier: acknowledged writes would be lost",
		"barrier=0":                       "barrier=0: acknowledged writes",
		"noload":                          "noload: without journal replay",
		"data=writeback":                  "data=writeback: after a crash",
		"errors=continue":                 "errors=continue: a filesystem with errors",
		"errors=panic":                    "errors=panic: an error of one volume",
		"ro":                              "ro: use the access modes of the claim",
		"logdev=/dev/sda":                 "logdev=/dev/sda: a volume is one device",
		"remount":                         "remount: it would not mount",
		"nouuid":                          "nouuid: weft sets it",
		"rbind norecovery rbind":          "remove norecovery: without journal replay, the filesystem stays inconsistent after a crash; rbind: it would not",
	} {
		err := CheckMountOptions(strings.Fields(flags))
		if err == nil && want != "" || err != nil && (want == "" || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: got %v, want %q", flags, err, want)
		}
	}
}
