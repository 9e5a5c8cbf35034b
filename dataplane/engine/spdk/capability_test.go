// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"testing"

	"github.com/weft-storage/weft/dataplane/spdkrpc"
	"github.com/weft-storage/weft/internal/capability"
)

// What kubectl weft check-image says of a release is what the engine makes of it.
func TestImagesAreJudgedAsTheEngineDoes(t *testing.T) {
	for _, version := range []string{"24.09", "25.01", "25.05", "25.09", "26.01", "26.05", "26.09"} {
		v := spdkrpc.Version{Text: "SPDK v" + version}
		v.Fields.Major, v.Fields.Minor = int(version[0]-'0')*10+int(version[1]-'0'), int(version[3]-'0')*10+int(version[4]-'0')
		speaks, err := dialectOf(v)
		said := map[string]capability.Has{}
		for _, f := range (&capability.Capabilities{Version: version}).Check() {
			said[f.Name] = f.Has
		}
		expect := func(feature string, there bool) {
			if want := map[bool]capability.Has{true: capability.Yes, false: capability.No}[there]; said[feature] != want {
				t.Errorf("SPDK %s has %q: %q, and to the engine %s", version, feature, said[feature], want)
			}
		}
		expect("SPDK 25.05 or later", err == nil)
		if err != nil {
			continue
		}
		expect("discard hidden from hosts", !speaks.cannotMask)
		expect("RDMA and VFIO in every mode", !speaks.rdmaPolls && !speaks.hugepagesOnly)
		expect("buffer cache of each size", !speaks.oneCache)
	}
}
