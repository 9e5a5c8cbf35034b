// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/internal/dhchap"
)

const (
	// readUsersInterval is how often, at least, a Node that uses volumes is read for its public key, though its
	// metadata say that its node plugin has reported nothing else; somebody else could have written the condition.
	readUsersInterval = time.Hour
	// reportAge is how old a report has to be, by this machine's clock, to be taken for the last one of its second: the
	// API server notes seconds.
	reportAge = time.Minute
)

// This service makes the keys by which hosts and targets prove themselves: a pair for each attachment and replica, when
// the replica is told of the host. It seals them to the agent of the replica and to the node plugin of the host, writes
// them into the replica, and forgets them: nobody can ask it for them. They are no part of the publish context, which
// cannot change while a volume is attached, so keys could not be sealed again.
//
// A host that a target's security requires to prove itself is never written without keys. Where one of the two public
// keys is missing, as after an object was deleted by hand, it gets keys that this node cannot open, and new ones later.

// mode of authentication that a target asks for of the attachments to come.
func (s *Service) mode(ctx context.Context, name string) (v1alpha1.AuthenticationMode, error) {
	var target v1alpha1.NvmfTarget
	err := s.client.Get(ctx, keyOf(name), &target)
	if apierrors.IsNotFound(err) {
		return v1alpha1.AuthenticationDisabled, nil // nobody serves its volumes
	}
	if err != nil {
		return "", fmt.Errorf("read NvmfTarget %s: %w", name, err)
	}
	return target.Spec.Authentication(), nil
}

// ends of a connection that prove themselves to each other, by their public keys.
type ends struct {
	agent, host string
	// unable says why one of them cannot; empty when both can.
	unable string
}

// endsOf a replica and a host, read from the API server: keys that are sealed to a public key of a moment ago would be
// for another machine, and a host that a cache shows as unable could be admitted without proof. Nodes that do not exist
// cannot prove anything.
func (s *Service) endsOf(ctx context.Context, storage string, h v1alpha1.VolumeHost) (ends, error) {
	serves, err := s.serving(ctx, storage)
	if err != nil {
		return ends{}, err
	}
	var uses corev1.Node
	if err := s.live.Get(ctx, keyOf(h.Node), &uses); client.IgnoreNotFound(err) != nil {
		return ends{}, fmt.Errorf("read Node %s: %w", h.Node, err)
	}
	return endsBetween(storage, serves, h, &uses), nil
}

// serving is the NvmfNode of this name, from the API server; one without a public key if there is none.
func (s *Service) serving(ctx context.Context, storage string) (*v1alpha1.NvmfNode, error) {
	var serves v1alpha1.NvmfNode
	if err := s.live.Get(ctx, keyOf(storage), &serves); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("read NvmfNode %s: %w", storage, err)
	}
	return &serves, nil
}

// endsBetween a storage node and the Node of a host, as they were read.
func endsBetween(storage string, serves *v1alpha1.NvmfNode, h v1alpha1.VolumeHost, uses *corev1.Node) ends {
	e := ends{agent: serves.Status.PublicKey}
	if h.NodeUID == string(uses.UID) {
		var why string
		if e.host, why = v1alpha1.HostPublicKey(uses); why != "" {
			e.unable = fmt.Sprintf("node %s cannot authenticate: %s", h.Node, why)
		}
	}
	switch why := serves.CannotAuthenticate(); {
	case why != "":
		e.unable = fmt.Sprintf("storage node %s cannot authenticate: %s", storage, why)
	case e.host == "" && e.unable == "":
		e.unable = fmt.Sprintf("node %s cannot authenticate: it is another machine than the one that the volume was attached to", h.Node)
	}
	return e
}

// sealedToOthers tells whether keys of a host are sealed, and not to these ends.
func (e ends) sealedToOthers(h v1alpha1.VolumeHost) bool {
	return h.SealedKeys != "" && e.agent != "" && e.host != "" && h.SealedTo != dhchap.SealedTo(e.agent, e.host)
}

// publicKeys of both ends. Of one that has none, it is a key of nobody, so that the other can see that there are keys.
func (e ends) publicKeys() ([]string, error) {
	keys := []string{e.agent, e.host}
	for i, k := range keys {
		if k != "" && dhchap.CheckPublicKey(k) == nil {
			continue
		}
		nobody, err := dhchap.NewIdentity()
		if err != nil {
			return nil, err
		}
		keys[i] = nobody.PublicKey()
	}
	return keys, nil
}

// authenticable fails when a target requires hosts to prove themselves, and the host cannot, or no replica's node. A
// mirror can do without some of its replicas. The Node of the host is as this call has read it.
func (s *Service) authenticable(ctx context.Context, vol *replicatedVolume, h v1alpha1.VolumeHost, uses *corev1.Node) error {
	mode, err := s.mode(ctx, vol.Spec.Target)
	if err != nil || mode != v1alpha1.AuthenticationRequired {
		return err
	}
	var unable []error
	for _, m := range vol.Spec.Members {
		serves, err := s.serving(ctx, m.Node)
		if err != nil {
			return err
		}
		if e := endsBetween(m.Node, serves, h, uses); e.unable != "" {
			unable = append(unable, failf(waiting, "cannot attach volume %s: %s; target %s requires authentication (security.authentication)", vol.Name, e.unable, vol.Spec.Target))
		}
	}
	if len(unable) == len(vol.Spec.Members) {
		return errors.Join(unable...)
	}
	return nil
}

// sealNew gives keys to those hosts of a replica's next spec that it does not list yet, if its target wants that.
func (s *Service) sealNew(ctx context.Context, rep *v1alpha1.NvmfReplica, next *v1alpha1.NvmfReplicaSpec) error {
	if !slices.ContainsFunc(next.Hosts, func(h v1alpha1.VolumeHost) bool { return rep.Listed(h.NQN) == nil }) {
		return nil
	}
	mode, err := s.mode(ctx, next.Target)
	if err != nil || mode == v1alpha1.AuthenticationDisabled {
		return err
	}
	next.Hosts = slices.Clone(next.Hosts)
	for i := range next.Hosts {
		h := &next.Hosts[i]
		if rep.Listed(h.NQN) != nil {
			continue
		}
		e, err := s.endsOf(ctx, next.Node, *h)
		if err != nil {
			return err
		}
		if e.unable != "" && mode == v1alpha1.AuthenticationPreferred {
			klog.FromContext(ctx).Info("Admitting host without authentication", "volume", next.Volume.Name, "replica", rep.Name, "host", h.Node, "reason", e.unable)
			continue
		}
		if err := seal(h, e); err != nil {
			return err
		}
	}
	return nil
}

// seal new keys for a host.
func seal(h *v1alpha1.VolumeHost, e ends) error {
	publicKeys, err := e.publicKeys()
	if err != nil {
		return err
	}
	keys, err := dhchap.NewPair()
	if err != nil {
		return fmt.Errorf("make keys: %w", err)
	}
	h.SealedKeys, err = keys.Seal(publicKeys...)
	h.SealedTo = dhchap.SealedTo(publicKeys...)
	h.KeysCreated = new(metav1.Now().Rfc3339Copy())
	return err
}

// keysUnreadable tells whether a replica's agent says that it cannot read the keys of a host.
func keysUnreadable(rep *v1alpha1.NvmfReplica) bool {
	c := meta.FindStatusCondition(rep.Status.Conditions, v1alpha1.ConditionExported)
	return c != nil && c.Reason == v1alpha1.ReasonKeysUnreadable && c.ObservedGeneration == rep.Generation
}

// sealAgain makes new keys for the hosts of a replica whose keys are not sealed to the two nodes as they are now: one
// of them was installed again. Hosts without keys stay so. It fails with Conflict when the replica has changed since it
// was read.
func (s *Service) sealAgain(ctx context.Context, rep *v1alpha1.NvmfReplica) error {
	next := rep.DeepCopy()
	changed := false
	for i := range next.Spec.Hosts {
		h := &next.Spec.Hosts[i]
		if h.SealedKeys == "" {
			continue
		}
		e, err := s.endsOf(ctx, rep.Spec.Node, *h)
		if err != nil {
			return err
		}
		if !e.sealedToOthers(*h) {
			continue
		}
		if err := seal(h, e); err != nil {
			return err
		}
		klog.FromContext(ctx).Info("Sealing new keys, because a node has another public key", "volume", rep.Spec.Volume.Name, "replica", rep.Name, "host", h.Node)
		changed = true
	}
	if !changed {
		return nil
	}
	return s.patch(ctx, rep, next)
}

// sealAllAgain looks at the keys of all replicas. It reads the Nodes that use volumes when their node plugins have
// reported something, and NvmfNodes from the cache. Both only say whether to look closer: new keys are sealed to what
// the API server has. A cache that is behind delays them until the next time, or until the agent says that it cannot
// read its keys. It is not safe for concurrent use.
func (s *Service) sealAllAgain(ctx context.Context) error {
	var reps v1alpha1.NvmfReplicaList
	if err := s.client.List(ctx, &reps, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list NvmfReplicas: %w", err)
	}
	users := map[string]userNode{}
	var errs []error
	for i := range reps.Items {
		rep := &reps.Items[i]
		if rep.DeletionTimestamp != nil || !slices.ContainsFunc(rep.Spec.Hosts, func(h v1alpha1.VolumeHost) bool { return h.SealedKeys != "" }) {
			continue
		}
		others, err := s.sealedToOthers(ctx, rep, users)
		if err == nil && others {
			err = s.sealAgain(ctx, rep.DeepCopy())
		}
		if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("NvmfReplica %s: %w", rep.Name, err))
		}
	}
	s.users = users
	return errors.Join(errs...)
}

// sealedToOthers tells whether keys of a replica's hosts seem to be sealed to others than the two nodes. It adds the
// Nodes of the hosts to those that were looked at.
func (s *Service) sealedToOthers(ctx context.Context, rep *v1alpha1.NvmfReplica, users map[string]userNode) (bool, error) {
	var serves v1alpha1.NvmfNode
	if err := s.client.Get(ctx, keyOf(rep.Spec.Node), &serves, client.UnsafeDisableDeepCopy); client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("read NvmfNode %s: %w", rep.Spec.Node, err)
	}
	for _, h := range rep.Spec.Hosts {
		if h.SealedKeys == "" {
			continue
		}
		user, looked := users[h.Node]
		if !looked {
			var err error
			if user, err = s.user(ctx, h.Node); err != nil {
				return false, err
			}
			users[h.Node] = user
		}
		if endsBetween(rep.Spec.Node, &serves, h, user.node).sealedToOthers(h) {
			return true, nil
		}
	}
	return false, nil
}

// userNode is a Node that uses volumes, as it was read once: its UID and conditions alone.
type userNode struct {
	node *corev1.Node
	// reported is when its node plugin had written its public key, or that it has none; zero if that is not known.
	reported metav1.Time
	// until is when it is read again in any case; zero if it is not certain that it was read after all that was
	// reported at that time.
	until time.Time
}

// user is the Node of this name. It is read if it has reported something since it was read last, by what the cache has
// of its metadata: whole Nodes are large, and their kubelets write them every few minutes.
func (s *Service) user(ctx context.Context, name string) (userNode, error) {
	is := &metav1.PartialObjectMetadata{}
	is.SetGroupVersionKind(nodeGVK)
	if err := s.client.Get(ctx, keyOf(name), is, client.UnsafeDisableDeepCopy); client.IgnoreNotFound(err) != nil {
		return userNode{}, fmt.Errorf("read the metadata of Node %s: %w", name, err)
	}
	now := time.Now()
	if had, ok := s.users[name]; ok && had.node.UID == is.UID && had.reported.Equal(new(keyReported(is))) && now.Before(had.until) {
		return had, nil
	}
	var node corev1.Node
	if err := s.live.Get(ctx, keyOf(name), &node); client.IgnoreNotFound(err) != nil {
		return userNode{}, fmt.Errorf("read Node %s: %w", name, err)
	}
	user := userNode{
		node:     &corev1.Node{ObjectMeta: metav1.ObjectMeta{UID: node.UID}, Status: corev1.NodeStatus{Conditions: node.Status.Conditions}},
		reported: keyReported(&node),
	}
	if !user.reported.IsZero() && now.Sub(user.reported.Time) > s.reportAge {
		user.until = now.Add(wait.Jitter(readUsersInterval/2, 1))
	}
	return user, nil
}

// keyReported is when a node plugin wrote the condition with its public key last: it has a field manager for it, and
// the API server notes when that has changed something. Zero if it does not say.
func keyReported(node client.Object) metav1.Time {
	var last metav1.Time
	for _, m := range node.GetManagedFields() {
		if m.Manager == v1alpha1.AuthenticationFieldManager && m.Time != nil && last.Before(m.Time) {
			last = *m.Time
		}
	}
	return last
}
