// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
	"github.com/weft-storage/weft/test/apiserver"
)

// BenchmarkCreateVolume makes 200 volumes at once, as a rollout does, over gRPC, against a real API server and agents
// that answer at once; once with one replica each, and once with two. Each round is what a user waits for: from the
// first call to the last answer. Beside it, in the same round, runs what no driver can do without: as many objects
// stored, and the replicas' statuses written once. The ratio of the two says what the driver adds, whatever else the
// machine does meanwhile; so does, exactly, the number of requests of the service and the agents for each volume, of
// which that takes 3 with one replica and 6 with two. It fails below the least rate on two cores.
//
//	make bench-create
func BenchmarkCreateVolume(b *testing.B) {
	b.Run("1-replica", func(b *testing.B) { createAtOnce(b, 1, 100) })
	b.Run("2-replicas", func(b *testing.B) { createAtOnce(b, 2, 70) })
}

// createAtOnce creates 200 volumes at once with so many replicas; it fails with fewer than least volumes a second.
func createAtOnce(b *testing.B, replicas int, least float64) {
	const atOnce = 200
	var asked apiserver.Requests
	uncounted := restConfig
	restConfig = asked.Of(uncounted) // of agents and service
	b.Cleanup(func() { restConfig = uncounted })
	st := newStorage(b, 3, 10000*gi)
	s, _ := newService(b)
	seen(b, s, st)
	sidecar := overGRPC(b, s)
	var raw time.Duration
	requests := 0
	for round := 0; b.Loop(); round++ {
		ids := make([]string, atOnce)
		for i := range ids {
			ids[i] = own(b, fmt.Sprintf("%d-%d", round, i))
		}
		asked.Reset()
		each(b, ids, func(id string) error {
			req := createRequest(st, id, gi)
			req.Parameters["replicas"] = strconv.Itoa(replicas)
			_, err := sidecar.CreateVolume(within(b, enough), req)
			return err
		})
		b.StopTimer()
		counts, _ := asked.Reset()
		requests += apiserver.Total(counts)
		each(b, ids, func(id string) error {
			_, err := sidecar.DeleteVolume(within(b, 5*enough), &csi.DeleteVolumeRequest{VolumeId: id})
			return err
		})
		raw += writesAlone(b, ids, replicas)
		b.StartTimer()
	}
	volumes := float64(atOnce * b.N)
	rate := volumes / b.Elapsed().Seconds()
	b.ReportMetric(rate, "volumes/s")
	b.ReportMetric(volumes/raw.Seconds(), "raw/s")
	b.ReportMetric(b.Elapsed().Seconds()/raw.Seconds(), "times-raw")
	b.ReportMetric(float64(requests)/volumes, "requests/volume")
	if rate < least {
		b.Errorf("%.1f volumes a second with replicas: \"%d\"; want at least %.0f; %.1f requests a volume, %.0f a second stored alone",
			rate, replicas, least, float64(requests)/volumes, volumes/raw.Seconds())
	}
}

// overGRPC is a sidecar's client of the service, on a Unix socket as in the pod.
func overGRPC(b *testing.B, s *Service) csi.ControllerClient {
	b.Helper()
	listener, err := new(net.ListenConfig).Listen(b.Context(), "unix", filepath.Join(b.TempDir(), "csi.sock"))
	if err != nil {
		b.Fatal(err)
	}
	server := grpc.NewServer()
	csi.RegisterControllerServer(server, s)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	conn, err := grpc.NewClient("unix://"+listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		server.Stop()
		if err := errors.Join(conn.Close(), <-served); err != nil {
			b.Error(err)
		}
	})
	return csi.NewControllerClient(conn)
}

// writesAlone stores the objects for each name and writes the replicas' statuses, and answers how long that took. No
// agent serves them.
func writesAlone(b *testing.B, names []string, replicas int) time.Duration {
	b.Helper()
	vols, reps := map[string]*v1alpha1.NvmfVolume{}, map[string][]*v1alpha1.NvmfReplica{}
	for _, name := range names {
		id := uuid.NewString()
		vol := &v1alpha1.NvmfVolume{
			ObjectMeta: metav1.ObjectMeta{Name: name + "-raw"},
			Spec: v1alpha1.NvmfVolumeSpec{
				UUID: id, Target: "raw", Replicas: int32(replicas), Mirrored: replicas > 1, Size: resource.MustParse("1Gi"),
				Connection: v1alpha1.Connection{Transports: []v1alpha1.TransportType{v1alpha1.TransportTCP}, IOQueues: 2, QueueDepth: 128, CtrlLossTimeoutSeconds: -1},
			},
		}
		for n := range replicas {
			vol.Spec.Members = append(vol.Spec.Members, member(vol.Name, id, n, fmt.Sprintf("raw-%d", n)))
		}
		for _, m := range vol.Spec.Members {
			rep := newReplica(vol, m, nil)
			rep.Finalizers = nil
			reps[name] = append(reps[name], rep)
		}
		vols[name] = vol
	}
	mirrors := make(map[string]*v1alpha1.NvmfMirror, len(names))
	begun := time.Now()
	var mu sync.Mutex
	each(b, names, func(name string) error {
		m, err := storeAlone(b.Context(), vols[name], reps[name])
		mu.Lock()
		defer mu.Unlock()
		mirrors[name] = m
		return err
	})
	took := time.Since(begun)
	each(b, names, func(name string) error {
		err := api.Delete(b.Context(), vols[name])
		for _, rep := range reps[name] {
			err = errors.Join(err, api.Delete(b.Context(), rep))
		}
		if mirrors[name] != nil {
			err = errors.Join(err, api.Delete(b.Context(), mirrors[name]))
		}
		return err
	})
	return took
}

// storeAlone stores the objects of a volume, and returns its mirror if it has several replicas.
func storeAlone(ctx context.Context, vol *v1alpha1.NvmfVolume, reps []*v1alpha1.NvmfReplica) (*v1alpha1.NvmfMirror, error) {
	if err := api.Create(ctx, vol); err != nil {
		return nil, err
	}
	var all []mirror.Replica
	for _, rep := range reps {
		if err := api.Create(ctx, rep); err != nil {
			return nil, err
		}
		rep.Status.ObservedGeneration = rep.Generation
		rep.Status.Conditions = []metav1.Condition{condition(v1alpha1.ConditionCreated, metav1.ConditionTrue, v1alpha1.ReasonAsExpected, "")}
		if err := api.Status().Update(ctx, rep); err != nil {
			return nil, err
		}
		all = append(all, mirror.Replica{Name: rep.Name, UID: string(rep.UID)})
	}
	if len(reps) == 1 {
		return nil, nil
	}
	record, err := mirror.New("", all, nil, time.Now())
	if err != nil {
		return nil, err
	}
	m := &v1alpha1.NvmfMirror{ObjectMeta: metav1.ObjectMeta{Name: vol.Name}, Spec: record}
	return m, api.Create(ctx, m)
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
