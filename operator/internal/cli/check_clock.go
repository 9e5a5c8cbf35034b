// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

const (
	// clockWrong is how far a clock may be from that of the API server. The operator takes an agent for silent when
	// its Lease is 40 s old by its own clock; the agent renews it every 10 s. Two clocks that are 15 s off in opposite
	// directions take the 30 s between.
	clockWrong = 15 * time.Second
	// clockAdvice is what a clock that is synchronized never has, and a request to the API server rarely takes.
	clockAdvice = 5 * time.Second
	// leaseAge after which a Lease no longer shows what the clock is now. Kubelets and agents renew theirs every 10 s.
	leaseAge = 5 * time.Minute
	// sameTime within which two Leases of a node show the same clock.
	sameTime = time.Minute
)

// clockReading is what the Leases of a node show of its clock.
type clockReading struct {
	// ahead of the API server's clock, to half a second. A request that took long makes it less, never more.
	ahead time.Duration
	// at this time of the API server.
	at time.Time
}

// clockOf the clock that renewed a Lease: it wrote the time by it, and the API server noted beside the fields when it
// got them, by its own clock, in whole seconds. False: the Lease does not show it.
func clockOf(lease *coordinationv1.Lease) (clockReading, bool) {
	var at time.Time
	for _, entry := range lease.ManagedFields {
		if entry.Time != nil && entry.FieldsV1 != nil && renews(entry.FieldsV1.GetRawBytes()) && entry.Time.After(at) {
			at = entry.Time.Time
		}
	}
	if at.IsZero() || lease.Spec.RenewTime == nil {
		return clockReading{}, false
	}
	return clockReading{lease.Spec.RenewTime.Sub(at.Add(time.Second / 2)), at}, true
}

// renews says whether the time of a Lease is among fields.
func renews(fields []byte) bool {
	var of struct {
		Spec map[string]json.RawMessage `json:"f:spec"`
	}
	err := json.Unmarshal(fields, &of)
	_, is := of.Spec["f:renewTime"]
	return err == nil && is
}

// readClocks from the Leases of kubelets and agents.
func (s *survey) readClocks(ctx context.Context, api client.Reader) {
	readings := map[string][]clockReading{}
	var newest time.Time
	for _, of := range []struct{ namespace, prefix string }{{corev1.NamespaceNodeLease, ""}, {s.namespace, v1alpha1.AgentLeasePrefix}} {
		var leases coordinationv1.LeaseList
		s.note("Leases in namespace "+of.namespace, api.List(ctx, &leases, client.InNamespace(of.namespace)))
		for i := range leases.Items {
			node, is := strings.CutPrefix(leases.Items[i].Name, of.prefix)
			if reading, shows := clockOf(&leases.Items[i]); is && shows {
				readings[node] = append(readings[node], reading)
				if reading.at.After(newest) {
					newest = reading.at
				}
			}
		}
	}
	s.clocks = map[string]clockReading{}
	for node, of := range readings {
		if reading := latest(of); newest.Sub(reading.at) <= leaseAge {
			s.clocks[node] = reading
		}
	}
}

// latest reading; of several of the same time, the one whose request took least.
func latest(readings []clockReading) clockReading {
	last := slices.MaxFunc(readings, func(a, b clockReading) int { return a.at.Compare(b.at) })
	return slices.MaxFunc(slices.DeleteFunc(readings, func(r clockReading) bool { return last.at.Sub(r.at) > sameTime }),
		func(a, b clockReading) int { return cmp.Compare(a.ahead, b.ahead) })
}

// clock of a node that is far from that of the API server.
func (s *survey) clock(n *corev1.Node) []finding {
	reading, known := s.clocks[n.Name]
	if !known || reading.ahead.Abs() < clockAdvice {
		return nil
	}
	if reading.ahead.Abs() < clockWrong {
		return []finding{{node: n.Name, says: fmt.Sprintf("its clock is %s the API server's; synchronize it, such as with chrony", reading)}}
	}
	return []finding{{node: n.Name, wrong: true, says: fmt.Sprintf("its clock is %s the API server's; synchronize it, such as with chrony: "+
		"the operator compares the time that agents write with its own, to see which of them are silent", reading)}}
}

func (c clockReading) String() string {
	if c.ahead < 0 {
		return fmt.Sprintf("up to %.0f s behind", -c.ahead.Seconds())
	}
	return fmt.Sprintf("%.0f s ahead of", c.ahead.Seconds())
}

// withoutClock are the nodes whose clocks nothing shows.
func (s *survey) withoutClock() []string {
	var nodes []string
	for i := range s.nodes {
		if _, known := s.clocks[s.nodes[i].Name]; !known {
			nodes = append(nodes, s.nodes[i].Name)
		}
	}
	return nodes
}
