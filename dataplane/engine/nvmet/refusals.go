// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/go-logr/logr"

	"github.com/weft-storage/weft/dataplane/device"
)

const (
	// refusedFor so long a dismissed host is refused at most, and maxRefusing is how many subsystems refuse hosts: a
	// node that was cut off is dealt with by then, and each of them takes some memory of the kernel.
	refusedFor  = 7 * 24 * time.Hour
	maxRefusing = 1024
	// refusalsFile in the state folder has them for the time after a reboot.
	refusalsFile = "refused-hosts.json"
)

// refusal of hosts that were dismissed from a subsystem.
type refusal struct {
	// Hosts by their NQNs, and since when each is refused.
	Hosts map[string]time.Time `json:"hosts"`
}

// latest is when a host was dismissed last.
func (r refusal) latest() time.Time {
	return slices.MaxFunc(slices.Collect(maps.Values(r.Hosts)), time.Time.Compare)
}

// refusals of this node, with what is to be known to add to them.
type refusals struct {
	host  *host
	byNQN map[string]refusal
	// listed are the hosts of each subsystem, by its NQN, in configfs.
	listed  map[string][]string
	changed bool
}

// refusals that are on record. Without the file, or if it is damaged, they are those that configfs has.
func (h *host) refusals(ctx context.Context) (*refusals, error) {
	r := &refusals{host: h, byNQN: map[string]refusal{}}
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
	return r, r.look()
}

// adopt the hosts that subsystems refuse, as if that began now.
func (r *refusals) adopt() error {
	all, err := r.host.subsystems()
	if err != nil {
		return err
	}
	r.byNQN = map[string]refusal{}
	for _, s := range all {
		r.add(s.nqn, s.refused)
	}
	return nil
}

func (r *refusals) add(nqn string, hosts []string) {
	if len(hosts) == 0 {
		return
	}
	is := refusal{Hosts: maps.Clone(r.byNQN[nqn].Hosts)}
	if is.Hosts == nil {
		is.Hosts = map[string]time.Time{}
	}
	for _, host := range hosts {
		is.Hosts[host] = time.Now().UTC()
	}
	r.byNQN[nqn] = is
	r.changed = true
}

// look which hosts configfs lists now.
func (r *refusals) look() error {
	r.listed = map[string][]string{}
	nqns, err := names(r.host.config("subsystems"))
	if err != nil {
		return fmt.Errorf("list subsystems: %w", err)
	}
	for _, nqn := range nqns {
		r.listed[nqn], err = names(r.host.config("subsystems", nqn, "allowed_hosts"))
		if err != nil && !isMissing(err) {
			return fmt.Errorf("list the hosts of %s: %w", nqn, err)
		}
	}
	return nil
}

func (h *host) refusalsFile() string { return filepath.Join(h.stateDir, refusalsFile) }

// of a subsystem: the hosts that it refuses, in order.
func (r *refusals) of(nqn string) []string { return sortedKeys(r.byNQN[nqn].Hosts) }

// all hosts that the subsystem admits are to be refused.
func (r *refusals) all(s *subsystem) bool {
	return len(s.hosts) > 0 && len(without(s.hosts, r.of(s.nqn))) == 0
}

// only says that a subsystem in configfs admits nobody, and refuses somebody.
func (r *refusals) only(nqn string) bool {
	return len(r.listed[nqn]) > 0 && len(without(r.listed[nqn], r.of(nqn))) == 0
}

// dismiss those hosts of a subsystem that do not stay, as far as they can be refused.
func (r *refusals) dismiss(s *subsystem, stay []string) {
	if s == nil {
		return
	}
	gone := slices.DeleteFunc(without(s.hosts, stay), func(host string) bool { return !r.canRefuse(s.nqn, host) })
	r.add(s.nqn, without(gone, r.of(s.nqn)))
}

// canRefuse a host of a subsystem: not without NVME_TARGET_AUTH, nor one that another subsystem lists, because its key
// is the same there.
func (r *refusals) canRefuse(nqn, host string) bool {
	if _, err := os.Stat(r.host.config("hosts", host, hostKey)); err != nil {
		return false
	}
	for other, hosts := range r.listed {
		if other != nqn && slices.Contains(hosts, host) {
			return false
		}
	}
	return true
}

// admit hosts, which are refused nowhere any more.
func (r *refusals) admit(hosts []string) {
	for nqn, is := range r.byNQN {
		for _, host := range hosts {
			if _, there := is.Hosts[host]; there {
				delete(is.Hosts, host)
				r.changed = true
			}
		}
		if len(is.Hosts) == 0 {
			r.forget(nqn)
		}
	}
}

// forget what a subsystem refuses.
func (r *refusals) forget(nqn string) {
	delete(r.byNQN, nqn)
	r.changed = true
}

// expire hosts that were refused long enough, and answer the subsystems that refuse nobody else, or of which there are
// too many.
func (r *refusals) expire() []string {
	nqns := slices.SortedFunc(maps.Keys(r.byNQN), func(a, b string) int {
		return cmp.Or(r.byNQN[a].latest().Compare(r.byNQN[b].latest()), cmp.Compare(a, b))
	})
	var old []string
	for i, nqn := range nqns {
		if i < len(nqns)-maxRefusing || time.Since(r.byNQN[nqn].latest()) > refusedFor {
			old = append(old, nqn)
			continue
		}
		maps.DeleteFunc(r.byNQN[nqn].Hosts, func(_ string, since time.Time) bool {
			ended := time.Since(since) > refusedFor
			r.changed = r.changed || ended
			return ended
		})
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

// write the file as a whole, and durably.
func (r *refusals) write() error {
	text, err := json.Marshal(r.byNQN)
	if err != nil {
		return err
	}
	file := r.host.refusalsFile()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return device.ReplaceFile(file, text)
}
