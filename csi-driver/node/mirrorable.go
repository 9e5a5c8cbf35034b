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
	"github.com/weft-storage/weft/csi-driver/node/internal/doing"
	"github.com/weft-storage/weft/csi-driver/node/internal/filesystem"
	"github.com/weft-storage/weft/csi-driver/node/internal/mapper"
)

const (
	// MirrorsInterval is between looks at what mirrors, or encryption, need while all of it is there: what was loaded
	// stays, as a rule.
	MirrorsInterval = 10 * time.Minute
	// MirrorsRetryInterval is between looks while something is missing, or is not known: somebody may be at it. Each
	// runs modprobe at most three times.
	MirrorsRetryInterval = time.Minute
	// MirrorsFieldManager is the field manager of the condition of mirrors.
	MirrorsFieldManager = "weft-csi-node-mirrors"
	// EncryptionFieldManager is the field manager of the condition of encryption.
	EncryptionFieldManager = "weft-csi-node-encryption"
	// mirrorsTimeout bounds one look. Loading a module takes well under a second; it is a choice.
	mirrorsTimeout = 30 * time.Second
	// MirrorsAvailable is the message of the condition of mirrors while all is well.
	MirrorsAvailable = "this node can mirror volumes with several replicas"
	// EncryptionAvailable is that of the condition of encryption.
	EncryptionAvailable = "this node can use encrypted volumes"
	// moduleRemedy and programRemedy are what to do about what is missing.
	moduleRemedy  = "install the kernel package that has the module, or load the module when the node boots if pods may not load any"
	programRemedy = "run the node plugin from an image of weft"
)

// EncryptionNeeds are cryptsetup, and dm-crypt in the kernel.
type EncryptionNeeds struct {
	Filesystems *filesystem.Host
	Mapper      *mapper.Host
}

// Load implements Loader.
func (n EncryptionNeeds) Load(ctx context.Context) error {
	if err := n.Filesystems.LookForCryptsetup(); err != nil {
		return err
	}
	return n.Mapper.LoadCrypt(ctx)
}

// Loader makes the kernel ready for something, unless it is; *md.Host, *mapper.Host and EncryptionNeeds.
type Loader interface {
	// Load fails with doing.ErrNoProgram or doing.ErrNoModule when something is missing; with another error, that is
	// not known.
	Load(ctx context.Context) error
}

// NeedsReporter tells the API whether this machine has what some volumes need, in one of the Node's conditions, so that
// no such volume is attached where it cannot be staged: of volumes with several replicas in
// v1alpha1.ConditionMirrorsUnavailable, of encrypted ones in v1alpha1.ConditionEncryptionUnavailable.
type NeedsReporter struct {
	// Needs of such volumes, in the order of the message.
	Needs []Loader
	// Available is the condition's message while all is well.
	Available string
	// Writer of the condition.
	Writer *ConditionWriter
	// Clock for the looks.
	Clock clock.WithTicker
}

// Run looks at once, then at each MirrorsInterval, or MirrorsRetryInterval, until the context ends. A look that fails
// leaves the condition as it is.
func (r *NeedsReporter) Run(ctx context.Context) error {
	log := logr.FromContextOrDiscard(ctx).WithValues("condition", r.Writer.Type)
	lookAgain(ctx, r.Clock, func() time.Duration {
		available, err := r.Look(ctx)
		if err != nil && ctx.Err() == nil {
			log.Error(err, "Cannot report whether this node has what some volumes need; trying again")
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
func (r *NeedsReporter) Look(ctx context.Context) (available bool, err error) {
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
		case errors.Is(err, doing.ErrNoModule):
			reason, remedy = v1alpha1.ReasonModuleMissing, moduleRemedy
		case errors.Is(err, doing.ErrNoProgram):
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
	return true, r.Writer.Write(ctx, corev1.ConditionFalse, v1alpha1.ReasonAsExpected, r.Available)
}
