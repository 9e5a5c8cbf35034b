// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
)

const (
	// retiredQueues is what attr_qid_max of a subsystem has whose hosts were dismissed where it stands: the most that
	// the kernel takes (NVMET_NR_QUEUES in drivers/nvme/target/nvmet.h), and more than an export may have.
	retiredQueues = v1alpha1.MaxIOQueues + 1
	// refusedFor so long a dismissed host is refused, and maxRefusing is how many subsystems do nothing else: a node
	// that was cut off is dealt with by then, and each of them takes some memory of the kernel.
	refusedFor  = 7 * 24 * time.Hour
	maxRefusing = 1024
	// refusalsFile in the state folder has them for the time after a reboot.
	refusalsFile = "refused-hosts.json"
)

// unusableKey is a DH-HMAC-CHAP key with a wrong checksum. The kernel takes it, and when its host connects, it fails to
// set up authentication and answers with an internal error, which does not say "do not retry".
var unusableKey = "DHHC-1:00:" + strings.Repeat("A", 48) + ":"

var errNotRefused = errors.New("a dismissed host cannot be refused so that it keeps trying")

// refusal of hosts that were dismissed from a subsystem.
type refusal struct {
	Hosts []string  `json:"hosts"`
	Since time.Time `json:"since"`
}

// refusals of this node, with what is to be known to add to them.
type refusals struct {
	host  *host
	byNQN map[string]refusal
	// admissions are the subsystems, by NQN, of which configfs lists a host.
	admissions map[string][]string
	changed    bool
}

// refusals that are on record. Without the file, or if it is damaged, they are those that configfs has.
func (h *host) refusals(ctx context.Context) (*refusals, error) {
	r := &refusals{host: h, byNQN: map[string]refusal{}, admissions: map[string][]string{}}
	text, err := os.ReadFile(h.refusalsFile())
	if err == nil {
		err = json.Unmarshal(text, &r.byNQN)
	}
	if err != nil && !isMissing(err) {
		logr.FromContextOrDiscard(ctx).Info("Hosts that were dismissed before a reboot may be told to give up", "reason", err.Error())
	}
	if err != nil {
		if err := r.adopt(); err != nil {
			return nil, err
		}
	}
	nqns, err := names(h.config("subsystems"))
	if err != nil {
		return nil, fmt.Errorf("list subsystems: %w", err)
	}
	for _, nqn := range nqns {
		hosts, err := names(h.config("subsystems", nqn, "allowed_hosts"))
		if err != nil {
			return nil, fmt.Errorf("list the hosts of %s: %w", nqn, err)
		}
		for _, host := range hosts {
			r.admissions[host] = append(r.admissions[host], nqn)
		}
	}
	return r, nil
}

// adopt the subsystems that refuse hosts, as if they began now.
func (r *refusals) adopt() error {
	all, err := r.host.subsystems()
	if err != nil {
		return err
	}
	r.byNQN = map[string]refusal{}
	for _, s := range all {
		if s.onlyRefuses() {
			r.byNQN[s.nqn] = refusal{Hosts: s.refused, Since: time.Now().UTC()}
			r.changed = true
		}
	}
	return nil
}

func (h *host) refusalsFile() string { return filepath.Join(h.stateDir, refusalsFile) }

// of a subsystem: the hosts that it refuses.
func (r *refusals) of(nqn string) []string { return r.byNQN[nqn].Hosts }

// all hosts that the subsystem admits are to be refused.
func (r *refusals) all(s *subsystem) bool {
	return s.isKnown() && len(without(s.hosts, r.of(s.nqn))) == 0
}

// dismiss those hosts of a subsystem that do not stay, as far as they can be refused.
func (r *refusals) dismiss(s *subsystem, stay []string) {
	if s == nil {
		return
	}
	is := r.byNQN[s.nqn]
	gone := slices.DeleteFunc(without(s.hosts, stay), func(host string) bool { return !r.canRefuse(s, host) })
	if gone = without(gone, is.Hosts); len(gone) > 0 {
		r.byNQN[s.nqn] = refusal{Hosts: without(append(gone, is.Hosts...), nil), Since: time.Now().UTC()}
		r.changed = true
	}
}

// canRefuse a host: not before Linux 6.1, nor without NVME_TARGET_AUTH, nor one that another subsystem admits, because
// its key is the same there.
func (r *refusals) canRefuse(s *subsystem, host string) bool {
	_, err := os.Stat(r.host.config("hosts", host, "dhchap_key"))
	return err == nil && s.queues != 0 && slices.Equal(r.admissions[host], []string{s.nqn})
}

// admit hosts, which are refused nowhere any more.
func (r *refusals) admit(hosts []string) {
	for nqn, is := range r.byNQN {
		left := without(is.Hosts, hosts)
		if len(left) == len(is.Hosts) {
			continue
		}
		r.changed = true
		if r.byNQN[nqn] = (refusal{Hosts: left, Since: is.Since}); len(left) == 0 {
			delete(r.byNQN, nqn)
		}
	}
}

// forget a subsystem, whose hosts cannot be refused.
func (r *refusals) forget(nqn string) {
	delete(r.byNQN, nqn)
	r.changed = true
}

// expired are the subsystems that refused long enough, or of which there are too many. They are forgotten.
func (r *refusals) expired() []string {
	byAge := slices.SortedFunc(maps.Keys(r.byNQN), func(a, b string) int { return r.byNQN[a].Since.Compare(r.byNQN[b].Since) })
	var old []string
	for i, nqn := range byAge {
		if i < len(byAge)-maxRefusing || time.Since(r.byNQN[nqn].Since) > refusedFor {
			old = append(old, nqn)
			delete(r.byNQN, nqn)
			r.changed = true
		}
	}
	return old
}

// save what changed. Hosts are dismissed even if that fails: the kernel refuses them until the node reboots.
func (r *refusals) save(ctx context.Context) {
	if !r.changed {
		return
	}
	r.changed = false
	if err := r.write(); err != nil {
		logr.FromContextOrDiscard(ctx).Info("Dismissed hosts may be told to give up after a reboot", "reason", err.Error())
	}
}

func (r *refusals) write() error {
	text, err := json.Marshal(r.byNQN)
	if err != nil {
		return err
	}
	file := r.host.refusalsFile()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(file+".new", os.O_CREATE|os.O_WRONLY|os.O_TRUNC|unix.O_DSYNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// isRefused says whether a host has the key with which nobody connects.
func (h *host) isRefused(host string) (bool, error) {
	key, err := h.readAttr(h.config("hosts", host, "dhchap_key"))
	if isMissing(err) {
		return false, nil // without NVME_TARGET_AUTH
	}
	return key == unusableKey, err
}

// retire a subsystem: disconnect its hosts, refuse them from then on, and disable its namespaces, which waits for
// commands in flight. It stays on its ports all the time, so no host meets a port that does not know it. What is left
// of an old controller may still have commands in its receive buffer, so the namespaces are not enabled again. As long
// as one is enabled, this is not done, and begins from the start. It fails with errNotRefused when the kernel does not
// take the key: then the subsystem has to be removed, and its hosts are told to give up.
func (h *host) retire(s *subsystem) error {
	dir := h.config("subsystems", s.nqn)
	// Each write of it makes the kernel disconnect all hosts.
	disconnect := func() error { return h.writeAttr(filepath.Join(dir, "attr_qid_max"), strconv.Itoa(retiredQueues)) }
	if err := disconnect(); err != nil {
		return err
	}
	for _, host := range s.hosts {
		if err := h.spoilKeys(host); err != nil {
			return fmt.Errorf("%w: host %s: %w", errNotRefused, host, err)
		}
	}
	if err := disconnect(); err != nil {
		return err
	}
	for nsid, ns := range s.namespaces {
		if err := h.writeAttr(filepath.Join(dir, "namespaces", strconv.FormatUint(uint64(nsid), 10), "enable"), "0"); err != nil {
			return fmt.Errorf("namespace %d: %w", nsid, err)
		}
		ns.enabled = false
		s.namespaces[nsid] = ns
	}
	s.retired, s.refused, s.hosts, s.keys = true, without(slices.Concat(s.refused, s.hosts), nil), nil, nil
	return nil
}

// retireForGood leaves nothing of a subsystem but that it refuses its hosts.
func (h *host) retireForGood(s *subsystem) error {
	if err := h.retire(s); err != nil {
		return fmt.Errorf("dismiss the hosts of %s: %w", s.nqn, err)
	}
	for _, nsid := range sortedKeys(s.namespaces) {
		dir := h.config("subsystems", s.nqn, "namespaces", strconv.FormatUint(uint64(nsid), 10))
		if err := os.Remove(dir); err != nil && !isMissing(err) {
			return fmt.Errorf("namespace %d of %s: %w", nsid, s.nqn, err)
		}
	}
	return nil
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
	links, err := filepath.Glob(h.config("subsystems", "*", "allowed_hosts", host))
	links = slices.DeleteFunc(links, func(link string) bool { return link == h.config("subsystems", nqn, "allowed_hosts", host) })
	return len(links) > 0, err
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
		links, err := filepath.Glob(h.config("subsystems", "*", "allowed_hosts", host))
		if err != nil {
			return err
		}
		for _, link := range append(links, dir) {
			if err := os.Remove(link); err != nil {
				return err
			}
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

// forgetRefusals that were long enough, and save the others. What fails here keeps nobody from being dismissed.
func (e *Engine) forgetRefusals(ctx context.Context, past *refusals) {
	for _, nqn := range past.expired() {
		is, err := e.subsystem(nqn)
		if err == nil && is != nil && is.onlyRefuses() {
			err = e.apply(ctx, *is, removeSteps(is))
		}
		if err != nil {
			logr.FromContextOrDiscard(ctx).Info("A subsystem that refused hosts stays until the node reboots", "nqn", nqn, "reason", err.Error())
		}
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
		want := subsystem{nqn: nqn, serial: "refused", model: "weft", queues: retiredQueues, refused: past.of(nqn)}
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
