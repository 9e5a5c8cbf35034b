// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

type fakeVerbs struct {
	limits Limits
	err    error
	asked  []string
}

func (f *fakeVerbs) Limits(device, driver string) (Limits, error) {
	f.asked = append(f.asked, filepath.Base(device)+" "+driver)
	return f.limits, f.err
}

// verbsTree has two devices of which uverbs1 is mlx5_0's, of the driver mlx5_core.
func verbsTree(t *testing.T) tree {
	t.Helper()
	root := t.TempDir()
	write := func(path, text string) {
		path = filepath.Join(root, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	write("sys/class/infiniband_verbs/abi_version", "6\n")
	write("sys/class/infiniband_verbs/uverbs0/ibdev", "rxe0\n")
	write("sys/class/infiniband_verbs/uverbs1/ibdev", "mlx5_0\n")
	write("sys/bus/pci/drivers/mlx5_core/bind", "")
	write("sys/class/infiniband_verbs/uverbs1/device/vendor", "0x15b3\n")
	if err := os.Symlink("../../../../bus/pci/drivers/mlx5_core", filepath.Join(root, "sys/class/infiniband_verbs/uverbs1/device/driver")); err != nil {
		t.Fatal(err)
	}
	return tree{root: root}
}

func TestLimitsOf(t *testing.T) {
	known := Limits{MaxQP: 3, MaxSRQ: 2, MaxSRQWR: 1}
	for name, test := range map[string]struct {
		device string
		verbs  fakeVerbs
		want   Limits
		asked  string
		fails  bool
	}{
		"told":                           {device: "mlx5_0", verbs: fakeVerbs{limits: known}, want: known, asked: "uverbs1 mlx5_core"},
		"a software device":              {device: "rxe0", verbs: fakeVerbs{limits: known}, want: known, asked: "uverbs0 "},
		"without a node for its verbs":   {device: "mlx5_1", verbs: fakeVerbs{limits: known}},
		"a driver that does not tell":    {device: "mlx5_0", verbs: fakeVerbs{err: ErrLimitsUnknown}, asked: "uverbs1 mlx5_core"},
		"gone meanwhile":                 {device: "mlx5_0", verbs: fakeVerbs{err: unix.ENODEV}, asked: "uverbs1 mlx5_core"},
		"a device that cannot be opened": {device: "mlx5_0", verbs: fakeVerbs{err: unix.EIO}, asked: "uverbs1 mlx5_core", fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := limitsOf(verbsTree(t), &test.verbs, test.device)
			if got != test.want || (err != nil) != test.fails {
				t.Errorf("got %+v and %v", got, err)
			}
			if asked := test.verbs.asked; len(asked) == 0 && test.asked != "" || len(asked) > 0 && asked[0] != test.asked {
				t.Errorf("asked %q, want %q", asked, test.asked)
			}
		})
	}
	none := tree{root: t.TempDir()}
	if got, err := limitsOf(none, &fakeVerbs{}, "rxe0"); got != (Limits{}) || err != nil {
		t.Errorf("without ib_uverbs: %+v, %v", got, err)
	}
}

// TestVerbsRequest against the layouts of include/uapi/rdma/ib_user_verbs.h.
func TestVerbsRequest(t *testing.T) {
	request := verbsRequest(getContext, 0x1122334455667788, contextData("mlx5_core"))
	if len(request) != 24 || binary.NativeEndian.Uint16(request[4:]) != 6 || binary.NativeEndian.Uint16(request[6:]) != verbsAnswer/4 ||
		binary.NativeEndian.Uint64(request[8:]) != 0x1122334455667788 || binary.NativeEndian.Uint32(request[16:]) != 16 {
		t.Errorf("request % x", request)
	}
	if got := contextData("rxe"); got != nil {
		t.Errorf("rxe is told % x", got)
	}
	answer := make([]byte, 176)
	for at, value := range map[int]uint32{52: 7, 156: 8, 160: 0xffffffff} {
		binary.NativeEndian.PutUint32(answer[at:], value)
	}
	if got, want := parseLimits(answer), (Limits{MaxQP: 7, MaxSRQ: 8}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// A file that is no verbs device does not tell, and is not waited for.
func TestVerbsOfSomethingElse(t *testing.T) {
	if got, err := (Verbs{}).Limits(filepath.Join(t.TempDir(), "uverbs0"), ""); !errors.Is(err, os.ErrNotExist) || got != (Limits{}) {
		t.Errorf("got %+v and %v", got, err)
	}
}
