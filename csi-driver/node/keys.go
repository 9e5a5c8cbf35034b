// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
	"github.com/weft-storage/weft/internal/dhchap"
)

// errKeys says that the keys by which this node would prove itself to a replica's target are not ready: they are sealed
// to another key of this node, or the target does not have them yet.
var errKeys = fmt.Errorf("%w: its keys are not ready", errNotServed)

// connection to a replica, with the keys that are sealed to this node. It fails with errKeys when it cannot read them:
// it never connects without, where there are some, nor to a target that would ask for none.
func (s *Service) connection(at attached, r replica) (fabrics.Connection, error) {
	c := at.connection(r)
	if r.Sealed == "" {
		return c, nil
	}
	if s.Identity == nil {
		return c, fmt.Errorf("%w: this node has no private key; see the node plugin's log", errKeys)
	}
	keys, err := s.Identity.Open(r.Sealed)
	if err != nil {
		return c, fmt.Errorf("%w: NvmfReplica %s: %w; the CSI controller seals new ones within some minutes", errKeys, r.Name, err)
	}
	switch {
	case r.keys == nil: // it was asked when the volume was staged
	case *r.keys == "":
		// Linux connects with keys to a target that asks for none, and is not told so.
		return c, fmt.Errorf("%w: the agent does not report that the target of NvmfReplica %s asks for them; check that it runs, with the installed version", errKeys, r.Name)
	case *r.keys != keys.Fingerprint():
		return c, fmt.Errorf("%w: the target of NvmfReplica %s has other ones", errKeys, r.Name)
	}
	c.Keys = keys
	return c, nil
}

const (
	// AuthenticationInterval is between looks at whether hosts of this node can prove themselves: a kernel stays as it
	// is until the next boot, and so does the key of this process.
	AuthenticationInterval = 10 * time.Minute
	// noIdentity is what to do about a private key that cannot be used.
	noIdentity = "this node has no private key: "
)

// Authenticating is what an AuthenticationReporter asks; *fabrics.Host.
type Authenticating interface {
	// Authenticates fails with fabrics.ErrUnsupported when the kernel's hosts cannot prove themselves.
	Authenticates(ctx context.Context) error
}

// AuthenticationReporter tells the API whether hosts of this machine can prove themselves, and by which public key
// their keys are to be sealed, in the Node's condition v1alpha1.ConditionAuthenticationUnavailable.
type AuthenticationReporter struct {
	Initiator Authenticating
	// Identity of this node; nil when it could not be read or made, for the reason in IdentityErr.
	Identity    *dhchap.Identity
	IdentityErr error
	// Writer of the condition.
	Writer *ConditionWriter
	// Clock for the looks.
	Clock clock.WithTicker
}

// Run looks at once, and again every AuthenticationInterval, and sooner after a failure, until the context ends. A look
// that fails leaves the condition as it is.
func (r *AuthenticationReporter) Run(ctx context.Context) error {
	log := logr.FromContextOrDiscard(ctx).WithName("authentication")
	lookAgain(ctx, r.Clock, func() time.Duration {
		if err := r.Look(ctx); err != nil && ctx.Err() == nil {
			log.Error(err, "Cannot report the public key of this node; trying again")
			return MirrorsRetryInterval
		}
		return AuthenticationInterval
	})
	return nil
}

// Look once, and write what is found.
func (r *AuthenticationReporter) Look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, mirrorsTimeout)
	defer cancel()
	if r.Identity == nil {
		return r.Writer.Write(ctx, corev1.ConditionTrue, v1alpha1.ReasonKeysUnreadable, noIdentity+r.IdentityErr.Error())
	}
	switch err := r.Initiator.Authenticates(ctx); {
	case errors.Is(err, fabrics.ErrUnsupported):
		return r.Writer.Write(ctx, corev1.ConditionTrue, v1alpha1.ReasonUnsupported, err.Error())
	case err != nil:
		return err
	}
	return r.Writer.Write(ctx, corev1.ConditionFalse, v1alpha1.ReasonAsExpected, r.Identity.PublicKey())
}
