// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// IgnoreStale drops the errors of a write which say that the cache was older than the object: Conflict and NotFound.
// The event that brings the newer object, or its deletion, is on its way and calls Reconcile again, which then knows
// more than a retry would now.
//
// A controller whose predicates drop events of the object has to look again by itself: the newer object may differ in
// what is dropped alone.
func IgnoreStale(ctx context.Context, err error) error {
	if IsStale(err) {
		log.FromContext(ctx).V(1).Info("the cache is behind the API server; waiting for its event", "reason", err.Error())
		return nil
	}
	return err
}

// IsStale tells whether an error says that the cache was older than the object.
func IsStale(err error) bool { return apierrors.IsConflict(err) || apierrors.IsNotFound(err) }

// StaleAgain is after how long a controller that drops events looks again: by then, its cache has the newer object.
const StaleAgain = time.Second
