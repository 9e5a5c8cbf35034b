// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"

	"k8s.io/client-go/rest"
)

// Requests to the API server that the users of a configuration make, by verb and resource, such as "list nvmfnodes" or
// "patch nvmfnodes/status". A watch counts when it begins. It is safe for concurrent use. Counts do not depend on how
// fast the machine is.
type Requests struct {
	mu       sync.Mutex
	counts   map[string]int
	received int64
}

// Of counts the requests that are made with the returned copy of a configuration.
func (r *Requests) Of(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &counted{next, r} })
	return config
}

// Reset the counts, and return what they were, with how many bytes of bodies were received.
func (r *Requests) Reset() (counts map[string]int, received int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	counts, received = r.counts, r.received
	r.counts, r.received = nil, 0
	return counts, received
}

// Now are the counts so far.
func (r *Requests) Now() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.counts)
}

// Total of counts, but for watches.
func Total(counts map[string]int) int {
	n := 0
	for what, c := range counts {
		if !strings.HasPrefix(what, "watch ") {
			n += c
		}
	}
	return n
}

// Writes are those of the counts that change something; Events apart, which tell of a change.
func Writes(counts map[string]int) int {
	n := 0
	for what, c := range counts {
		verb, resource, _ := strings.Cut(what, " ")
		if verb != "get" && verb != "list" && verb != "watch" && resource != "events" {
			n += c
		}
	}
	return n
}

type counted struct {
	next http.RoundTripper
	in   *Requests
}

// RoundTrip implements http.RoundTripper.
func (c *counted) RoundTrip(req *http.Request) (*http.Response, error) {
	what := verbAndResource(req)
	c.in.mu.Lock()
	if c.in.counts == nil {
		c.in.counts = map[string]int{}
	}
	c.in.counts[what]++
	c.in.mu.Unlock()
	resp, err := c.next.RoundTrip(req)
	if err == nil {
		resp.Body = &countedBody{resp.Body, c.in}
	}
	return resp, err
}

type countedBody struct {
	io.ReadCloser
	in *Requests
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.in.mu.Lock()
	b.in.received += int64(n)
	b.in.mu.Unlock()
	return n, err
}

// verbAndResource of a request, from its path: /apis/GROUP/VERSION or /api/VERSION, then with or without
// namespaces/NAME, the resource, and with or without a name and a subresource.
func verbAndResource(req *http.Request) string {
	parts := strings.Split(strings.Trim(req.URL.Path, "/"), "/")
	switch {
	case parts[0] == "apis" && len(parts) > 3:
		parts = parts[3:]
	case parts[0] == "api" && len(parts) > 2:
		parts = parts[2:]
	default:
		return strings.ToLower(req.Method) + " " + req.URL.Path
	}
	if parts[0] == "namespaces" && len(parts) > 2 {
		parts = parts[2:]
	}
	verb, resource := strings.ToLower(req.Method), parts[0]
	switch {
	case req.URL.Query().Get("watch") != "":
		verb = "watch"
	case verb == "get" && len(parts) == 1:
		verb = "list"
	}
	if len(parts) > 2 {
		resource += "/" + parts[2]
	}
	return verb + " " + resource
}
