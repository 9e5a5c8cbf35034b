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
	losesWrites = "writes that were acknowledged would be lost when the target's power fails"
	skipsLog    = "without its journal replayed, the filesystem is what a crash left"
	stale       = "after a crash, files could hold what others have deleted"
	continues   = "a filesystem that met an error must take no more writes; it is mounted with errors=remount-ro"
	crashes     = "an error of one volume would stop the node; it is mounted with errors=remount-ro"
	isMode      = "that is said by the claim's access modes, and for one pod by readOnly in its volumes or volumeMounts"
	otherDevice = "a volume is one device"
	notAMount   = "it does not mount the volume's device"
	ours        = "weft sets it for every xfs volume"
)

// refused mount options, by name, or by name and value where others do no harm. What is not listed is for the kernel to
// judge.
var refused = map[string]string{
	"nobarrier": losesWrites, "barrier=0": losesWrites, "barrier=none": losesWrites,
	"norecovery": skipsLog, "noload": skipsLog, "nologreplay": skipsLog,
	"data=writeback":  stale,
	"errors=continue": continues, "errors=panic": crashes, "abort": "it ends the journal at once",
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
	return fmt.Errorf("mountOptions: leave out %s", strings.Join(slices.Compact(problems), "; "))
}
