// SPDX-License-Identifier: Apache-2.0

package publishcontext

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Why mount options are refused.
const (
	losesWrites = "acknowledged writes would be lost in a power failure of the target"
	skipsLog    = "without journal replay, the filesystem stays inconsistent after a crash"
	stale       = "after a crash, files could contain deleted data of other files"
	continues   = "a filesystem with errors must not accept writes; weft mounts it with errors=remount-ro"
	crashes     = "an error of one volume would crash the node; weft mounts it with errors=remount-ro"
	isMode      = "use the access modes of the claim, or readOnly in the pod's volumes or volumeMounts"
	otherDevice = "a volume is one device"
	notAMount   = "it would not mount the volume's device"
	ours        = "weft sets it for every xfs volume"
)

// refused mount options, by name, or by name and value where others do no harm. What is not listed is for the kernel to
// judge.
var refused = map[string]string{
	"nobarrier": losesWrites, "barrier=0": losesWrites, "barrier=none": losesWrites,
	"norecovery": skipsLog, "noload": skipsLog, "nologreplay": skipsLog,
	"data=writeback":  stale,
	"errors=continue": continues, "errors=panic": crashes, "abort": "it shuts down the journal immediately",
	"ro": isMode, "rw": isMode,
	"logdev": otherDevice, "rtdev": otherDevice, "journal_dev": otherDevice, "journal_path": otherDevice, "sb": otherDevice,
	"loop": otherDevice, "offset": otherDevice, "sizelimit": otherDevice,
	"bind": notAMount, "rbind": notAMount, "move": notAMount, "remount": notAMount,
	"nouuid": ours,
}

// CheckMountOptions names each option of a mount that is refused, with the reason. The controller refuses such a
// volume, and the node one that the controller never saw the options of.
func CheckMountOptions(flags []string) error {
	var problems []string
	for _, flag := range flags {
		// mount(8) takes several in one word.
		for option := range strings.SplitSeq(flag, ",") {
			option = strings.TrimSpace(option)
			name, _, _ := strings.Cut(option, "=")
			if why := cmp.Or(refused[option], refused[name]); why != "" {
				problems = append(problems, fmt.Sprintf("%s: %s", option, why))
			}
		}
	}
	if len(problems) == 0 {
		return nil
	}
	slices.Sort(problems)
	return fmt.Errorf("mountOptions: remove %s", strings.Join(slices.Compact(problems), "; "))
}
