// SPDX-License-Identifier: Apache-2.0

// Package controller has what the operator's controllers share.
package controller

import (
	"context"
	"fmt"
	"strings"
	"unicode/utf8"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/log"
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
