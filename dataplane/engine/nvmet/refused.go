// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
)

const (
	// retiredIDs is what attr_cntlid_max of a subsystem has whose hosts were dismissed where it stands. A write of it
	// disturbs nobody.
	retiredIDs = lastControllerID - 1
	// connectsEnd is how long the kernel may take to set up a controller: one that it began before the host's key was
	// spoiled is there afterwards, and is disconnected with the others.
	connectsEnd = 20 * time.Millisecond
)

// unusableKey is a DH-HMAC-CHAP key with a wrong checksum. The kernel takes it, and when its host connects, it fails to
// set up authentication and answers with an internal error, which does not say "do not retry".
var unusableKey = "DHHC-1:00:" + strings.Repeat("A", 48) + ":"

// isRefused says whether a host has the key with which nobody connects.
func (h *host) isRefused(host string) (bool, error) {
	key, err := h.readAttr(h.config("hosts", host, hostKey))
	if isMissing(err) {
		return false, nil // without NVME_TARGET_AUTH
	}
	return key == unusableKey, err
}

// isRetired says whether the hosts of a subsystem were dismissed where it stands.
func (h *host) isRetired(dir string) (bool, error) {
	last, err := h.readAttr(filepath.Join(dir, "attr_cntlid_max"))
	if isMissing(err) {
		return false, nil // before Linux 5.7
	}
	return last == strconv.Itoa(retiredIDs), err
}

// retireAll subsystems whose hosts are all dismissed: refuse the hosts from now on, disconnect them, and disable the
// namespaces, which waits for commands in flight. What is left of an old controller may still have commands in its
// receive buffer, so the namespaces are not enabled again. As long as one is enabled, this is not done, and begins from
// the start. A subsystem whose hosts cannot be refused stays as it is. It answers what failed, by NQN.
func (e *Engine) retireAll(ctx context.Context, nqns []string, past *refusals) map[string]error {
	failed := map[string]error{}
	var all []*subsystem
	for _, nqn := range nqns {
		s, err := e.subsystem(nqn)
		if err == nil {
			err = e.unservedCopies(s)
		}
		if err != nil {
			failed[nqn] = err
			continue
		}
		past.dismiss(s, nil)
		if s != nil && past.all(s) {
			all = append(all, s)
		}
	}
	past.save(ctx)
	all = slices.DeleteFunc(all, func(s *subsystem) bool {
		err := e.spoil(s)
		if err != nil {
			logr.FromContextOrDiscard(ctx).Info("Dismissed hosts are told to give up", "nqn", s.nqn, "reason", err.Error())
			past.forget(s.nqn)
		}
		return err != nil
	})
	if len(all) == 0 {
		past.save(ctx)
		return failed
	}
	select {
	case <-ctx.Done():
	case <-time.After(connectsEnd):
	}
	open := func() {}
	if slices.ContainsFunc(all, func(s *subsystem) bool { return len(s.refused) > 0 || s.retired }) {
		open = e.closeAll(ctx) // a host that is refused already, or was cut off before, may try again just now
	}
	errs := map[string]error{}
	for _, s := range all {
		errs[s.nqn] = e.cutOff(s)
	}
	open()
	for _, s := range all {
		if err := errors.Join(errs[s.nqn], e.disable(s)); err != nil {
			failed[s.nqn] = fmt.Errorf("dismiss the hosts of %s: %w", s.nqn, err)
		}
	}
	return failed
}

// closeAll portals for new connections. If they cannot be listed, that is logged.
func (e *Engine) closeAll(ctx context.Context) (open func()) {
	ports, err := e.ports()
	if err != nil {
		logr.FromContextOrDiscard(ctx).Info("Dismissed hosts may be told to give up", "reason", err.Error())
	}
	var portals []v1alpha1.Portal
	for _, p := range ports {
		portals = append(portals, p.address)
	}
	return e.guard.close(ctx, portals)
}

// spoil the keys of a subsystem's hosts. It is marked before: until its namespaces are disabled, they count as
// admitted.
func (h *host) spoil(s *subsystem) error {
	if err := h.writeAttr(h.config("subsystems", s.nqn, "attr_cntlid_max"), strconv.Itoa(retiredIDs)); err != nil {
		return err
	}
	for _, host := range s.hosts {
		if err := h.spoilKeys(host); err != nil {
			return fmt.Errorf("host %s: %w", host, err)
		}
	}
	return nil
}

// cutOff the hosts of a subsystem: a port that stops serving it disconnects them, and serves it again at once, so that
// they are refused there. The next attempt of a host that was connected comes seconds later.
func (h *host) cutOff(s *subsystem) error {
	var errs []error
	for _, port := range s.ports {
		err := os.Remove(h.link(port, s.nqn))
		if err == nil {
			err = os.Symlink(h.config("subsystems", s.nqn), h.link(port, s.nqn))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// disable the namespaces of a subsystem. That waits for the I/O under way: for as long as a drive hangs, so nothing may
// be closed meanwhile that hosts of other drives need.
func (h *host) disable(s *subsystem) error {
	var errs []error
	for nsid := range s.namespaces {
		if err := h.writeAttr(h.space(s.nqn, nsid, "enable"), "0"); err != nil {
			errs = append(errs, fmt.Errorf("namespace %d: %w", nsid, err))
		}
	}
	return errors.Join(errs...)
}

func (h *host) space(nqn string, nsid uint32, elem ...string) string {
	return h.config(append([]string{"subsystems", nqn, "namespaces", strconv.FormatUint(uint64(nsid), 10)}, elem...)...)
}

// refuse a host in a subsystem that no port serves yet. It is left out where that cannot be: where the kernel does not
// take the key, or another subsystem admits the host.
func (h *host) refuse(nqn, host string) error {
	dir := h.config("hosts", host)
	err := os.Mkdir(dir, 0o755)
	if os.IsExist(err) {
		var admitted bool
		if admitted, err = h.admittedElsewhere(nqn, host); err == nil && admitted {
			return nil
		}
	}
	if err != nil {
		return err
	}
	if err := h.spoilKeys(host); err != nil {
		return h.forgetHost(host)
	}
	return os.Symlink(dir, h.config("subsystems", nqn, "allowed_hosts", host))
}

// admittedElsewhere says whether another subsystem admits a host.
func (h *host) admittedElsewhere(nqn, host string) (bool, error) {
	if refused, err := h.isRefused(host); refused || err != nil {
		return false, err
	}
	others, err := h.othersWith(nqn, host)
	return len(others) > 0, err
}

// othersWith lists the other subsystems, by NQN, in which configfs lists a host. There are none if the host has no
// folder.
func (h *host) othersWith(nqn, host string) ([]string, error) {
	if _, err := os.Stat(h.config("hosts", host)); isMissing(err) {
		return nil, nil
	}
	links, err := filepath.Glob(h.config("subsystems", "*", "allowed_hosts", host))
	var others []string
	for _, link := range links {
		if other := filepath.Base(filepath.Dir(filepath.Dir(link))); other != nqn {
			others = append(others, other)
		}
	}
	return others, err
}

// admit a host, with its keys if it has some: those before it is linked, so that it never connects without. One that
// another subsystem refuses is not refused there any more, because it has one key for all.
func (h *host) admit(nqn, host string, a engine.Authentication) error {
	dir := h.config("hosts", host)
	refused, err := h.isRefused(host)
	if err != nil {
		return err
	}
	if refused {
		others, err := h.othersWith(nqn, host)
		if err != nil {
			return err
		}
		for _, other := range others {
			if err := os.Remove(h.config("subsystems", other, "allowed_hosts", host)); err != nil {
				return err
			}
		}
		if err := os.Remove(dir); err != nil {
			return err
		}
	}
	// Keys that a process left which was killed before it had linked the host.
	if err := h.forgetHost(host); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !os.IsExist(err) {
		return err
	}
	if !a.Keys.IsZero() {
		if err := h.setKeys(host, a); err != nil {
			return errors.Join(err, h.forgetHost(host))
		}
	}
	return os.Symlink(dir, h.config("subsystems", nqn, "allowed_hosts", host))
}

// drop a host that has no connection any more: it is not admitted again, and nothing is done to the others. What the
// kernel has of its keys goes as well, unless another subsystem lists it.
func (h *host) drop(nqn, host string) error {
	if err := os.Remove(h.config("subsystems", nqn, "allowed_hosts", host)); err != nil && !isMissing(err) {
		return err
	}
	return h.forgetHost(host)
}

// level the ports: one that serves a subsystem which admits hosts, or soon will, serves all that refuse some; another
// one serves none, so that it does not listen. Hosts find nobody there, and try again. What fails here keeps nobody
// from being admitted or dismissed.
func (e *Engine) level(ctx context.Context, past *refusals, soon bool) {
	if err := e.levelPorts(ctx, past, soon); err != nil {
		logr.FromContextOrDiscard(ctx).Info("Dismissed hosts may be told to give up", "reason", err.Error())
	}
}

func (e *Engine) levelPorts(ctx context.Context, past *refusals, soon bool) error {
	if err := past.look(); err != nil {
		return err
	}
	ports, err := e.ports()
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range ports {
		if !p.finished() {
			continue
		}
		serves := soon || slices.ContainsFunc(p.listens, func(nqn string) bool { return !past.only(nqn) })
		changes := slices.DeleteFunc(sortedKeys(past.byNQN), func(nqn string) bool {
			return !past.only(nqn) || slices.Contains(p.listens, nqn) == serves
		})
		errs = append(errs, e.levelPort(ctx, p, changes, serves))
	}
	return errors.Join(errs...)
}

// levelPort has a port serve subsystems, or not. One is there with the listener: only several leave a window.
func (e *Engine) levelPort(ctx context.Context, p *port, nqns []string, serve bool) error {
	if len(nqns) > 1 {
		defer e.guard.close(ctx, []v1alpha1.Portal{p.address})()
	}
	var errs []error
	for _, nqn := range nqns {
		if serve {
			errs = append(errs, e.linkPort(p.id, nqn))
		} else {
			errs = append(errs, os.Remove(e.link(p.id, nqn)))
		}
	}
	return errors.Join(errs...)
}

// forgetRefusals that were long enough, and save the others. What fails here keeps nobody from being dismissed.
func (e *Engine) forgetRefusals(ctx context.Context, past *refusals) {
	for _, nqn := range past.expire() {
		is, err := e.subsystem(nqn)
		if err == nil && is != nil && is.onlyRefuses() {
			err = e.apply(ctx, *is, removeSteps(is))
		}
		if err != nil {
			logr.FromContextOrDiscard(ctx).Info("A subsystem that refuses hosts cannot be removed", "nqn", nqn, "reason", err.Error())
			continue
		}
		past.forget(nqn)
	}
	past.save(ctx)
}

// removeRefusing subsystems, which nobody can reach. They are made again with the first portal.
func (e *Engine) removeRefusing(ctx context.Context) error {
	all, err := e.subsystems()
	if err != nil {
		return err
	}
	for _, s := range all {
		if s.onlyRefuses() {
			if err := e.apply(ctx, *s, removeSteps(s)); err != nil {
				return err
			}
		}
	}
	return nil
}

// refuseAgain makes the subsystems that refused hosts before the machine was booted, or the last portal was closed, and
// finishes those that a killed process began. What fails here keeps no portal closed.
func (e *Engine) refuseAgain(ctx context.Context) error {
	past, err := e.refusals(ctx)
	if err != nil {
		return err
	}
	for _, nqn := range sortedKeys(past.byNQN) {
		is, err := e.subsystem(nqn)
		if err != nil {
			return err
		}
		if is != nil && len(is.hosts)+len(is.namespaces) > 0 {
			continue
		}
		want := subsystem{nqn: nqn, serial: "refused", model: "weft", queues: v1alpha1.DefaultMaxIOQueues, refused: past.of(nqn)}
		todo := makeSteps(want)
		if is != nil {
			todo = nil
			for _, host := range without(want.refused, is.refused) {
				todo = append(todo, step{do: refuseHost, host: host})
			}
		}
		if err := e.apply(ctx, want, todo); err != nil {
			logr.FromContextOrDiscard(ctx).Info("Dismissed hosts may be told to give up", "nqn", nqn, "reason", err.Error())
		}
	}
	return nil
}
