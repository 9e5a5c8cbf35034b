// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"reflect"
	"testing"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
)

func TestParsePort(t *testing.T) {
	tcp := map[string]string{
		"addr_traddr": "10.0.0.1", "addr_trsvcid": "4420", "addr_trtype": "tcp",
		"param_inline_data_size": "8192", "param_max_queue_size": "64",
	}
	without := func(key string) map[string]string {
		m := map[string]string{}
		for k, v := range tcp {
			if k != key {
				m[k] = v
			}
		}
		return m
	}
	address := v1alpha1.Portal{Transport: v1alpha1.TransportTCP, Address: "10.0.0.1", Port: 4420}
	tests := []struct {
		name   string
		values map[string]string
		want   engine.Portal
		half   bool
		fails  bool
	}{
		{name: "whole", values: tcp, want: engine.Portal{Portal: address, QueueDepth: 64, InCapsuleDataBytes: 8192}},
		{name: "an older kernel", values: without("param_max_queue_size"), want: engine.Portal{Portal: address, QueueDepth: 0, InCapsuleDataBytes: 8192}},
		{name: "half made", values: without("addr_traddr"), half: true},
		{name: "no number", values: without("addr_trsvcid"), fails: true},
		{name: "no size", values: without("param_inline_data_size"), fails: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, err := parsePort(FirstPort, tt.values)
			if (err != nil) != tt.fails {
				t.Fatalf("error %v", err)
			}
			if tt.fails {
				return
			}
			if p.finished() == tt.half {
				t.Errorf("finished: %v", p.finished())
			}
			if !tt.half && !reflect.DeepEqual(p.portal(), tt.want) {
				t.Errorf("got %+v, want %+v", p.portal(), tt.want)
			}
		})
	}
}

func TestSameSettings(t *testing.T) {
	portal := func(transport v1alpha1.TransportType, depth, inline int) engine.Portal {
		return engine.Portal{Portal: v1alpha1.Portal{Transport: transport}, QueueDepth: depth, InCapsuleDataBytes: inline}
	}
	tests := []struct {
		name string
		is   port
		want engine.Portal
		same bool
	}{
		{"same", port{depth: 64, inline: 4096}, portal(v1alpha1.TransportTCP, 64, 4096), true},
		{"deeper", port{depth: 64, inline: 4096}, portal(v1alpha1.TransportTCP, 128, 4096), false},
		{"deeper, where the kernel does not say", port{inline: 4096}, portal(v1alpha1.TransportTCP, 128, 4096), true},
		{"wider", port{depth: 64, inline: 16384}, portal(v1alpha1.TransportTCP, 64, 65536), false},
		{"RDMA, lowered by the kernel", port{depth: 64, inline: 16384}, portal(v1alpha1.TransportRDMA, 64, 65536), true},
		{"RDMA, not lowered yet", port{depth: 64, inline: 65536}, portal(v1alpha1.TransportRDMA, 64, 65536), true},
		{"RDMA, wider", port{depth: 64, inline: 4096}, portal(v1alpha1.TransportRDMA, 64, 8192), false},
		{"RDMA, narrower", port{depth: 64, inline: 8192}, portal(v1alpha1.TransportRDMA, 64, 4096), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.is.sameSettings(tt.want); got != tt.same {
				t.Errorf("same: %v", got)
			}
		})
	}
}
