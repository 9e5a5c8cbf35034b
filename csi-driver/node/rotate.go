// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
)

// While the keys of an attachment are rotated, its NvmfReplica lists two hosts of it, with an identity each. This node
// is connected as the former, and connects as the next as well: to the same subsystem, so that the kernel has one
// device with two paths. Once the next one carries the I/O by itself, it takes the place of the former in the record.
// Then the former's connections are removed, as those of portals that are no longer listed, and the former is reported
// as retired until the NvmfReplica does not list it. A restart goes on from what is in the record.
//
// A mirror knows its legs by their identities, so the CSI controller rotates no mirrored volume.

// reached is a replica of a volume that is not mirrored, with the host NQN by which this node connects to it: the one
// that it is staged with, if that may still connect, else the latest that may. It fails with errNotServed.
func (s *Service) reached(volume string, at attached, r *v1alpha1.NvmfReplica) (replica, string, error) {
	only := replica{Name: r.Name, NQN: r.Spec.SubsystemNQN, NGUID: nguidOf(r.Spec.UUID), Portals: r.Paths()}
	host := v1alpha1.HostNQN(at.Attachment)
	for _, h := range r.HostsOf(at.Attachment) {
		if host = h.NQN; r.Admitted(host) == nil {
			host = v1alpha1.HostNQN(at.Attachment)
		}
	}
	was, err := s.records().get(volume)
	if err != nil && !unrecorded(err) {
		return only, host, err
	}
	if err == nil && was.Attachment == at.Attachment && !was.Mirrored && was.only().id() == only.id() && r.Admitted(was.host(was.only())) != nil {
		host = was.host(was.only())
		only.Next, only.Former, only.Beside = was.only().Next, was.only().Former, was.only().Beside
	} else {
		only.Former = formerOf(r, at.Attachment, host)
	}
	only.Identity = at.identityOf(host)
	if err := served(r, host); err != nil {
		return only, host, err
	}
	return only.sealedFor(r, host), host, nil
}

// identityOf a host NQN, as it is recorded for a volume that is not mirrored.
func (a attached) identityOf(host string) string {
	if identity, _ := v1alpha1.AttachmentOfHost(host); identity != a.Attachment {
		return identity
	}
	return ""
}

// formerOf an attachment: the identity that a replica lists before the latest, which the host is; empty when it lists
// none, or the host is not the latest.
func formerOf(r *v1alpha1.NvmfReplica, attachment, host string) string {
	all := r.HostsOf(attachment)
	if len(all) < 2 || all[len(all)-1].NQN != host {
		return ""
	}
	identity, _ := v1alpha1.AttachmentOfHost(all[len(all)-2].NQN)
	return identity
}

// turned is a replica as it is recorded, with what its object says of its identities now.
func (a attached) turned(r replica, is *v1alpha1.NvmfReplica) replica {
	if r.Former != "" && is.Listed(v1alpha1.HostNQN(r.Former)) == nil {
		r.Former, r.Beside = "", false
	}
	if a.Mirrored {
		return r
	}
	latest := is.HostOf(a.Attachment)
	if latest == nil || latest.NQN == a.host(r) {
		r.Next = ""
		return r
	}
	if identity, _ := v1alpha1.AttachmentOfHost(latest.NQN); is.Admitted(latest.NQN) != nil || r.Next != identity {
		r.Next = ""
		if is.Admitted(latest.NQN) != nil {
			r.Next = identity
		}
	}
	return r
}

// rotateKeys of the staged volumes that are to be connected to as another host.
func (s *Service) rotateKeys(ctx context.Context) []error {
	volumes, err := s.records().volumes()
	errs := []error{err}
	for _, volume := range volumes {
		at, err := s.records().get(volume)
		if err != nil || at.Mirrored || at.only().Next == "" {
			continue // lostPaths says what is wrong with a record
		}
		_, err = call(ctx, s, "rotating the keys", volume, func(ctx context.Context) (*struct{}, error) {
			return nil, s.rotate(ctx, volume)
		})
		if err != nil && !busy(err) {
			errs = append(errs, fmt.Errorf("volume %s: rotate its keys: %w", volume, err))
		}
	}
	return errs
}

// rotate the keys of a volume: connect as the next host, and let it take the former's place once it carries the I/O.
// It does nothing when the objects say something else by now, and fails with errKeys, ErrNoMultipath, or as Connect
// does.
func (s *Service) rotate(ctx context.Context, volume string) error {
	at, err := s.records().get(volume)
	if err != nil || at.Mirrored || at.only().Next == "" {
		return ignoreMissing(err)
	}
	was := at.only()
	is, err := s.readReplica(ctx, was.Name)
	if err != nil {
		return err
	}
	host := v1alpha1.HostNQN(was.Next)
	latest := is.HostOf(at.Attachment)
	same := latest != nil && latest.NQN == host && nguidOf(is.Spec.UUID) == was.NGUID && is.Spec.SubsystemNQN == was.NQN
	if !same || is.Admitted(host) == nil || len(is.Paths()) == 0 {
		return nil
	}
	next := was
	next.Identity, next.Next, next.Former, next.Portals = was.Next, "", "", is.Paths()
	next.Former, _ = v1alpha1.AttachmentOfHost(at.host(was))
	next.Beside = true
	next = next.sealedFor(is, host)
	c, err := s.connection(at, next)
	if err != nil {
		return err
	}
	c.Beside = at.host(was)
	if carries, err := s.Initiator.Carries(c, next.id()); err != nil {
		return err
	} else if !carries {
		if err := s.Initiator.Connect(ctx, c); err != nil {
			return err
		}
		if carries, err := s.Initiator.Carries(c, next.id()); err != nil || !carries {
			return err // the kernel has not found the namespace yet: another time
		}
	}
	logr.FromContextOrDiscard(ctx).Info("The volume is connected with new keys", "volume", volume, "replica", was.Name, "former", c.Beside, "host", c.HostNQN)
	return ignoreMissing(s.editRecord(volume, at.Attachment, func(now *attached) bool {
		i := slices.IndexFunc(now.Replicas, func(x replica) bool { return x.id() == was.id() && x.Next == was.Next })
		if i < 0 {
			return false
		}
		now.Replicas[i] = next
		return true
	}))
}

// strays are the controllers of a volume that is not mirrored that were made as another host of its attachment than
// those that it is connected as, once I/O does not need them.
func (s *Service) strays(at attached) ([]fabrics.Controller, error) {
	if at.Mirrored || at.only().Next != "" {
		return nil, nil
	}
	c := at.connection(at.only())
	controllers, err := s.Initiator.Controllers(c.NQN)
	if err != nil || !slices.ContainsFunc(controllers, func(is fabrics.Controller) bool { return is.HostNQN != c.HostNQN }) {
		return nil, err
	}
	if carries, err := s.Initiator.Carries(c, at.only().id()); err != nil || !carries {
		if errors.Is(err, fabrics.ErrNoMultipath) {
			err = nil
		}
		return nil, err
	}
	return slices.DeleteFunc(controllers, func(is fabrics.Controller) bool { return is.HostNQN == c.HostNQN }), nil
}

// hostsOf an attachment: the host NQNs that this node connects to a volume as, and those whose connections may not be
// removed yet.
func (a attached) hostsOf() []string {
	hosts := []string{v1alpha1.HostNQN(a.Attachment)}
	for _, r := range a.Replicas {
		for _, identity := range []string{r.Identity, r.Next, r.Former} {
			if identity != "" {
				hosts = append(hosts, v1alpha1.HostNQN(identity))
			}
		}
	}
	return hosts
}

const (
	// IdentitiesInterval is between looks at the identities that this node has retired.
	IdentitiesInterval = 15 * time.Second
	// IdentitiesFieldManager is the field manager of the condition.
	IdentitiesFieldManager = "weft-csi-node-identities"
	// mostRetired identities are reported at once: a condition is no place for more. The others follow when these are
	// dismissed.
	mostRetired = 256
)

// RetiredIdentities of the staged volumes, sorted: this node does not connect as those any more, and has no connection
// left. Their NvmfReplicas still list them.
func (s *Service) RetiredIdentities() ([]string, error) {
	volumes, err := s.records().volumes()
	if err != nil {
		return nil, err
	}
	var retired []string
	for _, volume := range volumes {
		at, err := s.records().get(volume)
		if err != nil {
			continue // lostPaths says so
		}
		for _, r := range at.Replicas {
			if r.Former == "" {
				continue
			}
			left, err := s.Initiator.Left(r.NQN, v1alpha1.HostNQN(r.Former))
			if err != nil {
				return nil, err
			}
			if left {
				retired = append(retired, r.Former)
			}
		}
	}
	slices.Sort(retired)
	return retired[:min(len(retired), mostRetired)], nil
}

// IdentitiesReporter tells the API which identities this node has retired, in the Node's condition
// v1alpha1.ConditionIdentitiesRetired.
type IdentitiesReporter struct {
	// Retired identities.
	Retired func() ([]string, error)
	// Writer of the condition.
	Writer *ConditionWriter
	// Clock for the looks.
	Clock clock.WithTicker
}

// Run looks at once, and again every IdentitiesInterval, until the context ends. A look that fails leaves the condition
// as it is.
func (r *IdentitiesReporter) Run(ctx context.Context) error {
	log := logr.FromContextOrDiscard(ctx).WithName("identities")
	lookAgain(ctx, r.Clock, func() time.Duration {
		if err := r.Look(ctx); err != nil && ctx.Err() == nil {
			log.Error(err, "Cannot report the identities that are retired; trying again")
		}
		return IdentitiesInterval
	})
	return nil
}

// Look once, and write what is found.
func (r *IdentitiesReporter) Look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	retired, err := r.Retired()
	switch {
	case err != nil:
		return err
	case len(retired) == 0:
		return r.Writer.Write(ctx, corev1.ConditionFalse, v1alpha1.ReasonAsExpected, "")
	}
	return r.Writer.Write(ctx, corev1.ConditionTrue, v1alpha1.ReasonKeysRotated, strings.Join(retired, " "))
}
