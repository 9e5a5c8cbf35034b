// SPDX-License-Identifier: Apache-2.0

//go:build !lab

package agent

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
	"github.com/weft-storage/weft/internal/dhchap"
)

const (
	// stormVolumes are detached and attached again, and then created, stormRate of them a second.
	stormVolumes, stormRate = 500, 100
	// stormPatience is far more than any of it takes.
	stormPatience = 3 * time.Minute
	// readEvery is how often the reader begins to read 4 KiB, whether or not the last read has ended.
	readEvery = time.Millisecond
	// aloneFor is how long it reads before anything else is asked of the target, and quietFor how long while the agent
	// looks again and again, until that no longer has to reckon with calls of another process.
	aloneFor, quietFor = 10 * time.Second, 40 * time.Second
)

// roomy has a directory in memory, whose filesystem says that it has room for many volumes: nothing is written to them.
func roomy(b *testing.B) string {
	b.Helper()
	dir := b.TempDir()
	if err := unix.Mount("weft", dir, "tmpfs", 0, "size=1t"); err != nil {
		b.Fatalf("mount a filesystem in memory, which needs root: %v", err)
	}
	b.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			b.Error(err)
		}
	})
	return dir
}

// BenchmarkStorm detaches and attaches stormVolumes of a node's volumes, and creates as many more, while a host reads
// from another one. It says how long a volume takes from its request to being as it is asked for, and how much longer
// reads take than before. Then the target is killed, and started again: it says how long its refill takes. The agent is
// the real one, with a real target; its objects are in memory.
//
//	make bench-storm WEFT_SPDK_TARGET=/path/to/nvmf_tgt
func BenchmarkStorm(b *testing.B) {
	for _, volumes := range []int{1000, 4000} {
		b.Run(fmt.Sprintf("volumes=%d", volumes), func(b *testing.B) { measureStorm(b, volumes) })
	}
}

func measureStorm(b *testing.B, volumes int) {
	pool := filepath.Join(roomy(b), "pool.img")
	node := newRealSPDK(b, func(p *v1alpha1.Plan) {
		p.File = &v1alpha1.DeviceFile{Path: pool, Size: resource.MustParse("512Gi")}
		p.SPDK.MemoryBytes, p.SPDK.PodMemoryBytes, p.SPDK.MaxSubsystems = 2<<30, 4<<30, int32(volumes+stormVolumes+100)
	})
	r, target := servingAll(b, node.engine(), node.plan, volumes)
	s := &storm{B: b, r: r, objects: r.client.(*inMemory), ctx: log.IntoContext(b.Context(), logr.Discard())}
	s.objects.writable, r.recorder = true, &events.FakeRecorder{}
	s.reconcile()
	reads := startReader(b, node.plan.Portals[0].Portal, s.objects.volumes[0])

	pause(s.ctx, aloneFor/5) // it connects
	begun := time.Now()
	pause(s.ctx, aloneFor)
	looked := time.Now()
	for time.Since(looked) < quietFor {
		s.reconcile()
		pause(s.ctx, 10*time.Millisecond)
	}
	stormed := time.Now()
	attached := slices.Clone(s.objects.volumes[1 : 1+stormVolumes])
	s.change("detach", attached, nil)
	s.change("attach", attached, []v1alpha1.VolumeHost{{NQN: hostB, Node: "host", NodeUID: "1"}}) // an attachment never comes back
	created := time.Now()
	s.create(stormVolumes)
	ended := time.Now()

	all := reads()
	for _, q := range []struct {
		name string
		of   float64
	}{{"p50", 0.5}, {"p99", 0.99}, {"p99.9", 0.999}, {"max", 1}} {
		for _, during := range []struct {
			what     string
			from, to time.Time
		}{{"alone", begun, looked}, {"looking", looked, stormed}, {"storm", stormed, created}, {"creating", created, ended}} {
			took := all.between(during.from, during.to).quantile(q.of)
			b.ReportMetric(took.Seconds()*1e3, "read-"+q.name+"-"+during.what+"-ms")
		}
	}
	returned := 0
	once := func() bool { returned++; return returned == 1 } // b.Loop forgets what was measured before
	measureRefill(b, once, node, r, target)
	b.ReportMetric(0, "ns/op") // nothing is repeated b.N times
}

// pause for so long, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// storm of changes on a node.
type storm struct {
	*testing.B
	r       *Reconciler
	objects *inMemory
	ctx     context.Context
}

func (s *storm) reconcile() {
	s.Helper()
	if _, err := s.r.Reconcile(s.ctx, reconcile.Request{}); err != nil {
		s.Fatal(err)
	}
}

// change the hosts of replicas.
func (s *storm) change(what string, replicas []*v1alpha1.NvmfReplica, hosts []v1alpha1.VolumeHost) {
	s.each(what, len(replicas), func(i int) {
		s.objects.change(replicas[i].Name, func(rep *v1alpha1.NvmfReplica) {
			rep.Spec.Hosts = hosts
			rep.Generation++
		})
	}, func(i int) bool {
		rep := s.objects.replica(replicas[i].Name)
		return rep.Status.ObservedGeneration == rep.Generation && len(rep.Status.Hosts) == len(hosts)
	})
}

// create so many replicas.
func (s *storm) create(n int) {
	first := len(s.objects.volumes)
	s.each("create", n, func(i int) {
		rep := testVolume(first+i+1, ofSize("16Mi"))
		rep.UID = types.UID(uuid(first + i + 1))
		s.objects.written(rep)
		s.objects.volumes = append(s.objects.volumes, rep)
	}, func(i int) bool {
		return meta.IsStatusConditionTrue(s.objects.volumes[first+i].Status.Conditions, v1alpha1.ConditionCreated)
	})
}

// each of so many is asked for, stormRate a second, and the agent reconciles as long as one is not as it should be.
func (s *storm) each(what string, n int, ask func(i int), is func(i int) bool) {
	begun, took, asked, rounds := time.Now(), make([]time.Duration, 0, n), 0, 0
	due := func(i int) time.Time { return begun.Add(time.Duration(i) * time.Second / stormRate) }
	var waiting []int
	for len(took) < n {
		if len(waiting) == 0 {
			pause(s.ctx, time.Until(due(asked)))
		}
		for ; asked < n && !time.Now().Before(due(asked)); asked++ {
			ask(asked)
			waiting = append(waiting, asked)
		}
		s.reconcile()
		if rounds++; time.Since(begun) > stormPatience {
			s.Fatalf("%s: %d of %d are not as they should be after %s", what, n-len(took), n, stormPatience)
		}
		waiting = slices.DeleteFunc(waiting, func(i int) bool {
			if !is(i) {
				return false
			}
			took = append(took, time.Since(due(i)))
			return true
		})
	}
	slices.Sort(took)
	s.ReportMetric(took[len(took)/2].Seconds()*1e3, what+"-p50-ms")
	s.ReportMetric(took[len(took)*99/100].Seconds()*1e3, what+"-p99-ms")
	s.ReportMetric(time.Since(begun).Seconds(), what+"-all-s")
	s.ReportMetric(float64(rounds), what+"-reconciles")
}

// change an object as another client of the API server does.
func (c *inMemory) change(name string, do func(*v1alpha1.NvmfReplica)) {
	rep := c.replica(name).DeepCopy()
	do(rep)
	c.written(rep)
	c.replace(rep)
}

// read of a host: when it should have begun, and how long it took from then on.
type read struct {
	Begun int64
	Took  int64
}

type reads []read

func (r reads) between(from, to time.Time) reads {
	return slices.Collect(func(yield func(read) bool) {
		for _, one := range r {
			if one.Begun >= from.UnixNano() && one.Begun < to.UnixNano() && !yield(one) {
				return
			}
		}
	})
}

// quantile of how long reads took: 1 is the longest.
func (r reads) quantile(q float64) time.Duration {
	took := make([]int64, len(r))
	for i := range r {
		took[i] = r[i].Took
	}
	slices.Sort(took)
	return time.Duration(took[min(len(took)-1, int(q*float64(len(took))))])
}

// readerVariable has the address, port, subsystem and host of what a process reads that startReader has started.
const readerVariable = "WEFT_STORM_READER"

// startReader of a volume, in a process of its own that goes first: what it waits for is the target. The returned
// function ends it, and answers all reads.
func startReader(b *testing.B, portal v1alpha1.Portal, rep *v1alpha1.NvmfReplica) func() reads {
	b.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(b.Context()), "chrt", "-r", "10", os.Args[0])
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1", fmt.Sprintf("%s=%s %d %s %s", readerVariable, portal.Address, portal.Port, rep.Status.NQN, rep.Spec.Hosts[0].NQN))
	stop, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out := &bytes.Buffer{}
	cmd.Stderr, cmd.Stdout = os.Stderr, out
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	return func() reads {
		_ = stop.Close()
		if err := cmd.Wait(); err != nil {
			b.Fatal(err)
		}
		var n int64
		check := func(err error) {
			if err != nil {
				b.Fatal("what the reader said:", err)
			}
		}
		check(binary.Read(out, binary.LittleEndian, &n))
		all := make(reads, n)
		check(binary.Read(out, binary.LittleEndian, all))
		return all
	}
}

// readUntilTold is what such a process does: it reads until its input ends, and then writes all reads to its output.
func readUntilTold(ctx context.Context, of string) error {
	portal := v1alpha1.Portal{Transport: v1alpha1.TransportTCP}
	var nqn, hostNQN string
	if _, err := fmt.Sscan(of, &portal.Address, &portal.Port, &nqn, &hostNQN); err != nil {
		return fmt.Errorf("%s=%s: %w", readerVariable, of, err)
	}
	host, err := enginetest.ConnectWire(ctx, portal, nqn, hostNQN, dhchap.Pair{}, 1)
	if err != nil {
		return err
	}
	defer host.Close()
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer cancel()
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	var all reads
	block := make([]byte, enginetest.BlockBytes)
	for due := time.Now(); ctx.Err() == nil; due = due.Add(readEvery) {
		begun := due // of a read that is late because the one before it was
		if wait := time.Until(due); wait > 0 {
			pause(ctx, wait)
			begun = time.Now()
		}
		if _, err := host.ReadAt(block, 0); err != nil {
			return err
		}
		all = append(all, read{begun.UnixNano(), time.Since(begun).Nanoseconds()})
	}
	return errors.Join(binary.Write(os.Stdout, binary.LittleEndian, int64(len(all))), binary.Write(os.Stdout, binary.LittleEndian, all))
}
