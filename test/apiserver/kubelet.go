// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/remotecommand"
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
	conn, of := streamed(w, r, portforward.PortForwardProtocolV1Name, 2)
	if conn == nil {
		return
	}
	p.connections.Add(1)
	defer p.connections.Done()
	defer func() { _ = conn.Close() }()
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

// streamed is an upgraded connection with a number of streams by their types; nil: the other side has its answer, or
// does not wait for one.
func streamed(w http.ResponseWriter, r *http.Request, protocol string, number int) (httpstream.Connection, map[string]httpstream.Stream) {
	if _, err := httpstream.Handshake(r, w, []string{protocol}); err != nil {
		return nil, nil
	}
	streams := make(chan httpstream.Stream, number)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, replied <-chan struct{}) error {
		go func() { <-replied; streams <- s }() // what is written before is lost
		return nil
	})
	if conn == nil {
		return nil, nil
	}
	of := map[string]httpstream.Stream{}
	for len(of) < number {
		select {
		case s := <-streams:
			of[s.Headers().Get(corev1.StreamType)] = s
		case <-conn.CloseChan():
			return nil, nil
		}
	}
	return conn, of
}

// Exec is the part of a kubelet that runs commands in containers. It serves POST requests for whatever container it is
// asked about, without standard input and terminals. Run is the container: it writes the command's output, and returns
// its exit code.
type Exec struct {
	Run func(command []string, stdout, stderr io.Writer) int
}

// ServeHTTP runs a command, and says at the end how it went.
func (e *Exec) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	conn, of := streamed(w, r, remotecommand.StreamProtocolV4Name, 3)
	if conn == nil {
		return
	}
	defer func() { _ = conn.Close() }()
	status := metav1.Status{Status: metav1.StatusSuccess}
	if code := e.Run(r.URL.Query()["command"], of[corev1.StreamTypeStdout], of[corev1.StreamTypeStderr]); code != 0 {
		status = metav1.Status{
			Status: metav1.StatusFailure, Reason: remotecommand.NonZeroExitCodeReason, Message: "command terminated with non-zero exit code",
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: remotecommand.ExitCodeCauseType, Message: strconv.Itoa(code)}}},
		}
	}
	_ = json.NewEncoder(of[corev1.StreamTypeError]).Encode(status) // the other side may be gone
	_ = errors.Join(of[corev1.StreamTypeStdout].Close(), of[corev1.StreamTypeStderr].Close(), of[corev1.StreamTypeError].Close())
}
