// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"context"
	"fmt"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
)

// OpenPortals implements engine.Engine. The exports listen first and the anchor last, whose listener says that it is
// done.
func (e *Engine) OpenPortals(ctx context.Context, portals []engine.Portal) []error {
	s, end, err := e.begin(ctx)
	defer end()
	if err != nil {
		return failAll(len(portals), err)
	}
	n, err := s.readNetwork()
	if err != nil {
		return failAll(len(portals), err)
	}
	errs := make([]error, len(portals))
	b := s.batch(errs)
	for i, p := range portals {
		if errs[i] = n.checkPortal(p); errs[i] != nil {
			continue
		}
		for _, nqn := range n.weft() {
			if sub := n.subsystems[nqn]; len(sub.Hosts) > 0 && s.mayGive(nqn) == nil { // else its next Export gives it the portal
				listen(b, i, sub, p)
			}
		}
	}
	b.wait()
	if err := s.anchor(n, errs); err != nil {
		return errs
	}
	for i, p := range portals {
		if errs[i] == nil {
			listen(b, i, n.subsystems[anchorNQN], p)
		}
	}
	b.wait()
	for i, err := range errs {
		if err != nil {
			errs[i] = fmt.Errorf("portal %s %s:%d: %w", portals[i].Transport, portals[i].Address, portals[i].Port, err)
		}
	}
	return errs
}

// anchor makes the anchor when it is missing and a portal is to be opened.
func (s *session) anchor(n *network, errs []error) error {
	if _, made := n.subsystems[anchorNQN]; made {
		return nil
	}
	wanted := false
	for _, err := range errs {
		wanted = wanted || err == nil
	}
	if !wanted {
		return nil
	}
	_, err := spdkrpc.Call(s.ctx, s.conn, spdkrpc.NvmfCreateSubsystem{NQN: anchorNQN, Serial: "anchor", Model: "weft", MaxNamespaces: leastRoom})
	if err != nil {
		for i := range errs {
			if errs[i] == nil {
				errs[i] = mapError(err)
			}
		}
		return err
	}
	n.subsystems[anchorNQN] = spdkrpc.Subsystem{NQN: anchorNQN}
	return nil
}

// checkPortal says what keeps a portal from being opened so.
func (n *network) checkPortal(p engine.Portal) error {
	if err := p.Validate(); err != nil {
		return err
	}
	t, made := n.transports[p.Transport]
	switch {
	case !made:
		return fmt.Errorf("%w: the target has no transport %s; restart the target to create the transports of its plan", engine.ErrUnsupported, p.Transport)
	case int(t.MaxQueueDepth) != p.QueueDepth || int(t.InCapsuleDataBytes) != p.InCapsuleDataBytes:
		return fmt.Errorf("%w: transport %s has queue depth %d and in-capsule data of %d bytes, not %d and %d",
			engine.ErrRestartNeeded, p.Transport, t.MaxQueueDepth, t.InCapsuleDataBytes, p.QueueDepth, p.InCapsuleDataBytes)
	}
	return nil
}

// listen with a subsystem on a portal, unless an interrupted call left it so.
func listen(b *batch, item int, sub spdkrpc.Subsystem, p engine.Portal) {
	if !listensOn(sub, p.Portal) {
		put(b, item, spdkrpc.NvmfSubsystemAddListener{NQN: sub.NQN, Address: addressOf(p.Portal)})
	}
}

// ClosePortals implements engine.Engine. The anchor goes last, so that an interrupted call is taken up again.
func (e *Engine) ClosePortals(ctx context.Context, portals []v1alpha1.Portal) []error {
	s, end, err := e.begin(ctx)
	defer end()
	if err != nil {
		return failAll(len(portals), err)
	}
	n, err := s.readNetwork()
	if err != nil {
		return failAll(len(portals), err)
	}
	errs := make([]error, len(portals))
	b := s.batch(errs)
	for i, p := range portals {
		if errs[i] = engine.ValidatePortal(p); errs[i] != nil {
			continue
		}
		for _, nqn := range n.weft() {
			if listensOn(n.subsystems[nqn], p) {
				put(b, i, spdkrpc.NvmfSubsystemRemoveListener{NQN: nqn, Address: addressOf(p)})
			}
		}
	}
	b.wait()
	for i, p := range portals {
		if errs[i] == nil && listensOn(n.subsystems[anchorNQN], p) {
			put(b, i, spdkrpc.NvmfSubsystemRemoveListener{NQN: anchorNQN, Address: addressOf(p)})
		}
	}
	b.wait()
	return errs
}
