// SPDX-License-Identifier: Apache-2.0

//go:build !lab

package agent

import (
	"context"
	"encoding/json"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/spdkrpc/spdktest"
)

// A volume's object goes at once, whatever it takes to clear its data, and others are served meanwhile. What is still
// to be cleared is told, is not promised to anybody, and is cleared after a restart of the target.
func TestDeletedVolumesAreClearedBesideTheRest(t *testing.T) {
	fake := newFakeSPDK(t, time.Millisecond)
	l := newLab(t)
	node := l.nvmfNode()
	node.Spec.Plan = fake.plan
	l.Expect(l.admin.Update(t.Context(), node)).To(Succeed())
	l.create(1, ofSize("1Gi"))
	target := fake.engine()
	r := l.run(func(v1alpha1.Engine) (engine.Engine, error) { return target, nil })
	l.Eventually(l.versions, patience, interval).Should(HaveLen(1))
	const written = 100
	for cluster := range uint64(written) {
		l.Expect(fake.target.(*spdktest.Target).WriteWord(l.volume(1).Spec.UUID, cluster, 1)).To(Succeed())
	}
	volume := v1alpha1.WithOverhead(1 << 30)
	promised := func() (total int64) {
		for _, p := range l.nvmfNode().Status.Pools {
			total += p.Promised.Value()
		}
		return total
	}
	l.Eventually(promised, patience, interval).Should(Equal(volume)) // the node's status comes after its volumes'
	capacity := l.nvmfNode().Status.Capacity.Free

	fake.target.(*spdktest.Target).Inject(spdktest.Fault{
		// A pool's mark, which the engine names by its alias, is not data.
		Method: "bdev_lvol_delete", Match: func(params json.RawMessage) bool { return !strings.Contains(string(params), "/") }, Times: -1, Delay: time.Hour,
	})
	l.delete(1)
	l.Eventually(func() bool {
		return apierrors.IsNotFound(l.admin.Get(t.Context(), client.ObjectKey{Name: l.name(1)}, &v1alpha1.NvmfReplica{}))
	}, patience, interval).Should(BeTrue())
	l.create(2, ofSize("1Gi"), withHosts(hostA))
	l.Eventually(l.versions, patience, interval).Should(HaveLen(1))
	const left = written * engine.SizeUnit
	l.Eventually(func() int64 { return clearing(l) }, patience, interval).Should(BeEquivalentTo(left))
	l.Eventually(promised, patience, interval).Should(Equal(volume + left))
	l.Expect(l.nvmfNode().Status.Capacity.Free.Value()).To(Equal(capacity.Value() - left))
	l.Expect(r.get("/metrics")).To(ContainSubstring(`part="clearing"} 4.194304e+08`))

	fake.kill()
	fake.start()
	l.Eventually(func() int64 { return clearing(l) }, patience, interval).Should(BeZero())
	l.Eventually(func() string { return l.nvmfNode().Status.Capacity.Free.String() }, patience, interval).Should(Equal(capacity.String()))
}

// stepwise is an engine that clears a pool when it is told to.
type stepwise struct {
	engine.Engine
	begun   chan string
	end     map[string]chan struct{}
	running atomic.Int32
}

func (s *stepwise) Clear(ctx context.Context, pool string) (bool, error) {
	s.running.Add(1)
	defer s.running.Add(-1)
	s.begun <- pool
	select {
	case <-s.end[pool]:
		return true, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// TestPoolsAreClearedBesideEachOther: no pool waits for another, each is cleared once at a time, and again when it was
// asked for meanwhile. Who ends the clearing waits for all of it.
func TestPoolsAreClearedBesideEachOther(t *testing.T) {
	g := NewWithT(t)
	e := &stepwise{begun: make(chan string, 8), end: map[string]chan struct{}{"slow": make(chan struct{}), "quick": make(chan struct{})}}
	c := NewClearing()
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error)
	go func() { stopped <- c.Start(ctx) }()
	pools := []engine.Pool{{Device: "slow"}, {Device: "quick"}, {Device: "lost", Err: engine.ErrUnavailable}}
	c.Use(e, pools)
	g.Expect([]string{<-e.begun, <-e.begun}).To(ConsistOf("slow", "quick"))
	e.end["quick"] <- struct{}{}
	<-c.changed
	c.Use(e, pools)
	g.Expect(<-e.begun).To(Equal("quick"))
	c.Use(e, pools)
	g.Eventually(func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.running[clearable{e, "quick"}]
	}, patience, interval).Should(BeTrue())
	e.end["quick"] <- struct{}{}
	g.Expect(<-e.begun).To(Equal("quick"), "it was asked for meanwhile")
	cancel()
	g.Expect(<-stopped).To(Succeed())
	g.Expect(e.running.Load()).To(BeZero())
}

// clearing bytes of the node's first pool; -1 while it says nothing of it.
func clearing(l *lab) int64 {
	pools := l.nvmfNode().Status.Pools
	switch {
	case len(pools) == 0 || !pools[0].Ready:
		return -1
	case pools[0].Clearing == nil:
		return 0
	}
	return pools[0].Clearing.Value()
}
