// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// bareService of a node on which nothing is staged, in a cluster without mirrors.
func bareService(t *testing.T) *Service {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	api := fake.NewClientBuilder().WithScheme(scheme).Build()
	return &Service{Records: t.TempDir(), Volumes: api, MirrorRecords: api}
}

// A change wakes the keeper of that volume, and no other.
func TestMirrorChangedTellsTheKeeper(t *testing.T) {
	s := bareService(t)
	keepers := map[string]*mirrored{}
	for _, volume := range []string{"pvc-1", "pvc-2"} {
		keepers[volume] = &mirrored{Service: s, volume: volume, events: make(chan struct{}, 1), ended: make(chan struct{})}
		s.mirrors.put(keepers[volume])
	}
	if err := s.MirrorChanged(t.Context(), "pvc-1"); err != nil {
		t.Fatal(err)
	}
	if is, other := len(keepers["pvc-1"].events), len(keepers["pvc-2"].events); is != 1 || other != 0 {
		t.Errorf("told the volume's keeper %d times, and the other %d times", is, other)
	}
}

// A keeper that is in a step for long holds nothing up for longer than the node plugin runs, nor once it has ended.
func TestMirrorChangedWaitsForTheKeeper(t *testing.T) {
	s := bareService(t)
	m := &mirrored{Service: s, volume: "pvc-1", events: make(chan struct{}), ended: make(chan struct{})}
	s.mirrors.put(m)
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := s.MirrorChanged(ctx, "pvc-1"); err != nil {
		t.Error(err)
	}
	close(m.ended)
	if err := s.MirrorChanged(t.Context(), "pvc-1"); err != nil {
		t.Error(err)
	}
}
