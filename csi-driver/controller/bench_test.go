// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// BenchmarkCreateVolume makes 200 volumes at once, as a rollout does, against a real API server and agents that
// answer at once. Each round is what a user waits for: from the first call to the last answer. Beside it, in the same
// round, runs what no driver can do without: as many objects stored, and their statuses written once. The
// ratio of the two says what the driver adds, whatever else the machine does meanwhile.
//
//	go test ./csi-driver/controller -run '^$' -bench CreateVolume -benchtime 5x
func BenchmarkCreateVolume(b *testing.B) {
	const atOnce = 200
	st := newStorage(b, 3, 10000*gi)
	var asked requests
	config := rest.CopyConfig(restConfig)
	config.Wrap(asked.count)
	s, _ := newServiceOn(b, config)
	seen(b, s, st)
	var raw time.Duration
	for round := 0; b.Loop(); round++ {
		ids := make([]string, atOnce)
		for i := range ids {
			ids[i] = own(b, fmt.Sprintf("%d-%d", round, i))
		}
		asked.on.Store(true)
		each(b, ids, func(id string) error {
			_, err := s.CreateVolume(within(b, enough), createRequest(st, id, gi))
			return err
		})
		b.StopTimer()
		asked.on.Store(false)
		each(b, ids, func(id string) error {
			_, err := s.DeleteVolume(within(b, enough), &csi.DeleteVolumeRequest{VolumeId: id})
			return err
		})
		raw += writesAlone(b, ids)
		b.StartTimer()
	}
	volumes := float64(atOnce * b.N)
	b.ReportMetric(volumes/b.Elapsed().Seconds(), "volumes/s")
	b.ReportMetric(volumes/raw.Seconds(), "raw/s")
	b.ReportMetric(b.Elapsed().Seconds()/raw.Seconds(), "times-raw")
	b.ReportMetric(float64(asked.n.Load())/volumes, "requests/volume")
}

// requests to the API server, but for watches, while they are counted.
type requests struct {
	on atomic.Bool
	n  atomic.Int64
}

func (r *requests) count(next http.RoundTripper) http.RoundTripper {
	return transport(func(req *http.Request) (*http.Response, error) {
		if r.on.Load() && req.URL.Query().Get("watch") == "" {
			r.n.Add(1)
		}
		return next.RoundTrip(req)
	})
}

type transport func(*http.Request) (*http.Response, error)

func (t transport) RoundTrip(req *http.Request) (*http.Response, error) { return t(req) }

// writesAlone stores the objects for each name and writes the status, and answers how long that took. No agent serves
// them.
func writesAlone(b *testing.B, names []string) time.Duration {
	b.Helper()
	vols, reps := map[string]*v1alpha1.NvmfVolume{}, map[string]*v1alpha1.NvmfReplica{}
	for _, name := range names {
		id := uuid.NewString()
		only := member(name+"-raw", id, 0, "raw")
		vols[name] = &v1alpha1.NvmfVolume{
			ObjectMeta: metav1.ObjectMeta{Name: name + "-raw"},
			Spec: v1alpha1.NvmfVolumeSpec{
				UUID: id, Target: "raw", Members: []v1alpha1.VolumeMember{only}, Size: resource.MustParse("1Gi"),
				Connection: v1alpha1.Connection{Transports: []v1alpha1.TransportType{v1alpha1.TransportTCP}, IOQueues: 2, QueueDepth: 128, CtrlLossTimeoutSeconds: -1},
			},
		}
		reps[name] = newReplica(vols[name], only, nil)
		reps[name].Finalizers = nil
	}
	begun := time.Now()
	each(b, names, func(name string) error {
		if err := api.Create(b.Context(), vols[name]); err != nil {
			return err
		}
		rep := reps[name]
		if err := api.Create(b.Context(), rep); err != nil {
			return err
		}
		rep.Status.ObservedGeneration = rep.Generation
		rep.Status.Conditions = []metav1.Condition{condition(v1alpha1.ConditionCreated, metav1.ConditionTrue, v1alpha1.ReasonAsExpected, "")}
		return api.Status().Update(b.Context(), rep)
	})
	took := time.Since(begun)
	each(b, names, func(name string) error {
		return errors.Join(api.Delete(b.Context(), vols[name]), api.Delete(b.Context(), reps[name]))
	})
	return took
}

// each id at once.
func each(b *testing.B, ids []string, do func(id string) error) {
	b.Helper()
	var wg sync.WaitGroup
	errs := make([]error, len(ids))
	for i, id := range ids {
		wg.Go(func() { errs[i] = do(id) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			b.Fatal(err)
		}
	}
}
