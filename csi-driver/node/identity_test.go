// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
	"github.com/weft-storage/weft/csi-driver/node/internal/filesystem"
	"github.com/weft-storage/weft/csi-driver/node/internal/mapper"
	"github.com/weft-storage/weft/csi-driver/node/nodetest"
)

// neighbour is another volume of this host, and as empty.
var neighbour = strings.Repeat("f", 32)

// Each of these lets something happen before or after one of the node plugin's steps.
type (
	swappingInitiator struct {
		node.Initiator
		swap func(when string)
	}
	swappingMapper struct {
		node.Mapper
		swap func(when string)
	}
	swappingFilesystems struct {
		node.Filesystems
		swap func(when string)
	}
)

// swapAt makes the node plugin meet another device from one of its steps on. It tells how often that was.
func (s *suite) swapAt(step string, swap func()) (times func() int) {
	n := 0
	at := func(when string) {
		if when == step && n == 0 {
			n++
			swap()
		}
	}
	s.service.Initiator = swappingInitiator{s.service.Initiator, at}
	s.service.Mapper = swappingMapper{s.service.Mapper, at}
	s.service.Filesystems = swappingFilesystems{s.service.Filesystems, at}
	return func() int { return n }
}

func (s swappingInitiator) WaitNamespace(ctx context.Context, id fabrics.ID, minBytes int64) (fabrics.Namespace, error) {
	ns, err := s.Initiator.WaitNamespace(ctx, id, minBytes)
	s.swap("after it was found")
	return ns, err
}

func (s swappingInitiator) FindNamespace(id fabrics.ID) (fabrics.Namespace, error) {
	ns, err := s.Initiator.FindNamespace(id)
	s.swap("after it was found again")
	return ns, err
}

func (s swappingInitiator) ReadStart(ctx context.Context, ns fabrics.Namespace, length int) ([]byte, error) {
	start, err := s.Initiator.ReadStart(ctx, ns, length)
	s.swap("after its header was read")
	return start, err
}

func (s swappingMapper) Build(ctx context.Context, spec mapper.Spec) (mapper.Device, error) {
	s.swap("before it is built on")
	return s.Mapper.Build(ctx, spec)
}

func (s swappingFilesystems) Prepare(ctx context.Context, r filesystem.Request) error {
	s.swap("before it is prepared")
	return s.Filesystems.Prepare(ctx, r)
}

func (s swappingFilesystems) Mount(ctx context.Context, device, target, fsType string, options []string) error {
	s.swap("before it is mounted")
	return s.Filesystems.Mount(ctx, device, target, fsType, options)
}

func (s swappingFilesystems) BindDevice(ctx context.Context, source, target string, readOnly bool) error {
	s.swap("before it is bound")
	return s.Filesystems.BindDevice(ctx, source, target, readOnly)
}

// swapNames makes the host lose both volumes, and connect to the neighbour first: the kernel numbers them the other way
// round.
func (s *suite) swapNames() {
	s.Helper()
	for _, name := range s.kernel.Controllers() {
		must(s, s.kernel.Drop(name))
	}
	for _, nqn := range []string{v1alpha1.SubsystemNQN("pvc-2", attachment), s.context.NQN} {
		_, err := s.kernel.Create("transport=tcp,traddr=10.0.0.1,trsvcid=4420,nqn=" + nqn + ",hostnqn=" + s.context.HostNQN())
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
		code       codes.Code
	}{
		"found, not opened yet":     {mountCapability("ext4"), "after it was found", false, codes.Unavailable},
		"read, not built on yet":    {mountCapability("ext4"), "after its header was read", false, codes.Unavailable},
		"built on, not formatted":   {mountCapability("ext4"), "before it is prepared", false, codes.Internal},
		"not mounted yet":           {mountCapability("ext4"), "before it is mounted", false, codes.Internal},
		"not bound yet":             {blockCapability(), "before it is bound", false, codes.Unavailable},
		"staged, and found":         {blockCapability(), "after it was found again", true, codes.OK},
		"staged, and not bound yet": {blockCapability(), "before it is bound", true, codes.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			s := setUp(t)
			must(t, s.kernel.Serve(nodetest.Subsystem{
				NQN: v1alpha1.SubsystemNQN("pvc-2", attachment), Portals: []string{"10.0.0.1:4420"}, Hosts: []string{s.context.HostNQN()},
				Namespaces: []nodetest.Namespace{{NGUID: neighbour, SizeBytes: v1alpha1.WithOverhead(size)}},
			}))
			if c.published {
				must(t, s.stage(c.capability))
			}
			swaps := s.swapAt(c.when, s.swapNames)
			if c.published {
				want(t, s.publish(c.capability, "pods/a", false), c.code)
				if c.code != codes.OK {
					s.wantMounts("staging/device devtmpfs rw")
				}
			} else {
				want(t, s.stage(c.capability), c.code)
				s.wantMounts("")
			}
			if swaps() != 1 {
				t.Fatalf("names were swapped %d times", swaps())
			}

			// Whoever tries again finds the volume by what it is.
			must(t, s.stage(c.capability))
			must(t, s.publish(c.capability, "pods/a", false))
			s.wantShown(2)
			for _, file := range []string{s.kernel.Header(neighbour), s.kernel.Backing(neighbour)} {
				data, err := os.ReadFile(file)
				must(t, err)
				if strings.Trim(string(data), "\x00") != "" {
					t.Errorf("the neighbour was written to: %s", file)
				}
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
					must(t, s.kernel.Rescan("nvme0"))
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
				want(t, err, codes.FailedPrecondition, "16777216 bytes, and 25165824 were expected")
				s.wantMounts(before)
			}
		})
	}
}
