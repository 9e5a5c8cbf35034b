// SPDX-License-Identifier: Apache-2.0

package publishcontext

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-storage/weft/api/v1alpha1"
)

func sample() Context {
	return Context{
		NQN: v1alpha1.SubsystemNQN("pvc-1"), NGUID: strings.Repeat("0a", 16), Attachment: 7, SizeBytes: 1 << 30, Blank: true,
		Portals: []v1alpha1.Portal{
			{Transport: v1alpha1.TransportTCP, Address: "10.0.0.1", Port: 4420},
			{Transport: v1alpha1.TransportRDMA, Address: "fd00::1", Port: 4421},
		},
		Connection: v1alpha1.Connection{IOQueues: 2, QueueDepth: 128, CtrlLossTimeoutSeconds: -1},
	}
}

func TestDecodeGivesBackWhatWasEncoded(t *testing.T) {
	got, err := Decode(sample().Encode())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sample(), got); diff != "" {
		t.Error(diff)
	}
}

func TestDecodeNamesWhatIsMissing(t *testing.T) {
	for key := range sample().Encode() {
		m := sample().Encode()
		delete(m, key)
		if _, err := Decode(m); err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("without %s: got %v", key, err)
		}
	}
}

func TestDecodeRefusesMalformedValues(t *testing.T) {
	for key, value := range map[string]string{
		keySize: "1Gi", keyAttachment: "first", keyBlank: "maybe", keyIOQueues: "99999999999", keyPortals: "TCP://host:4420",
	} {
		m := sample().Encode()
		m[key] = value
		if _, err := Decode(m); err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("%s=%s: got %v", key, value, err)
		}
	}
}
