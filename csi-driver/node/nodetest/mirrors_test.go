// SPDX-License-Identifier: Apache-2.0

package nodetest_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/weft-storage/weft/csi-driver/node/internal/mapper"
	"github.com/weft-storage/weft/csi-driver/node/internal/md"
	"github.com/weft-storage/weft/csi-driver/node/nodetest"
)

// machine is a constructed kernel with replicas.
type machine struct {
	*nodetest.Kernel
	devices *mapper.Host
	// controllers by the names of the replicas' devices.
	controllers map[string]string
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	k, err := nodetest.NewKernel(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return &machine{Kernel: k, controllers: map[string]string{}, devices: &mapper.Host{
		Root: k.Root, Control: k.DeviceMapper(), LoadModule: func(context.Context, string) error { return nil },
		OpenDevice: func(path string) (mapper.Opened, error) { return k.Open(path) },
	}}
}

func (m *machine) serve(t *testing.T, n int, sizeBytes int64) {
	t.Helper()
	err := m.Serve(nodetest.Subsystem{
		NQN: fmt.Sprintf("nqn.test:%d", n), Portals: []string{"10.0.0.1:4420"}, Hosts: []string{"host"},
		Namespaces: []nodetest.Namespace{{NGUID: fmt.Sprintf("%032x", n+1), SizeBytes: sizeBytes}},
	})
	if err != nil {
		t.Fatal(err)
	}
}

// replica is connected, as nvmeNn1 for the nth.
func (m *machine) replica(t *testing.T, sizeBytes int64) mapper.Lower {
	t.Helper()
	n := len(m.controllers)
	m.serve(t, n, sizeBytes)
	if _, err := m.Create(fmt.Sprintf("nqn=nqn.test:%d,transport=tcp,traddr=10.0.0.1,trsvcid=4420,hostnqn=host,hostid=host", n)); err != nil {
		t.Fatal(err)
	}
	lower := mapper.Lower{Name: fmt.Sprintf("nvme%dn1", n), Number: fmt.Sprintf("259:%d", n+1)}
	m.controllers[lower.Name] = fmt.Sprintf("nvme%d", n)
	return lower
}

// The constructed kernel's mirrors do what the real one's do, which TestLabMirrors says in a machine.
func TestConstructedMirrors(t *testing.T) {
	nodetest.TestMirrors(t, func(t *testing.T) nodetest.MirrorMachine {
		m := newMachine(t)
		return nodetest.MirrorMachine{
			Mirrors: m.Mirrors(), Mapper: m.devices, Replica: m.replica,
			Enlarge: func(t *testing.T, l mapper.Lower, sizeBytes int64) {
				var n int
				if _, err := fmt.Sscanf(l.Name, "nvme%dn1", &n); err != nil {
					t.Fatal(err)
				}
				m.serve(t, n, sizeBytes)
				if err := m.Rescan(m.controllers[l.Name]); err != nil {
					t.Fatal(err)
				}
			},
			Write: func(path string, offset int64, value byte) error {
				return m.WriteMirror(t.Context(), path, offset, value)
			},
			Read:    m.ReadSlice,
			Written: func(_ *testing.T, device string) int64 { return m.Written(device) },
		}
	})
}

// A leg whose target is away holds up writes, and what writes superblocks, until its controllers are deleted.
func TestConstructedMirrorHangs(t *testing.T) {
	m := newMachine(t)
	const data = 8 << 20
	var legs []md.Slice
	var lowers []mapper.Lower
	for n := range 2 {
		lower := m.replica(t, data+4<<20)
		d, err := m.devices.Build(t.Context(), mapper.Spec{
			Owner:      mapper.Owner{Replica: fmt.Sprintf("0a0b0c0d-0e0f-4001-8203-00000000000%d", n)},
			Attachment: "0a0b0c0d-0e0f-4001-8203-000000000009", Lower: lower, OffsetBytes: md.RecordBytes, SizeBytes: data + 3<<20,
		})
		if err != nil {
			t.Fatal(err)
		}
		legs, lowers = append(legs, md.Slice{Name: d.Name, Number: d.Number}), append(lowers, lower)
	}
	a, err := m.Mirrors().Create(t.Context(), md.Spec{Volume: "0a0b0c0d-0e0f-4001-8203-040506070809", Members: legs, DataBytes: data})
	if err != nil {
		t.Fatal(err)
	}
	controller := m.controllers[lowers[1].Name]
	if err := m.SetState(controller, "connecting"); err != nil {
		t.Fatal(err)
	}
	written := make(chan error)
	go func() { written <- m.WriteMirror(t.Context(), a.Path, md.FrontBytes, 7) }()
	<-m.Hanging
	select {
	case err := <-written:
		t.Fatalf("the write was acknowledged: %v", err)
	default:
	}
	if s, err := m.Mirrors().State(a); err != nil || s.Degraded != 0 {
		t.Fatalf("while it hangs, the state is %+v: %v", s, err)
	}
	if err := m.Drop(controller); err != nil {
		t.Fatal(err)
	}
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	s, err := m.Mirrors().State(a)
	if member, ok := s.Member(legs[1]); err != nil || !ok || !member.Faulty || s.Degraded != 1 {
		t.Errorf("afterwards the state is %+v: %v", s, err)
	}
}
