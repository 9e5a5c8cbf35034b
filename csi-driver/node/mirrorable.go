// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node/internal/md"
	"github.com/weft-storage/weft/csi-driver/node/internal/modules"
)

const (
	// MirrorsInterval is between looks at what mirrors need while all of it is there: what was loaded stays, as a rule.
	MirrorsInterval = 10 * time.Minute
	// MirrorsRetryInterval is between looks while something is missing, or is not known: somebody may be at it. Each
	// runs modprobe at most three times.
	MirrorsRetryInterval = time.Minute
	// MirrorsFieldManager is the field manager of the condition.
	MirrorsFieldManager = "weft-csi-node-mirrors"
	// mirrorsTimeout bounds one look. Loading a module takes well under a second; it is a choice.
	mirrorsTimeout = 30 * time.Second
	// mirrorsAvailable is the condition's message while all is well.
	mirrorsAvailable = "this node can mirror volumes with several replicas"
	// moduleRemedy and programRemedy are what to do about what is missing.
	moduleRemedy  = "install the kernel package that has the module, or load the module when the node boots if pods may not load any"
	programRemedy = "run the node plugin from an image of weft"
)

// Loader makes the kernel ready for something, unless it is; *md.Host and *mapper.Host.
type Loader interface {
	// Load fails with md.ErrNoProgram or modules.ErrMissing when something is missing; with another error, that is not
	// known.
	Load(ctx context.Context) error
}

// MirrorReporter tells the API whether this machine can hold the mirrors of volumes with several replicas, in the
// Node's condition v1alpha1.ConditionMirrorsUnavailable, so that no such volume is attached where it cannot be staged.
type MirrorReporter struct {
	// Needs of mirrors, in the order of the message.
	Needs []Loader
	// Writer of the condition.
	Writer *ConditionWriter
	// Clock for the looks.
	Clock clock.WithTicker
}

// Run looks at once, then at each MirrorsInterval, or MirrorsRetryInterval, until the context ends. A look that fails
// leaves the condition as it is.
func (r *MirrorReporter) Run(ctx context.Context) error {
	log := logr.FromContextOrDiscard(ctx).WithName("mirrors")
	lookAgain(ctx, r.Clock, func() time.Duration {
		available, err := r.Look(ctx)
		if err != nil && ctx.Err() == nil {
			log.Error(err, "Cannot report whether this node can hold mirrors; trying again")
		}
		if err != nil || !available {
			return MirrorsRetryInterval
		}
		return MirrorsInterval
	})
	return nil
}

// lookAgain looks at once, and again after the time that each look answers, until the context ends.
func lookAgain(ctx context.Context, clock clock.WithTicker, look func() time.Duration) {
	for {
		timer := clock.NewTimer(look())
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C():
		}
	}
}

// Look once, load what is not loaded, and write what is found.
func (r *MirrorReporter) Look(ctx context.Context) (available bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, mirrorsTimeout)
	defer cancel()
	var reason, remedy string
	var missing []string
	var unknown error
	for _, need := range r.Needs {
		err := need.Load(ctx)
		switch {
		case err == nil:
			continue
		case errors.Is(err, modules.ErrMissing):
			reason, remedy = v1alpha1.ReasonModuleMissing, moduleRemedy
		case errors.Is(err, md.ErrNoProgram):
			reason, remedy = v1alpha1.ReasonProgramMissing, programRemedy
		default:
			unknown = errors.Join(unknown, err)
			continue
		}
		missing = append(missing, fmt.Sprintf("%s: %s", strings.ReplaceAll(err.Error(), "\n", "; "), remedy))
	}
	switch {
	case len(missing) > 0:
		return false, r.Writer.Write(ctx, corev1.ConditionTrue, reason, strings.Join(missing, "; "))
	case unknown != nil:
		return false, unknown
	}
	return true, r.Writer.Write(ctx, corev1.ConditionFalse, v1alpha1.ReasonAsExpected, mirrorsAvailable)
}
