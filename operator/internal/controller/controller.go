// SPDX-License-Identifier: Apache-2.0

// Package controller has what the operator's controllers share.
package controller

import (
	"context"
	"fmt"
	"strings"
	"unicode/utf8"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// EventAction is what the operator was doing when it emits an Event; events.k8s.io asks for it.
const EventAction = "Reconcile"

// MaxNote is the bound of an Event's note, in bytes (events.k8s.io/v1).
const MaxNote = 1024

// IgnoreStale drops errors which say that the cache was older than the
// object: Conflict and NotFound. The event that brings the newer object, or its
// deletion, is on its way and calls Reconcile again, with better knowledge than a retry now would have.
func IgnoreStale(ctx context.Context, err error) error {
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		log.FromContext(ctx).V(1).Info("the cache is behind the API server; waiting for its event", "why", err.Error())
		return nil
	}
	return err
}

// Clip cuts a text to at most most bytes, between runes, and shows that it did.
func Clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	const mark = "..."
	end := most - len(mark)
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + mark
}

// NameSome names the first of them, and counts the rest.
func NameSome(names []string, most int) string {
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// OverPromised tells, of each ready pool of a node of which more is promised than the plan allows, how much. That happens when a target's
// overProvisioningPercent is lowered, or a drive comes back smaller: nothing is taken away, and nothing new is given.
func OverPromised(node *v1alpha1.NvmfNode, plan *v1alpha1.Plan) []string {
	var told []string
	for _, p := range node.Status.Pools {
		if !p.Ready || p.Total == nil || p.Promised == nil {
			continue
		}
		if limit := plan.Promisable(p.Total.Value()); p.Promised.Value() > limit {
			told = append(told, fmt.Sprintf("%s (%s promised of pool %s, %s allowed)", node.Name, p.Promised, p.Device, resource.NewQuantity(limit, resource.BinarySI)))
		}
	}
	return told
}
