// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"testing"

	"github.com/weft-storage/weft/dataplane/engine"
)

func TestParseStat(t *testing.T) {
	// Of an NVMe drive under Linux 6.12, with flushes at the end.
	is, err := parseStat("    1203       17    96240      310     4410      893   312848     9120        0     2060     9531       12        0  8388608      101        3        0")
	want := engine.IO{
		Read:    engine.Operations{Count: 1203, Bytes: 96240 * 512, Seconds: 0.31},
		Write:   engine.Operations{Count: 4410, Bytes: 312848 * 512, Seconds: 9.12},
		Discard: engine.Operations{Count: 12, Bytes: 4 << 30, Seconds: 0.101},
	}
	if err != nil || is != want {
		t.Errorf("read %+v, %v; want %+v", is, err, want)
	}
	for _, text := range []string{"", "1 2 3", "1 2 3 4 5 6 7 8 9 10 11 12 13 14 x"} {
		if is, err := parseStat(text); err == nil {
			t.Errorf("%q was read as %+v", text, is)
		}
	}
}
