// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// IgnoreStale drops the errors of a write which say that the cache was older than the object: Conflict and NotFound.
// The event that brings the newer object, or its deletion, is on its way and calls Reconcile again, which then knows
// more than a retry would now.
func IgnoreStale(ctx context.Context, err error) error {
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		log.FromContext(ctx).V(1).Info("the cache is behind the API server; waiting for its event", "why", err.Error())
		return nil
	}
	return err
}
