// SPDX-License-Identifier: Apache-2.0

package spdktest

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
)

// TestAdminCommands of a drive are answered with a completion, whatever it says; what is no command is refused.
func TestAdminCommands(t *testing.T) {
	dir, nguid := shortTempDir(t), uuid.New()
	o := Options{Socket: filepath.Join(dir, "spdk.sock"), Drives: []Drive{{
		Address: "0000:01:00.0", Path: makeDisk(t, filepath.Join(dir, "nvme0"), 1<<30), Serial: "S1", NGUID: nguid,
	}}}
	target := Start(t, o)
	c := dial(t, o.Socket)
	c.must("bdev_nvme_attach_controller", map[string]any{"name": "d", "trtype": "PCIe", "traddr": "0000:01:00.0"}, nil)
	params := func(opcode byte, nsid, cdw10, cdw11 uint32) map[string]any {
		entry := make([]byte, nvmeCommandBytes)
		entry[0] = opcode
		binary.LittleEndian.PutUint32(entry[4:], nsid)
		binary.LittleEndian.PutUint32(entry[40:], cdw10)
		binary.LittleEndian.PutUint32(entry[44:], cdw11)
		return map[string]any{"name": "d", "cmd_type": "admin", "data_direction": "c2h", "cmdbuf": base64.URLEncoding.EncodeToString(entry)}
	}
	send := func(p map[string]any) (result uint32, status uint16, data string) {
		t.Helper()
		var reply struct{ CPL, Data string }
		c.must("bdev_nvme_send_cmd", p, &reply)
		completion, err := base64.URLEncoding.DecodeString(reply.CPL)
		if err != nil || len(completion) != nvmeCompletionBytes {
			t.Fatalf("completion %q", reply.CPL)
		}
		return binary.LittleEndian.Uint32(completion), binary.LittleEndian.Uint16(completion[14:]) >> 1, reply.Data
	}
	for _, tt := range []struct {
		name               string
		opcode             byte
		nsid, cdw10, cdw11 uint32
		wantResult         uint32
		wantStatus         uint16
	}{
		{"it is on at first", 0x0a, 0, 0x06, 0, 1, nvmeSuccess},
		{"of one namespace", 0x09, 1, 0x06, 0, 0, nvmeFeatureNotNamespaces},
		{"for good", 0x09, 0, 0x06 | 1<<31, 0, 0, nvmeFeatureNotSaveable},
		{"it is still on", 0x0a, 0, 0x06, 0, 1, nvmeSuccess},
		{"off", 0x09, 0, 0x06, 0, 0, nvmeSuccess},
		{"it is off", 0x0a, 0, 0x06, 0, 0, nvmeSuccess},
		{"another feature", 0x0a, 0, 0x07, 0, 0, nvmeInvalidField},
		{"another log", 0x02, 0xffffffff, 0x007f0001, 0, 0, nvmeInvalidLogPage},
		{"the health of one namespace", 0x02, 1, 0x007f0002, 0, 0, nvmeInvalidField},
		{"the health of all", 0x02, 0xffffffff, 0x007f0002, 0, 0, nvmeSuccess},
		{"another command", 0x80, 0, 0, 0, 0, nvmeInvalidOpcode},
	} {
		if result, status, _ := send(params(tt.opcode, tt.nsid, tt.cdw10, tt.cdw11)); result != tt.wantResult || status != tt.wantStatus {
			t.Errorf("%s: result %d, status %#x; want %d, %#x", tt.name, result, status, tt.wantResult, tt.wantStatus)
		}
	}
	if err := target.ResetDrive("0000:01:00.0"); err != nil || !target.CacheOn("0000:01:00.0") {
		t.Errorf("after a reset: %v", err)
	}
	if err := target.ResetDrive("0000:02:00.0"); err == nil {
		t.Error("a drive that nobody has attached was reset")
	}
	identify := params(0x06, 0, 1, 0)
	if _, _, data := send(identify); data != "" {
		t.Error("data that nobody asked for")
	}
	identify["data_len"] = nvmeIdentifyBytes
	_, _, text := send(identify)
	if data, err := base64.URLEncoding.DecodeString(text); err != nil || len(data) != nvmeIdentifyBytes || !strings.HasPrefix(string(data[4:]), "S1 ") || data[525]&1 == 0 {
		t.Errorf("the controller identifies itself as %q, %v", text, err)
	}
	for what, at := range map[uint32]int{0: 104, 3: 4} { // the namespace, and its descriptors
		p := params(0x06, 1, what, 0)
		p["data_len"] = nvmeIdentifyBytes
		_, _, text := send(p)
		if data, err := base64.URLEncoding.DecodeString(text); err != nil || !bytes.HasPrefix(data[at:], nguid[:]) {
			t.Errorf("identify %d: %q, %v; want the NGUID at %d", what, text, err, at)
		}
		if _, status, _ := send(params(0x06, 2, what, 0)); status != nvmeInvalidNamespace {
			t.Errorf("identify %d of a namespace that is not there: status %#x", what, status)
		}
	}
	for name, change := range map[string]map[string]any{
		"an unknown controller": {"name": "e"}, "half a command": {"cmdbuf": "AAAA"}, "no padding": {"cmdbuf": strings.TrimRight(identify["cmdbuf"].(string), "=")},
		"another queue": {"cmd_type": "fabrics"}, "no direction": {"data_direction": "none"},
	} {
		p := params(0x06, 0, 1, 0)
		for k, v := range change {
			p[k] = v
		}
		if a := c.call("bdev_nvme_send_cmd", p); a.Error == nil || a.Error.Code != codeInvalidParams {
			t.Errorf("%s: %+v", name, a)
		}
	}
}
