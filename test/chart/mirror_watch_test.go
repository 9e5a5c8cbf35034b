// SPDX-License-Identifier: Apache-2.0

package chart_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node"
)

// holder of a mirror, by its attachment.
const holder = "00000000-0000-4000-8000-00000000000a"

// mirrorHeld by an attachment on a node; both may be empty.
func mirrorHeld(name, holder, node string) *v1alpha1.NvmfMirror {
	return &v1alpha1.NvmfMirror{ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{"example.org/test"}}, Spec: v1alpha1.NvmfMirrorSpec{
		Epoch: 1, Holder: holder, HolderNode: node,
		Members: []v1alpha1.MirrorMember{
			{Replica: name + "-0", ReplicaUID: "u0", State: v1alpha1.MemberInSync},
			{Replica: name + "-1", ReplicaUID: "u1", State: v1alpha1.MemberInSync},
		},
	}}
}

// proxy to an API server, which can be cut off. It passes on what it gets.
type proxy struct {
	net.Listener
	to    string
	mu    sync.Mutex
	conns []net.Conn
}

// proxyTo an API server at the same address each time.
func proxyTo(ctx context.Context, t *testing.T, at, to string) *proxy {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{Listener: l, to: to}
	go p.serve(ctx)
	t.Cleanup(p.cut)
	return p
}

func (p *proxy) serve(ctx context.Context) {
	for {
		in, err := p.Accept()
		if err != nil {
			return
		}
		out, err := (&net.Dialer{}).DialContext(ctx, "tcp", p.to)
		if err != nil {
			_ = in.Close()
			continue
		}
		p.mu.Lock()
		p.conns = append(p.conns, in, out)
		p.mu.Unlock()
		for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
			go func() {
				_, _ = io.Copy(way[0], way[1])
				_ = way[0].Close()
			}()
		}
	}
}

// cut all connections, and refuse others.
func (p *proxy) cut() {
	_ = p.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		_ = c.Close()
	}
}

// testMirrorsAreWatched with the rights of a node plugin.
func testMirrorsAreWatched(ctx context.Context, t *testing.T, config *rest.Config, admin client.Client) {
	as := tokenOf(ctx, t, config, admin, "weft-csi-node", nil)
	api, err := url.Parse(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	link := proxyTo(ctx, t, "127.0.0.1:0", api.Host)
	address := link.Addr().String()
	as.Host = "https://" + address

	type seen struct {
		mu    sync.Mutex
		calls map[string]int
	}
	s := &seen{calls: map[string]int{}}
	calls := func(volume string) func() int {
		return func() int {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.calls[volume]
		}
	}
	const waits, ours, others, fails = "watch-waits", "watch-ours", "watch-others", "watch-fails"
	ctx, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		done <- node.WatchMirrors(ctx, as, "watching", func(ctx context.Context, volume string) error {
			s.mu.Lock()
			s.calls[volume]++
			first := s.calls[volume] == 1
			s.mu.Unlock()
			if volume == waits {
				<-ctx.Done()
			}
			if volume == fails && first {
				return errors.New("tried again")
			}
			return nil
		})
	}()
	create := func(name, node string) {
		t.Helper()
		if err := admin.Create(ctx, mirrorHeld(name, holder, node)); err != nil {
			t.Fatal(err)
		}
	}
	change := func(name, content string) {
		t.Helper()
		if err := admin.Patch(ctx, mirrorHeld(name, "", ""), merge("%s", content)); err != nil {
			t.Fatal(err)
		}
	}
	g := NewWithT(t)
	g.SetDefaultEventuallyTimeout(60 * time.Second)
	create(others, "elsewhere")
	create(waits, "watching")
	g.Eventually(calls(waits)).Should(Equal(1))
	create(ours, "watching") // while another's call waits
	g.Eventually(calls(ours)).Should(Equal(1))
	change(ours, `{"spec":{"epoch":2,"dirty":true}}`)
	g.Eventually(calls(ours)).Should(Equal(2))
	create(fails, "watching")
	g.Eventually(calls(fails)).Should(Equal(2))

	link.cut()
	change(ours, `{"spec":{"epoch":3,"dirty":false}}`)
	proxyTo(ctx, t, address, api.Host)
	g.Eventually(calls(ours)).Should(BeNumerically(">=", 3))

	before := calls(ours)()
	change(ours, `{"spec":{"epoch":4,"holder":null,"holderNode":null}}`)
	g.Eventually(calls(ours)).Should(BeNumerically(">", before))
	change(others, `{"spec":{"epoch":2}}`)
	create("watch-last", "watching")
	g.Eventually(calls("watch-last")).Should(Equal(1))
	g.Expect(calls(others)()).To(BeZero())
	g.Expect(calls(waits)()).To(Equal(1))
	stop()
	g.Eventually(done).Should(Receive(BeNil()))
}
