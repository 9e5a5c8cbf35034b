// SPDX-License-Identifier: Apache-2.0

package publishcontext

import (
	"errors"
	"strings"
	"testing"
)

var sample = Context{Attachment: "11111111-2222-4333-8444-555555555555"}

func TestDecodeGivesBackWhatWasEncoded(t *testing.T) {
	for version, c := range map[string]Context{"1": sample, "2": {Attachment: sample.Attachment, Encrypted: true},
		"3": {Attachment: sample.Attachment, Trailer: true}, "4": {Attachment: sample.Attachment, Encrypted: true, Trailer: true}} {
		m := c.Encode()
		if got, err := Decode(m); err != nil || got != c || m[keyVersion] != version {
			t.Errorf("%v: got %+v, %v", m, got, err)
		}
	}
}

// A key that a later version adds keeps no volume from being staged after a downgrade.
func TestDecodeIgnoresWhatItDoesNotKnow(t *testing.T) {
	m := sample.Encode()
	m["addedLater"] = "x"
	if got, err := Decode(m); err != nil || got != sample {
		t.Errorf("got %+v, %v", got, err)
	}
}

// What earlier builds wrote, as it lies in VolumeAttachments. Add what is written when the context changes; never
// change what is here.
func TestDecodeContextsOfEarlierBuilds(t *testing.T) {
	for name, m := range map[string]map[string]string{
		"version 1, which named the portals, too": {
			"version": "1", "nqn": "nqn.2026-11.storage.weft:pvc-1:" + sample.Attachment, "nguid": strings.Repeat("0a", 16), "attachment": sample.Attachment,
			"nodeUID": "node-1", "size": "1073741824", "blank": "true", "allowFormat": "true", "portals": "TCP://10.0.0.1:4420,RDMA://[fd00::1]:4421",
			"ioQueues": "2", "queueDepth": "128", "ctrlLossTimeout": "-1",
		},
		"version 1": {"version": "1", "attachment": sample.Attachment},
	} {
		if got, err := Decode(m); err != nil || got != sample {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

func TestDecodeRefusesOtherVersions(t *testing.T) {
	for _, version := range []string{"", "0", "5", "x"} {
		m := sample.Encode()
		m[keyVersion] = version
		if _, err := Decode(m); !errors.Is(err, ErrVersion) {
			t.Errorf("version %q: %v", version, err)
		}
	}
}

func TestDecodeRefusesWhatNamesNoAttachment(t *testing.T) {
	for _, value := range []string{"", "first", strings.ToUpper("a1a1a1a1-2222-4333-8444-555555555555")} {
		m := sample.Encode()
		m[keyAttachment] = value
		if _, err := Decode(m); err == nil || !strings.Contains(err.Error(), keyAttachment) {
			t.Errorf("%q: got %v", value, err)
		}
	}
}
