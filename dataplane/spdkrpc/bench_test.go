// SPDX-License-Identifier: Apache-2.0

package spdkrpc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"testing"
	"time"
)

// pollEvery is how often SPDK 26.05 looks at its RPC socket.
const pollEvery = 4 * time.Millisecond

// benchTarget answers every request with true: at once, or, like SPDK, all that came in between, every so often.
func benchTarget(b *testing.B, every time.Duration) *Client {
	b.Helper()
	path := filepath.Join(b.TempDir(), "spdk.sock")
	var config net.ListenConfig
	listener, err := config.Listen(b.Context(), "unix", path)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := listener.Close(); err != nil {
			b.Error(err)
		}
	})
	go func() {
		socket, err := listener.Accept()
		if err != nil {
			return
		}
		answerAll(socket, every)
		if err := socket.Close(); err != nil {
			b.Error(err)
		}
	}()
	client, err := New(path, Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(client.Close)
	return client
}

func answerAll(socket net.Conn, every time.Duration) {
	ticker := time.NewTicker(max(every, 1))
	defer ticker.Stop()
	buf := make([]byte, 256<<10)
	var rest, out []byte
	for {
		if every > 0 {
			<-ticker.C
		}
		n, err := socket.Read(buf)
		if err != nil {
			return
		}
		rest, out = append(rest, buf[:n]...), out[:0]
		for {
			line, after, whole := bytes.Cut(rest, []byte("\n"))
			if !whole {
				break
			}
			rest = after
			var r struct {
				ID uint64 `json:"id"`
			}
			if json.Unmarshal(line, &r) != nil {
				return
			}
			out = fmt.Appendf(out, `{"jsonrpc":"2.0","id":%d,"result":true}`+"\n", r.ID)
		}
		if _, err := socket.Write(out); err != nil {
			return
		}
	}
}

var benchTargets = []struct {
	name  string
	every time.Duration
}{{"immediate", 0}, {"polled", pollEvery}}

var benchRequest = NvmfSubsystemAddHost{NQN: "nqn.2026-11.storage.weft:a", Host: "nqn.2014-08.org.nvmexpress:uuid:11111111-1111-1111-1111-111111111111"}

// One call after another, each waiting for its answer.
func BenchmarkOneAtATime(b *testing.B) {
	for _, t := range benchTargets {
		b.Run(t.name, func(b *testing.B) {
			client := benchTarget(b, t.every)
			for b.Loop() {
				if _, err := Call(b.Context(), client, benchRequest); err != nil {
					b.Fatal(err)
				}
			}
			perSecond(b, b.N)
		})
	}
}

// A thousand calls at once, within the window.
func BenchmarkPipelined(b *testing.B) {
	const calls = 1000
	reqs := make([]NvmfSubsystemAddHost, calls)
	for i := range reqs {
		reqs[i] = benchRequest
	}
	for _, t := range benchTargets {
		b.Run(t.name, func(b *testing.B) {
			client := benchTarget(b, t.every)
			for b.Loop() {
				_, errs := Each(b.Context(), client, reqs)
				for _, err := range errs {
					if err != nil {
						b.Fatal(err)
					}
				}
			}
			perSecond(b, b.N*calls)
		})
	}
}

func perSecond(b *testing.B, calls int) {
	b.ReportMetric(float64(calls)/b.Elapsed().Seconds(), "calls/s")
}
