// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/mount-utils"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/sizing"
)

func TestPoolDir(t *testing.T) {
	h := &host{stateDir: "/var/lib/weft"}
	seen := map[string]string{}
	for _, id := range []string{"nvme.8086-1234", "/var/lib/weft/pool.img", "a b", "a%20b", "..%2f", "eui.0025", "a\\b", "a#b"} {
		dir, err := h.poolDir(id)
		if err != nil {
			t.Fatalf("%q: %v", id, err)
		}
		if filepath.Dir(dir) != "/var/lib/weft/pools" || strings.ContainsAny(dir, " \\#\t\n") {
			t.Errorf("%q: folder %q", id, dir)
		}
		if other, taken := seen[dir]; taken {
			t.Errorf("%q and %q share %q", id, other, dir)
		}
		seen[dir] = id
	}
	for _, id := range []string{"..", ".", strings.Repeat("/", 100)} {
		if dir, err := h.poolDir(id); !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("%q: folder %q, error %v", id, dir, err)
		}
	}
}

func TestMountedOn(t *testing.T) {
	mounts := []mount.MountInfo{{ID: 1, MountPoint: "/a"}, {ID: 2, MountPoint: "/a"}, {ID: 3, MountPoint: "/a/b"}}
	if m := mountedOn(mounts, "/a"); m == nil || m.ID != 2 {
		t.Errorf("topmost on /a: %+v", m)
	}
	if m := mountedOn(mounts, "/c"); m != nil {
		t.Errorf("on /c: %+v", m)
	}
}

// TestScanOfPoolsThatAreNotMounted: after a reboot their volumes are unknown, not gone.
func TestScanOfPoolsThatAreNotMounted(t *testing.T) {
	root := t.TempDir()
	h := &host{root: root, stateDir: filepath.Join(root, "var/lib/weft")}
	mustMkdir(t, filepath.Join(root, "proc/self"))
	if err := os.WriteFile(filepath.Join(root, "proc/self/mountinfo"), []byte("21 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := h.scan()
	if err != nil || len(s.pools) != 0 {
		t.Fatalf("before the first pool: %+v, %v", s, err)
	}
	if _, err := s.find(s.volumes, volumeA); !errors.Is(err, engine.ErrNotFound) {
		t.Errorf("without pools: %v", err)
	}
	mustMkdir(t, filepath.Join(h.poolsDir(), "nvme.8086-1"))
	s, err = h.scan()
	if err != nil {
		t.Fatal(err)
	}
	pools := s.state().Pools
	if len(pools) != 1 || pools[0].Device != "nvme.8086-1" || !errors.Is(pools[0].Err, engine.ErrUnavailable) {
		t.Errorf("pools %+v", pools)
	}
	if _, err := s.find(s.volumes, volumeA); err == nil || errors.Is(err, engine.ErrNotFound) {
		t.Errorf("a volume in a pool that is not mounted: %v", err)
	}
	if _, err := (&Engine{}).remove(s, s.snapshots, volumeA); err == nil {
		t.Error("a snapshot in a pool that is not mounted is said to be removed")
	}
}

func TestFindInTwoPools(t *testing.T) {
	s := &store{volumes: map[engine.ID][]file{volumeA: {{path: "/a"}, {path: "/b"}}}}
	if _, err := s.find(s.volumes, volumeA); !errors.Is(err, engine.ErrExists) {
		t.Errorf("error %v", err)
	}
}

func mustMkdir(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
}

// TestFillable holds what is promised of a pool against what XFS was seen to have room for: what statfs says is free
// on an empty one (mkfs.xfs 6.13 with lts_5.15.conf), less what it took for the extents of a file written in random
// order.
func TestFillable(t *testing.T) {
	const mib = 1 << 20
	for _, seen := range []struct {
		device            string
		totalMiB, freeMiB int64
		unpromised        int64 // one part in so many of what is free that may stay so
	}{
		{"320M", 256, 237, 10},
		{"512M", 448, 419, 20},
		{"2G", 1984, 1937, 50},
		{"20G", 20416, 20241, 80},
		{"1T", 1048064, 1040724, 90},
	} {
		got := v1alpha1.FillableXFS(seen.totalMiB*mib) / mib
		room := seen.freeMiB - seen.freeMiB*5/1000
		if got > room || got < room-seen.freeMiB/seen.unpromised {
			t.Errorf("%s: %d MiB are promised, and there is room for %d", seen.device, got, room)
		}
		device := resource.MustParse(seen.device + "i")
		if planned := sizing.PoolBytes(&v1alpha1.Plan{Engine: v1alpha1.EngineNvmet}, device.Value()) / mib; planned != got {
			t.Errorf("%s: kubectl weft plan says %d MiB, and it is %d", seen.device, planned, got)
		}
	}
	if got := v1alpha1.FillableXFS(16 * mib); got != 0 {
		t.Errorf("a filesystem of 16 MiB: %d bytes", got)
	}
}
