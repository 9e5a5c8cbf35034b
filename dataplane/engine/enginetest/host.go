// SPDX-License-Identifier: Apache-2.0

package enginetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/internal/dhchap"
)

// Errors of a connection.
var (
	// ErrRefused: the portal, the subsystem or the admission is missing.
	ErrRefused = errors.New("connection refused")
	// ErrDisconnected: there was a connection, and the target ended it.
	ErrDisconnected = errors.New("disconnected by the target")
)

// Host is a simulated connection of one host to one subsystem through one
// portal. It does as Linux's initiator does since 6.10: while nobody listens on
// its portal, as after Restart, or once it was dismissed, it tries again and its I/O waits; when somebody listens
// and does not know its subsystem, it gives up for good.
type Host struct {
	// ctx bounds how long I/O waits.
	ctx       context.Context
	e         *Engine
	portal    v1alpha1.Portal
	nqn, host string
	keys      dhchap.Pair
	// gone: it disconnected, or gave up. Impatient, it gives up when it is refused.
	gone, impatient bool
	// proved: this connection was authenticated, if that was asked for. The next one will have to be.
	proved bool
	// lingers: it was retired while it was connected.
	lingers bool
	// controller is the number of this connection.
	controller int
}

// Connect a host to a subsystem. It fails with ErrRefused. The connection's I/O waits for the target no longer than
// ctx.
func (e *Engine) Connect(ctx context.Context, portal v1alpha1.Portal, nqn, hostNQN string) (*Host, error) {
	return e.ConnectWith(ctx, portal, nqn, hostNQN, dhchap.Pair{})
}

// ConnectWith keys is Connect of a host that proves that it has them when it is asked, and wants the same of its
// target; a target that does not ask it trusts, as Linux's does.
func (e *Engine) ConnectWith(ctx context.Context, portal v1alpha1.Portal, nqn, hostNQN string, keys dhchap.Pair) (*Host, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	h := &Host{ctx: ctx, e: e, portal: portal, nqn: nqn, host: hostNQN, keys: keys}
	if err := h.reach(); err != nil {
		return nil, err
	}
	e.initiator[h] = true
	context.AfterFunc(ctx, e.changed.Broadcast)
	return h, nil
}

// Disconnect ends the connection from the host's side.
func (h *Host) Disconnect() {
	h.e.mu.Lock()
	defer h.e.mu.Unlock()
	h.end()
	h.e.changed.Broadcast()
}

// end of the connection; the engine's mutex is held.
func (h *Host) end() {
	h.gone = true
	delete(h.e.initiator, h)
}

// Disconnected says whether the connection was ended, by the host or by the target.
func (h *Host) Disconnected() bool {
	h.e.mu.Lock()
	defer h.e.mu.Unlock()
	return h.gone || h.e.refuses(h)
}

// Gone says whether the host ended the connection, or gave up. One that was dismissed tries again.
func (h *Host) Gone() bool {
	h.e.mu.Lock()
	defer h.e.mu.Unlock()
	return h.gone
}

// LosePatience makes the host give up with the next attempt that fails.
func (h *Host) LosePatience() {
	h.e.mu.Lock()
	defer h.e.mu.Unlock()
	h.impatient = true
	h.e.settle()
}

// dismiss hosts that a subsystem had, and does not have any more; the engine's mutex is held. It stays known over a
// restart. As with the kernel's target, all hosts of the subsystem have to connect again then. One that is retired is
// not dismissed: nothing is done to a connection that it still has, until another host is dismissed.
func (e *Engine) dismiss(nqn string, stay, retired []string) {
	cut := false
	for _, host := range e.exports[nqn].Hosts {
		if !slices.Contains(retired, host) {
			e.dismissed[admission{nqn, host}] = !slices.Contains(stay, host)
			cut = cut || !slices.Contains(stay, host)
		}
	}
	for _, host := range stay {
		e.dismissed[admission{nqn, host}] = false
	}
	for h := range e.initiator {
		if h.nqn == nqn {
			h.lingers = !cut && h.proved && (h.lingers || slices.Contains(retired, h.host))
			h.proved = h.proved && !cut
		}
	}
}

// Controller is the number of the connection, another one each time that the host had to connect again.
func (h *Host) Controller() int {
	h.e.mu.Lock()
	defer h.e.mu.Unlock()
	return h.controller
}

// admission of a host to a subsystem.
type admission struct{ nqn, host string }

// refuses a host, which was dismissed; the engine's mutex is held.
func (e *Engine) refuses(h *Host) bool { return e.dismissed[admission{h.nqn, h.host}] }

// Connected counts the connections to a subsystem.
func (e *Engine) Connected(nqn string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := 0
	for h := range e.initiator {
		if h.nqn == nqn {
			n++
		}
	}
	return n
}

// settle what hosts make of a change; the engine's mutex is held.
func (e *Engine) settle() {
	for h := range e.initiator {
		_, listening := e.portals[h.portal]
		h.proved = h.proved && listening
		h.lingers = h.lingers && listening
		if listening && h.reach() != nil && (h.impatient || !e.refuses(h)) {
			h.end()
		}
	}
	e.changed.Broadcast()
}

// reach the export; the engine's mutex is held.
func (h *Host) reach() error {
	if h.gone {
		return ErrDisconnected
	}
	if _, open := h.e.portals[h.portal]; !open {
		return fmt.Errorf("%w: nobody listens on %s", ErrRefused, PortalKey(h.portal))
	}
	x, ok := h.e.exports[h.nqn]
	if !ok || !slices.Contains(x.Hosts, h.host) && !h.lingers {
		return fmt.Errorf("%w: %s does not admit %s", ErrRefused, h.nqn, h.host)
	}
	return h.prove(x)
}

// prove that both have the keys of the export, once in each connection.
func (h *Host) prove(x engine.Export) error {
	wanted, asked := x.Authentication[h.host]
	if asked && !h.proved && h.keys != wanted.Keys {
		return fmt.Errorf("%w: %s and %s do not have the same keys", ErrRefused, h.nqn, h.host)
	}
	if !h.proved {
		h.e.controllers++
		h.controller = h.e.controllers
	}
	h.proved = true
	return nil
}

// await the target; the engine's mutex is held.
func (h *Host) await() error {
	for {
		_, listening := h.e.portals[h.portal]
		switch {
		case h.gone:
			return ErrDisconnected
		case h.ctx.Err() != nil:
			return h.ctx.Err()
		case listening && !h.e.refuses(h):
			return h.reach()
		}
		h.e.changed.Wait()
	}
}

// Export that the host sees.
func (h *Host) Export() (engine.Export, error) {
	h.e.mu.Lock()
	defer h.e.mu.Unlock()
	if err := h.reach(); err != nil {
		return engine.Export{}, err
	}
	return h.e.gatherExport(h.nqn), nil
}

// SizeBytes of a volume as the host sees it.
func (h *Host) SizeBytes(id engine.ID) (int64, error) {
	h.e.mu.Lock()
	defer h.e.mu.Unlock()
	v, err := h.namespace(id)
	if err != nil {
		return 0, err
	}
	return v.sizeBytes, nil
}

func (h *Host) namespace(id engine.ID) (*data, error) {
	if err := h.reach(); err != nil {
		return nil, err
	}
	its := func(ns engine.Namespace) bool { return ns.Volume == id }
	if !slices.ContainsFunc(h.e.exports[h.nqn].Namespaces, its) {
		return nil, fmt.Errorf("volume %s in %s: %w", id, h.nqn, engine.ErrNotFound)
	}
	_, v, err := h.e.find(id, volumesOf)
	return v, err
}

// ReadAt reads from a volume.
func (h *Host) ReadAt(id engine.ID, p []byte, off int64) (int, error) {
	h.e.mu.Lock()
	defer h.e.mu.Unlock()
	if err := h.await(); err != nil {
		return 0, err
	}
	v, err := h.namespace(id)
	if err != nil {
		return 0, err
	}
	return v.eachBlock(p, off, func(n int64, part []byte, at int64) error {
		clear(part)
		if b := v.blocks[n]; b != nil {
			copy(part, b[at:])
		}
		return nil
	})
}

// WriteAt writes to a volume. It fails with engine.ErrNoSpace when the pool is full.
func (h *Host) WriteAt(id engine.ID, p []byte, off int64) (int, error) {
	h.e.mu.Lock()
	defer h.e.mu.Unlock()
	if err := h.await(); err != nil {
		return 0, err
	}
	v, err := h.namespace(id)
	if err != nil {
		return 0, err
	}
	pool, _, err := h.e.find(id, volumesOf)
	if err != nil {
		return 0, err
	}
	free := pool.device.free()
	return v.eachBlock(p, off, func(n int64, part []byte, at int64) error {
		if free < BlockBytes {
			return engine.ErrNoSpace
		}
		free -= BlockBytes
		changed := &block{}
		if b := v.blocks[n]; b != nil {
			*changed = *b
		}
		copy(changed[at:], part)
		v.blocks[n] = changed
		return nil
	})
}

// eachBlock calls do for the part of p that lies in each block, until the volume's end.
func (d *data) eachBlock(p []byte, off int64, do func(n int64, part []byte, at int64) error) (int, error) {
	done := 0
	for done < len(p) {
		pos := off + int64(done)
		if pos >= d.sizeBytes {
			return done, io.EOF
		}
		at := pos % BlockBytes
		length := min(int64(len(p)-done), BlockBytes-at, d.sizeBytes-pos)
		if err := do(pos/BlockBytes, p[done:done+int(length)], at); err != nil {
			return done, err
		}
		done += int(length)
	}
	return done, nil
}
