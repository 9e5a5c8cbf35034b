// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
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
// A mirror knows its legs by their subsystems, which stay the same: it does not notice. Its replicas are rotated one
// after the other, while they are in sync.

// reached is a replica of a volume that is not mirrored, with the host NQN by which this node connects to it: the one
// that it is staged with, if that may still connect, else the latest that may. It fails with errNotServed.
func (s *Service) reached(volume string, at attached, r *v1alpha1.NvmfReplica) (replica, string, error) {
	only := replica{Name: r.Name, NQN: r.Spec.SubsystemNQN, NGUID: nguidOf(r.Spec.UUID), Portals: r.Paths()}
	host := cmp.Or(admittedHost(r, at.Attachment), v1alpha1.HostNQN(at.Attachment))
	was, err := s.recorded(volume, at, r)
	if err != nil {
		return only, host, err
	}
	if was != nil {
		host, only = at.host(*was), only.connectedAs(*was)
	} else {
		only.Identity, only.Former = at.identityOf(host), formerOf(r, at.Attachment, host)
	}
	if err := served(r, host); err != nil {
		return only, host, err
	}
	return only.sealedFor(r, host), host, nil
}

// recorded is a replica as an attachment of its volume is staged with it, if the host that it has there may still
// connect; else nil.
func (s *Service) recorded(volume string, at attached, r *v1alpha1.NvmfReplica) (*replica, error) {
	was, err := s.records().get(volume)
	if unrecorded(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(was.Replicas, func(is replica) bool {
		return is.id() == fabrics.ID{NQN: r.Spec.SubsystemNQN, NGUID: nguidOf(r.Spec.UUID)}
	})
	if i < 0 || was.Attachment != at.Attachment || was.Mirrored != at.Mirrored || r.Admitted(was.host(was.Replicas[i])) == nil {
		return nil, nil
	}
	return &was.Replicas[i], nil
}

// connectedAs what is recorded of a replica.
func (r replica) connectedAs(was replica) replica {
	r.Identity, r.Next, r.Former, r.Beside = was.Identity, was.Next, was.Former, was.Beside
	return r
}

// admittedHost is the latest host of an attachment that may connect to a replica now; empty when none may.
func admittedHost(r *v1alpha1.NvmfReplica, attachment string) string {
	latest := ""
	for _, h := range r.HostsOf(attachment) {
		if r.Admitted(h.NQN) != nil {
			latest = h.NQN
		}
	}
	return latest
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
	latest := is.HostOf(a.Attachment)
	if latest == nil || latest.NQN == a.host(r) {
		r.Next = ""
		if r.Former == "" { // after a restore of the API, say: one that was dismissed is listed again
			r.Former = formerOf(is, a.Attachment, a.host(r))
		}
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
		if err != nil || !slices.ContainsFunc(at.Replicas, replica.turns) {
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

// turns tells whether a replica is to be connected to as another host.
func (r replica) turns() bool { return r.Next != "" }

// rotate the keys of a volume. It does nothing while the keeper of its mirror connects to a replica, or deletes its
// connections.
func (s *Service) rotate(ctx context.Context, volume string) error {
	m := s.mirrors.of(volume)
	if m != nil {
		if !m.legs.connecting.TryLock() {
			return nil // the next time
		}
		defer m.legs.connecting.Unlock()
	}
	at, err := s.records().get(volume)
	if err != nil || at.Mirrored && m == nil {
		return ignoreMissing(err)
	}
	var errs []error
	for _, r := range at.Replicas {
		if r.turns() {
			errs = append(errs, s.rotateReplica(ctx, volume, at, r))
		}
	}
	return errors.Join(errs...)
}

// rotateReplica connects to a replica as the next host, and lets that take the former's place once it carries the I/O.
// It does nothing when the objects say something else by now, and fails with errKeys, ErrNoMultipath, or as Connect
// does.
func (s *Service) rotateReplica(ctx context.Context, volume string, at attached, was replica) error {
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
		if carries, err = s.connectBeside(ctx, at, c, next.id()); err != nil || !carries {
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

// connectBeside connects as the next host, and tells whether that carries the I/O.
//
// To the keeper of a mirror, a leg with a live controller answers. So nothing is connected beside a host that does not.
// What does not carry the I/O goes again as soon as that host stops answering, which it would hide, or after
// legTimeout.
func (s *Service) connectBeside(ctx context.Context, at attached, c fabrics.Connection, id fabrics.ID) (carries bool, err error) {
	if !at.Mirrored {
		if err := s.Initiator.Connect(ctx, c); err != nil {
			return false, err
		}
		return s.Initiator.Carries(c, id)
	}
	if carries, err = s.connectLegBeside(ctx, c, id); carries {
		return true, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveUpTimeout)
	defer cancel()
	return false, errors.Join(err, s.Initiator.Settled(ctx, c.NQN),
		s.Initiator.GiveUp(ctx, c.NQN, func(is fabrics.Controller) bool { return is.HostNQN == c.HostNQN }))
}

// connectLegBeside connects to a leg of a mirror as the next host, and waits until that carries the I/O, or the former
// one does not answer.
func (s *Service) connectLegBeside(ctx context.Context, c fabrics.Connection, id fabrics.ID) (carries bool, err error) {
	if answers, err := s.answersAs(c.NQN, c.Beside); err != nil || !answers {
		return false, err
	}
	if err := s.Initiator.Connect(ctx, c); err != nil {
		return false, err
	}
	err = wait.PollUntilContextTimeout(ctx, givingUpInterval, legTimeout, true, func(context.Context) (bool, error) {
		is, err := s.Initiator.Carries(c, id)
		if carries = is; err != nil || is {
			return is, err
		}
		answers, err := s.answersAs(c.NQN, c.Beside)
		return !answers, err
	})
	if wait.Interrupted(err) {
		err = nil // another time
	}
	return carries, err
}

// answersAs tells whether a subsystem answers to this machine as a host.
func (s *Service) answersAs(nqn, host string) (bool, error) {
	controllers, err := s.Initiator.Controllers(nqn)
	return slices.ContainsFunc(fabrics.ControllersOf(host, controllers), fabrics.Controller.Live), err
}

// strays are the controllers of a replica that were made as another host of the volume's attachment than the one that
// it is connected as, once I/O does not need them.
func (s *Service) strays(at attached, r replica) ([]fabrics.Controller, error) {
	if r.turns() {
		return nil, nil
	}
	c := at.connection(r)
	controllers, err := s.Initiator.Controllers(c.NQN)
	if err != nil || !slices.ContainsFunc(controllers, func(is fabrics.Controller) bool { return is.HostNQN != c.HostNQN }) {
		return nil, err
	}
	if carries, err := s.Initiator.Carries(c, r.id()); err != nil || !carries {
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
