// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"errors"
	"io"
	"net"
	"net/http"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// PortForward is the part of a kubelet that forwards ports of pods, of those that run in the network of their node:
// this machine. It serves POST requests for whatever pod it is asked about.
type PortForward struct{ connections sync.WaitGroup }

// Wait until the other sides have closed all connections.
func (p *PortForward) Wait() { p.connections.Wait() }

// ServeHTTP forwards streams in pairs: of the data, and of the error that there was. Connections last until the other
// side closes them.
func (p *PortForward) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if _, err := httpstream.Handshake(r, w, []string{portforward.PortForwardProtocolV1Name}); err != nil {
		return // it has answered
	}
	streams := make(chan httpstream.Stream, 2)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, _ <-chan struct{}) error {
		streams <- s
		return nil
	})
	if conn == nil {
		return // it has answered
	}
	p.connections.Add(1)
	defer p.connections.Done()
	defer func() { _ = conn.Close() }()
	of := map[string]httpstream.Stream{}
	for len(of) < 2 {
		select {
		case s := <-streams:
			of[s.Headers().Get(corev1.StreamType)] = s
		case <-conn.CloseChan():
			return
		}
	}
	complaint, data := of[corev1.StreamTypeError], of[corev1.StreamTypeData]
	to, err := (&net.Dialer{}).DialContext(r.Context(), "tcp", net.JoinHostPort("127.0.0.1", data.Headers().Get(corev1.PortHeader)))
	if err != nil {
		_, _ = io.WriteString(complaint, "cannot connect to the pod: "+err.Error())
	} else {
		go func() { _, _ = io.Copy(to, data) }()
		go func() { <-conn.CloseChan(); _ = to.Close() }()
		_, _ = io.Copy(data, to)
	}
	_ = errors.Join(data.Close(), complaint.Close())
	<-conn.CloseChan()
}
