// SPDX-License-Identifier: Apache-2.0

package enginetest

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
)

// Export implements engine.Engine.
func (e *Engine) Export(ctx context.Context, exports []engine.Export) []error {
	return each(ctx, e, Export, exports, func(x engine.Export) string { return x.NQN }, func(want engine.Export) error {
		if err := want.Validate(); err != nil {
			return err
		}
		for _, ns := range want.Namespaces {
			if _, _, err := e.find(ns.Volume, volumesOf); err != nil {
				e.shutOut(want)
				return fmt.Errorf("namespace %d of %s: volume %w", ns.NSID, want.NQN, err)
			}
			for _, other := range e.exports {
				if other.NQN != want.NQN && slices.ContainsFunc(other.Namespaces, func(n engine.Namespace) bool { return n.Volume == ns.Volume }) {
					return fmt.Errorf("%w: %s is served by %s", engine.ErrInUse, ns.Volume, other.NQN)
				}
			}
		}
		if len(want.Authentication) > 0 && !e.info.Authentication {
			return fmt.Errorf("%w: this target cannot authenticate hosts", engine.ErrUnsupported)
		}
		if is, ok := e.exports[want.NQN]; ok && len(is.Hosts) > 0 && (is.Serial != want.Serial || is.Model != want.Model) {
			return fmt.Errorf("serial number and model of %s, which admits hosts: %w", want.NQN, engine.ErrRestartNeeded)
		}
		want.Namespaces = slices.SortedFunc(slices.Values(want.Namespaces), func(a, b engine.Namespace) int { return int(a.NSID) - int(b.NSID) })
		want.Hosts = slices.Sorted(slices.Values(want.Hosts))
		want.Authentication = maps.Clone(want.Authentication)
		e.dismiss(want.NQN, want.Hosts, want.Retired)
		want.Portals, want.Retired = nil, nil
		e.exports[want.NQN] = want
		return nil
	})
}

// shutOut the hosts that are no longer listed, where the rest cannot be as asked.
func (e *Engine) shutOut(want engine.Export) {
	if is, ok := e.exports[want.NQN]; ok {
		stay := slices.DeleteFunc(slices.Clone(is.Hosts), func(host string) bool { return !slices.Contains(want.Hosts, host) })
		e.dismiss(want.NQN, stay, want.Retired)
		is.Hosts = stay
		e.exports[want.NQN] = is
	}
}

// Unexport implements engine.Engine.
func (e *Engine) Unexport(ctx context.Context, nqns []string) []error {
	return each(ctx, e, Unexport, nqns, func(nqn string) string { return nqn }, func(nqn string) error {
		if err := engine.ValidateSubsystemNQN(nqn); err != nil {
			return err
		}
		e.dismiss(nqn, nil, nil)
		delete(e.exports, nqn)
		return nil
	})
}

// OpenPortals implements engine.Engine.
func (e *Engine) OpenPortals(ctx context.Context, portals []engine.Portal) []error {
	return each(ctx, e, OpenPortals, portals, func(p engine.Portal) string { return PortalKey(p.Portal) }, func(want engine.Portal) error {
		if err := want.Validate(); err != nil {
			return err
		}
		if !slices.Contains(e.info.Transports, want.Transport) {
			return fmt.Errorf("transport %s: %w", want.Transport, engine.ErrUnavailable)
		}
		if is, ok := e.portals[want.Portal]; ok && (is.QueueDepth != want.QueueDepth || is.InCapsuleDataBytes != want.InCapsuleDataBytes) {
			return fmt.Errorf("queue depth %d and in-capsule data of %d bytes of %s: %w", is.QueueDepth, is.InCapsuleDataBytes, PortalKey(want.Portal), engine.ErrRestartNeeded)
		}
		e.portals[want.Portal] = want
		return nil
	})
}

// ClosePortals implements engine.Engine.
func (e *Engine) ClosePortals(ctx context.Context, portals []v1alpha1.Portal) []error {
	return each(ctx, e, ClosePortals, portals, PortalKey, func(p v1alpha1.Portal) error {
		if err := engine.ValidatePortal(p); err != nil {
			return err
		}
		delete(e.portals, p)
		return nil
	})
}
