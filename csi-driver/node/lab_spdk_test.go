// SPDX-License-Identifier: Apache-2.0

//go:build lab

package node_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/google/uuid"
	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node/nodetest"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/spdk"
	"github.com/weft-storage/weft/dataplane/spdkrpc/spdktest"
)

// spdkTarget is weft's engine with the nvmf_tgt that WEFT_SPDK_TARGET names, and a pool in a file.
type spdkTarget struct {
	*lab
	engine *spdk.Engine
	pool   engine.Device
	portal engine.Portal
}

func (l *lab) spdk(program string) *spdkTarget {
	l.Helper()
	dir, err := os.MkdirTemp("", "weft") // a socket's path has at most 107 bytes
	must(l, err)
	l.Cleanup(func() { must(l, os.RemoveAll(dir)) })
	socket := filepath.Join(dir, "spdk.sock")
	// It outlives the test's context, whose cleanups still talk to it.
	running, err := spdktest.RunReal(context.WithoutCancel(l.Context()), program, socket, "--wait-for-rpc", "-m", "0x1")
	must(l, err)
	l.Cleanup(running.Kill)
	e, err := spdk.New(spdk.Config{Socket: socket, StateDir: filepath.Join(dir, "state")})
	must(l, err)
	l.Cleanup(e.Close)
	file := filepath.Join(dir, "pool.img")
	target := &spdkTarget{
		lab: l, engine: e, pool: engine.Device{ID: file, Path: file, FileBytes: 4 << 30},
		portal: engine.Portal{
			Portal: v1alpha1.Portal{Transport: v1alpha1.TransportTCP, Address: "127.0.0.1", Port: 4430}, QueueDepth: 128, InCapsuleDataBytes: 4096,
		},
	}
	must(l, e.Start(l.Context(), v1alpha1.Plan{Engine: v1alpha1.EngineSPDK, SPDK: &v1alpha1.SPDKPlan{
		CoreMask: "0x1", Mode: v1alpha1.CoresStatic, Hugepages: v1alpha1.HugepagesDisabled, MemoryBytes: 640 << 20, PodMemoryBytes: 1 << 30,
		BdevIOPoolSize: 8192, SmallBuffers: 4096, LargeBuffers: 512, MaxSubsystems: 16, Placement: v1alpha1.PlacementNone,
		Transports: []v1alpha1.PlannedTransport{{
			Type: v1alpha1.TransportTCP, QueueDepth: 128, MaxIOQueues: 2, InCapsuleDataSize: 4096, MaxIOSize: 131072, SmallCache: 256, LargeCache: 32,
		}},
	}}))
	must(l, errors.Join(e.OpenPools(l.Context(), []engine.Device{target.pool})...))
	target.open()
	return target
}

func (t *spdkTarget) open() {
	t.Helper()
	must(t, errors.Join(t.engine.OpenPortals(t.Context(), []engine.Portal{t.portal})...))
}

// close the way to the target.
func (t *spdkTarget) close() {
	t.Helper()
	must(t, errors.Join(t.engine.ClosePortals(t.Context(), []v1alpha1.Portal{t.portal.Portal})...))
}

// volume that is attached to this node.
func (t *spdkTarget) volume(id string, sizeBytes int64, nguid string) *volume {
	t.Helper()
	v := &volume{lab: t.lab, id: id, context: nodetest.New(id, nguid)}
	v.context.NodeUID, v.context.SizeBytes, v.context.Portals = uid, sizeBytes, []v1alpha1.Portal{t.portal.Portal}
	t.objects[id] = &v.context
	spec := engine.VolumeSpec{ID: engineID(v), Pool: t.pool.ID, SizeBytes: v1alpha1.WithOverhead(sizeBytes)}
	must(t, errors.Join(t.engine.CreateVolumes(t.Context(), []engine.VolumeSpec{spec})...))
	v.context.Attach(attachment)
	must(t, t.export(v))
	return v
}

func engineID(v *volume) engine.ID { return engine.ID(uuid.MustParse(v.context.NGUID).String()) }

func (t *spdkTarget) export(v *volume) error {
	return errors.Join(t.engine.Export(t.Context(), []engine.Export{{
		NQN: v.context.NQN, Serial: v.id, Model: "weft", MaxIOQueues: 2, Hosts: []string{v.context.HostNQN()},
		Namespaces: []engine.Namespace{{NSID: 1, Volume: engineID(v)}},
	}})...)
}

// TestLabSPDKWriteOfAnEarlierAttachment is TestLabWriteOfAnEarlierAttachment with a target that refuses a host without
// "do not retry": the kernel of the node that was cut off keeps connecting, with its write.
func TestLabSPDKWriteOfAnEarlierAttachment(t *testing.T) {
	program := spdktest.RealTarget(t)
	for name, c := range capabilities() {
		t.Run(name, func(t *testing.T) {
			l := setUpLab(t)
			target := l.spdk(program)
			v := target.volume("lab-spdk", labSize, guid(1))
			v.up(c)
			file := v.path("pod")
			if c.GetMount() != nil {
				file = filepath.Join(file, "file")
			}
			must(t, put(file, "before"))
			former := *v
			target.close()
			l.Eventually(v.paths).Should(Equal([]string{"connecting"}))
			written := make(chan error, 1)
			go func() { written <- put(file, "behind") }()
			l.Consistently(written, "3s").ShouldNot(Receive())

			must(t, errors.Join(target.engine.Unexport(t.Context(), []string{former.context.NQN})...))
			v.context.Blank = false
			v.context.Attach("b2b2b2b2-2222-4333-8444-555555555555")
			must(t, target.export(v))
			target.open()
			l.Consistently(former.paths, "10s").Should(Equal([]string{"connecting"}))
			l.Expect(written).NotTo(Receive())

			must(t, v.publish(c)) // all that a kubelet asks for which has not unstaged the volume
			l.Eventually(written).Should(Receive(MatchError(syscall.EIO)))
			l.Expect(former.paths()).To(BeEmpty())
			l.Expect(target.export(&former)).To(MatchError(ContainSubstring(v.context.NQN)), "by mistake")
			l.Expect(v.paths()).To(Equal([]string{"live"}))
			l.Expect(start(t, file, 6)).To(Equal("before"))
			must(t, put(file, "beyond"))
			l.Expect(start(t, file, 6)).To(Equal("beyond"))
			v.down()
		})
	}
}
