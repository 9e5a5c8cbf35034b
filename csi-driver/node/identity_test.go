// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
	"github.com/weft-storage/weft/csi-driver/node/nodetest"
)

// neighbour is another volume of this host, and as empty.
var neighbour = strings.Repeat("f", 32)

// swapping lets the volume's device become another, once, before or after one of the node plugin's steps.
type swapping struct {
	node.Initiator
	node.Filesystems
	swap func(when string)
}

// swapAt makes the node plugin meet another device from one of its steps on. It tells how often that was.
func (s *suite) swapAt(step string, swap func()) (times func() int) {
	n := 0
	hooked := &swapping{Initiator: s.service.Initiator, Filesystems: s.service.Filesystems}
	hooked.swap = func(when string) {
		if when == step && n == 0 {
			n++
			swap()
		}
	}
	s.service.Initiator, s.service.Filesystems = hooked, hooked
	return func() int { return n }
}

func (s *swapping) WaitNamespace(ctx context.Context, id fabrics.ID, minBytes int64) (fabrics.Namespace, error) {
	ns, err := s.Initiator.WaitNamespace(ctx, id, minBytes)
	s.swap("after it was found")
	return ns, err
}

func (s *swapping) FindNamespace(id fabrics.ID) (fabrics.Namespace, error) {
	ns, err := s.Initiator.FindNamespace(id)
	s.swap("after it was found again")
	return ns, err
}

func (s *swapping) Mount(device, target, fsType string, options []string) error {
	s.swap("before it is mounted")
	return s.Filesystems.Mount(device, target, fsType, options)
}

func (s *swapping) BindDevice(source, target string, readOnly bool) error {
	s.swap("before it is bound")
	return s.Filesystems.BindDevice(source, target, readOnly)
}

// swapNames makes the host lose both volumes, and connect to the neighbour first: the kernel numbers them the other way
// round.
func (s *suite) swapNames() {
	s.Helper()
	for _, name := range s.kernel.Controllers() {
		must(s, s.kernel.Drop(name))
	}
	for _, nqn := range []string{v1alpha1.SubsystemNQN("pvc-2"), s.context.NQN} {
		_, err := s.kernel.Create("transport=tcp,traddr=10.0.0.1,trsvcid=4420,nqn=" + nqn + ",hostnqn=" + s.service.HostNQN)
		must(s, err)
	}
}

// Two volumes swap device names while one is staged or published: neither is formatted, mounted or shown in the other's
// place.
func TestVolumesThatSwapDeviceNames(t *testing.T) {
	for name, c := range map[string]struct {
		capability *csi.VolumeCapability
		when       string
		published  bool // it is staged before, and the names are swapped while it is published
	}{
		"found, not opened yet":     {mountCapability("ext4"), "after it was found", false},
		"not mounted yet":           {mountCapability("ext4"), "before it is mounted", false},
		"not bound yet":             {blockCapability(), "before it is bound", false},
		"staged, and found":         {blockCapability(), "after it was found again", true},
		"staged, and not bound yet": {blockCapability(), "before it is bound", true},
	} {
		t.Run(name, func(t *testing.T) {
			s := setUp(t)
			must(t, s.kernel.Serve(nodetest.Subsystem{
				NQN: v1alpha1.SubsystemNQN("pvc-2"), Portals: []string{"10.0.0.1:4420"}, Hosts: []string{s.service.HostNQN},
				Namespaces: []nodetest.Namespace{{NGUID: neighbour, SizeBytes: size}},
			}))
			if c.published {
				must(t, s.stage(c.capability))
			}
			swaps := s.swapAt(c.when, s.swapNames)
			if c.published {
				if err := s.publish(c.capability, "pods/a", false); err == nil {
					t.Error("it was published")
				}
				s.wantMounts("staging/device devtmpfs rw")
			} else {
				want(t, s.stage(c.capability), codes.Unavailable)
				s.wantMounts("")
			}
			if swaps() != 1 {
				t.Fatalf("names were swapped %d times", swaps())
			}

			// Whoever tries again finds the volume by what it is.
			must(t, s.stage(c.capability))
			must(t, s.publish(c.capability, "pods/a", false))
			ns, err := s.service.Initiator.FindNamespace(fabrics.ID{NQN: s.context.NQN, NGUID: nguid})
			must(t, err)
			if ns.Name != "nvme1n1" {
				t.Fatalf("the volume is %s", ns.Name)
			}
			shown, err := s.service.Filesystems.MountsOf(ns.Device, ns.Name)
			must(t, err)
			if len(shown) != 2 {
				t.Errorf("the volume is shown at %v", shown)
			}
			data, err := os.ReadFile(s.kernel.Backing(neighbour))
			must(t, err)
			if strings.Trim(string(data), "\x00") != "" {
				t.Error("the neighbour was written to")
			}
		})
	}
}

// A device that becomes smaller than its volume while it is staged or published is not shown to anybody, and one that
// grows is.
func TestVolumeThatChangesItsSize(t *testing.T) {
	for name, c := range map[string]struct {
		capability *csi.VolumeCapability
		when       string
		published  bool // it is staged before, and changes while it is published
	}{
		"found, not opened yet":                      {mountCapability("ext4"), "after it was found", false},
		"not mounted yet":                            {mountCapability("ext4"), "before it is mounted", false},
		"block, found, not opened yet":               {blockCapability(), "after it was found", false},
		"not bound yet":                              {blockCapability(), "before it is bound", false},
		"staged, not looked up yet":                  {mountCapability("ext4"), "", true},
		"staged, and found":                          {mountCapability("ext4"), "after it was found again", true},
		"block, staged, not looked up yet":           {blockCapability(), "", true},
		"block, staged, and found":                   {blockCapability(), "after it was found again", true},
		"block, staged and found, and not bound yet": {blockCapability(), "before it is bound", true},
	} {
		t.Run(name, func(t *testing.T) {
			for _, becomes := range []int64{size / 2, 2 * size} {
				s := setUp(t)
				call, before := s.stage, ""
				if c.published {
					must(t, s.stage(c.capability))
					call, before = func(v *csi.VolumeCapability) error { return s.publish(v, "pods/a", false) }, s.mounts()
				}
				change := func() {
					s.serve(becomes)
					must(t, s.kernel.WriteAttribute(filepath.Join(s.kernel.Root, "sys/class/nvme/nvme0/rescan_controller"), "1"))
				}
				if c.when == "" {
					change()
				} else {
					times := s.swapAt(c.when, change)
					defer func() {
						if times() != 1 {
							t.Errorf("the size changed %d times", times())
						}
					}()
				}
				err := call(c.capability)
				if becomes > size {
					must(t, err)
					continue
				}
				want(t, err, codes.FailedPrecondition, "8388608 bytes, and 16777216 were expected")
				s.wantMounts(before)
			}
		})
	}
}
