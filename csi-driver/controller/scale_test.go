// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"

	"github.com/weft-storage/weft/test/apiserver"
)

// BenchmarkScale measures the service beside as many objects as a cluster of each size has: what a start costs and
// keeps in memory, a list of all volumes, volumes made one by one and 200 at once, an attachment, and a service that
// has nothing to do. Requests do not depend on how busy the machine is; times do.
//
//	make bench-scale
func BenchmarkScale(b *testing.B) {
	apiServer.BenchmarkSizes(b, "scale", func(b *testing.B, fleet *apiserver.Fleet) {
		apiServer.ServeFor(b)
		measureService(b, fleet)
	})
}

func measureService(b *testing.B, fleet *apiserver.Fleet) {
	var asked apiserver.Requests
	before := apiserver.HeapMiB()
	begun, started := time.Now(), apiserver.CPUTime()
	s, stop := newServiceOn(b, asked.Of(restConfig))
	defer stop()
	b.ReportMetric(time.Since(begun).Seconds(), "start-s")
	b.ReportMetric((apiserver.CPUTime() - started).Seconds(), "start-cpu-s")
	b.ReportMetric(apiserver.HeapMiB()-before, "heap-MiB")
	b.ReportMetric(0, "ns/op") // nothing is repeated b.N times
	sidecar := overGRPC(b, s)

	measureList(b, sidecar, &asked)

	create := func(name string) error {
		_, err := sidecar.CreateVolume(within(b, 10*enough), &csi.CreateVolumeRequest{
			Name: name, Parameters: map[string]string{"target": fleet.Target},
			CapacityRange:      &csi.CapacityRange{RequiredBytes: gi},
			VolumeCapabilities: []*csi.VolumeCapability{mount("ext4")},
		})
		return err
	}
	if err := create(own(b, "first")); err != nil { // connections are made
		b.Fatal(err)
	}
	asked.Reset()
	cpu := apiserver.CPUTime()
	alone := make([]time.Duration, 20)
	for i := range alone {
		begun := time.Now()
		if err := create(own(b, fmt.Sprint("alone-", i))); err != nil {
			b.Fatal(err)
		}
		alone[i] = time.Since(begun)
	}
	counts, _ := asked.Reset()
	slices.Sort(alone)
	b.ReportMetric(alone[len(alone)/2].Seconds()*1000, "create-alone-p50-ms")
	b.ReportMetric(float64(apiserver.Total(counts))/float64(len(alone)), "create-requests")
	b.ReportMetric((apiserver.CPUTime()-cpu).Seconds()*1000/float64(len(alone)), "create-cpu-ms")

	const atOnce = 200
	ids := make([]string, atOnce)
	for i := range ids {
		ids[i] = own(b, fmt.Sprint("at-once-", i))
	}
	var mu sync.Mutex
	var took []time.Duration
	begun = time.Now()
	each(b, ids, func(id string) error {
		begun := time.Now()
		err := create(id)
		mu.Lock()
		defer mu.Unlock()
		took = append(took, time.Since(begun))
		return err
	})
	b.ReportMetric(atOnce/time.Since(begun).Seconds(), "create-at-once/s")
	slices.Sort(took)
	b.ReportMetric(took[atOnce/2].Seconds()*1000, "create-at-once-p50-ms")
	b.ReportMetric(took[atOnce*99/100].Seconds()*1000, "create-at-once-p99-ms")

	measurePublish(b, s, fleet, ids[:20], &asked)
	measureQuiet(b, s, &asked)
}

// measureList of all volumes, as csi-attacher asks for it: page after page, as long as there is a token.
func measureList(b *testing.B, sidecar csi.ControllerClient, asked *apiserver.Requests) {
	asked.Reset()
	cpu := apiserver.CPUTime()
	begun := time.Now()
	token, largest, pages := "", 0, 0
	for {
		resp, err := sidecar.ListVolumes(within(b, 5*enough), &csi.ListVolumesRequest{StartingToken: token})
		if err != nil {
			b.Log("ListVolumes:", err) // one that fails at this size is a result
			b.ReportMetric(-1, "list-s")
			return
		}
		pages, largest = pages+1, max(largest, proto.Size(resp))
		if token = resp.NextToken; token == "" {
			break
		}
	}
	b.ReportMetric(time.Since(begun).Seconds(), "list-s")
	b.ReportMetric((apiserver.CPUTime() - cpu).Seconds(), "list-cpu-s")
	b.ReportMetric(float64(pages), "list-pages")
	b.ReportMetric(float64(largest)/(1<<20), "list-largest-MiB")
	counts, received := asked.Reset()
	b.ReportMetric(float64(apiserver.Total(counts)), "list-requests")
	b.ReportMetric(float64(received)/(1<<20), "list-received-MiB")
}

// measurePublish attaches volumes, one after the other, to a node that has many.
func measurePublish(b *testing.B, s *Service, fleet *apiserver.Fleet, ids []string, asked *apiserver.Requests) {
	asked.Reset()
	var took []time.Duration
	for _, id := range ids {
		begun := time.Now()
		if _, err := s.ControllerPublishVolume(within(b, 10*enough), publishRequest(id, fleet.Node(0))); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(begun))
	}
	counts, received := asked.Reset()
	b.Logf("an attachment: %v of %d", counts, len(ids))
	b.ReportMetric(float64(apiserver.Total(counts))/float64(len(ids)), "attach-requests")
	b.ReportMetric(float64(received)/float64(len(ids))/1024, "attach-received-KiB")
	b.ReportMetric(slices.MaxFunc(took, cmp.Compare[time.Duration]).Seconds()*1000, "attach-max-ms")
}

// measureQuiet is what the service asks for while nothing happens, once it has looked at each volume after its start.
func measureQuiet(b *testing.B, s *Service, asked *apiserver.Requests) {
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.Settle(ctx)
	}()
	defer func() { cancel(); <-ended }()
	begun := time.Now()
	apiserver.AwaitQuiet(b, asked, 3*time.Second, func() bool { return s.unsettled.Len() == 0 })
	counts, received := asked.Reset()
	b.Logf("settling at the start took %s: %v", time.Since(begun).Round(time.Second), counts)
	b.ReportMetric(float64(apiserver.Writes(counts)), "settle-writes")
	b.ReportMetric(float64(apiserver.Total(counts)), "settle-requests")
	b.ReportMetric(float64(received)/(1<<20), "settle-received-MiB")
}
