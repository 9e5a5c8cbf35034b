// SPDX-License-Identifier: Apache-2.0

package enginetest

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"testing"

	"github.com/weft-storage/weft/dataplane/engine"
)

// Look gathers what an engine has. If one alone called the target so far, and can glance, it does that right before,
// and has to find the same; called is nil where several did. No other call may run meanwhile.
func Look(ctx context.Context, t testing.TB, called, e engine.Engine) (engine.State, error) {
	t.Helper()
	g, ok := called.(engine.Glancer)
	if !ok {
		return e.Gather(ctx)
	}
	glance, glanceErr := g.Glance(ctx)
	all, err := e.Gather(ctx)
	if (glanceErr == nil) != (err == nil) {
		t.Errorf("a glance answers %v, and a look %v", glanceErr, err)
	} else if glance, all := lasting(glance), lasting(all); !reflect.DeepEqual(glance, all) {
		t.Errorf("a glance finds %+v, and a look %+v", glance, all)
	}
	return all, err
}

// lasting is a state without what hosts and the target change by themselves.
func lasting(s engine.State) engine.State {
	s.Pools, s.Volumes, s.Snapshots = slices.Clone(s.Pools), slices.Clone(s.Volumes), slices.Clone(s.Snapshots)
	for i := range s.Pools {
		p := &s.Pools[i]
		p.FreeBytes, p.ClearingBytes = 0, 0
		if p.Err != nil {
			p.Err = errors.New("it cannot be read")
		}
	}
	for i := range s.Volumes {
		s.Volumes[i].AllocatedBytes = 0
	}
	for i := range s.Snapshots {
		s.Snapshots[i].AllocatedBytes = 0
	}
	return s
}
