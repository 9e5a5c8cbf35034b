// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/uuid"

	"github.com/weft-storage/weft/csi-driver/node/internal/keeper"
	"github.com/weft-storage/weft/csi-driver/node/internal/md"
)

// mirrors are the mirrored volumes that are kept on this node, by their names.
type mirrors struct {
	mu  sync.Mutex
	all map[string]*mirrored
}

// of a volume; nil when it is not kept.
func (m *mirrors) of(volume string) *mirrored {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.all[volume]
}

func (m *mirrors) list() []*mirrored {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []*mirrored
	for _, is := range m.all {
		all = append(all, is)
	}
	return all
}

func (m *mirrors) put(is *mirrored) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.all == nil {
		m.all = map[string]*mirrored{}
	}
	m.all[is.volume] = is
}

func (m *mirrors) remove(is *mirrored) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.all[is.volume] == is {
		delete(m.all, is.volume)
	}
}

// mirrored is a volume with a mirror that is kept on this node, from before its replicas are connected until nothing is
// left of it: its keeper, and what that acts on.
type mirrored struct {
	*Service
	volume, uuid, attachment string
	replicas                 *replicaNames
	records                  *mirrorRecords
	legs                     *mirrorLegs
	headers                  *mirrorHeaders

	events chan struct{}
	ended  chan struct{}
	cancel context.CancelFunc
	tasks  sync.WaitGroup // of the keeper

	mu      sync.Mutex
	mode    keeper.Mode
	status  keeper.Status
	steps   int           // that were made in this mode
	changed chan struct{} // closed with each step
}

// mirror makes what keeps a volume that is staged for an attachment, and runs it until it is stopped.
func (s *Service) mirror(ctx context.Context, volume string, at attached) *mirrored {
	names := newReplicaNames(at)
	m := &mirrored{
		Service: s, volume: volume, uuid: at.UUID, attachment: at.Attachment, replicas: names, mode: keeper.Keep,
		records: &mirrorRecords{Service: s, volume: volume, uuid: at.UUID, mover: at.Mover},
		events:  make(chan struct{}), ended: make(chan struct{}), changed: make(chan struct{}),
	}
	slices := &mirrorSlices{Service: s, names: names}
	m.legs = &mirrorLegs{mirrorSlices: slices, volume: volume, at: at}
	m.headers = &mirrorHeaders{Service: s, volume: volume, uuid: at.UUID, slices: slices}
	top := &mirrorTop{Service: s, uuid: at.UUID, of: func(attachment string) bool { return attachment == at.Attachment }}
	if at.Attachment == nobody {
		top.of = func(string) bool { return true }
	}
	ctx, m.cancel = context.WithCancel(context.WithoutCancel(ctx))
	k := &keeper.Keeper{
		Attachment: at.Attachment, Mode: keeper.Keep, Record: m.records, Legs: m.legs,
		Array:   &mirrorArray{mirrorSlices: slices, uuid: at.UUID, places: len(at.Replicas)},
		Headers: m.headers, Top: top, Users: top, Agents: mirrorAgents{s, at.Attachment},
		Grace: s.MirrorGrace, CopyBytesPerSecond: s.MirrorCopyBytesPerSecond, Now: s.now, NewMark: uuid.NewString,
		Spawn: m.tasks.Go,
	}
	s.mirrors.put(m)
	log := logr.FromContextOrDiscard(ctx).WithValues("volume", volume)
	go m.watch(ctx)
	go func() {
		defer close(m.ended)
		k.Run(ctx, m.events, func(status keeper.Status) {
			m.stepped(log, status)
			k.Mode = m.modeNow()
		})
		if at.Attachment == nobody && m.seen().Phase == keeper.Stopped { // whoever waited for it may have gone
			m.cancel()
			s.mirrors.remove(m)
		}
	}()
	return m
}

func (m *mirrored) stepped(log logr.Logger, status keeper.Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	was := m.status
	if text := errorText(status.Err); text != errorText(was.Err) && text != "" {
		log.Info("The mirror waits", "reason", text)
	}
	if status.Record.Epoch == 0 {
		status.Record = was.Record // it could not be read
	}
	if status.Record.Epoch != was.Record.Epoch {
		log.Info("The mirror's record", "epoch", status.Record.Epoch, "members", status.Record.Members)
	}
	m.status = status
	m.steps++
	close(m.changed)
	m.changed = make(chan struct{})
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func (m *mirrored) modeNow() keeper.Mode {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mode
}

// seen is the status of the last step.
func (m *mirrored) seen() keeper.Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.status
}

// set the mode. The keeper takes it over after a step; the next one acts on it.
func (m *mirrored) set(ctx context.Context, mode keeper.Mode) {
	m.mu.Lock()
	same := m.mode == mode
	m.mode = mode
	m.mu.Unlock()
	m.notify(ctx)
	if !same {
		m.notify(ctx)
		m.mu.Lock()
		m.steps = 0
		m.mu.Unlock()
	}
}

// notify the keeper, once it is not in a step.
func (m *mirrored) notify(ctx context.Context) {
	select {
	case m.events <- struct{}{}:
	case <-m.ended:
	case <-ctx.Done():
	}
}

// wait until a status is what is waited for. It fails with what the mirror waits for when the context ends.
func (m *mirrored) wait(ctx context.Context, until func(keeper.Status) (bool, error)) error {
	for {
		m.mu.Lock()
		status, steps, changed := m.status, m.steps, m.changed
		m.mu.Unlock()
		if steps > 0 {
			if ok, err := until(status); ok || err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-m.ended:
			if status := m.seen(); status.Phase == keeper.Stopped {
				_, err := until(status)
				return err
			}
			return fmt.Errorf("the mirror of volume %s is not kept any more: %w", m.volume, context.Canceled)
		case <-ctx.Done():
			return fmt.Errorf("the mirror of volume %s: %w: %w", m.volume, cmp.Or(m.seen().Err, errMirrorWaits), ctx.Err())
		}
	}
}

var errMirrorWaits = errors.New("it waits for the kernel or the API server")

// stopped waits until nothing of the mirror is left but a device that fails.
func (m *mirrored) stopped(ctx context.Context) error {
	return m.wait(ctx, func(s keeper.Status) (bool, error) { return s.Phase == keeper.Stopped, nil })
}

// forget the mirror, once it has stopped: no call is made for it any more.
func (m *mirrored) forget() {
	m.cancel()
	<-m.ended
	m.mirrors.remove(m)
}

// legsInterval is how often the states of controllers are looked at, of which the kernel tells nobody.
const legsInterval = 500 * time.Millisecond

// watch the array as long as there is one, and tell the keeper of changes.
func (m *mirrored) watch(ctx context.Context) {
	for ctx.Err() == nil {
		a, err := m.Mirrors.Of(m.uuid)
		if err == nil {
			err = m.Mirrors.Watch(ctx, a, func(md.State) { m.notify(ctx) })
		}
		if err != nil && !errors.Is(err, md.ErrNotFound) && ctx.Err() == nil {
			logr.FromContextOrDiscard(ctx).Error(err, "Cannot watch the mirror", "volume", m.volume)
		}
		select {
		case <-ctx.Done():
		case <-time.After(legsInterval):
		}
	}
}
