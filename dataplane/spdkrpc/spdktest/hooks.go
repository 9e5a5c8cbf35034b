// SPDX-License-Identifier: Apache-2.0

package spdktest

import (
	"errors"
	"fmt"
	"slices"
	"syscall"

	"github.com/google/uuid"
)

// ErrRefused is wrapped by Connect when a real target would not let the host in.
var ErrRefused = errors.New("connection refused")

// ErrNoVolume is wrapped when a volume is not there.
var ErrNoVolume = errors.New("no such volume")

// Write tells the target that hosts wrote to a volume, named as lvstore/volume or by UUID: so many clusters from the
// given one on. Clusters that it had none of are allocated. It fails like the write would: on a read-only volume,
// past the end (EIO), on a full store (ENOSPC), and when the target has ended.
func (t *Target) Write(volume string, first, n uint64) error {
	return t.io(func() error { return t.app.write(volume, first, n) })
}

func (a *app) write(volume string, first, n uint64) error {
	v, e := a.findLvol(volume)
	switch {
	case e != 0:
		return fmt.Errorf("%w: %s", ErrNoVolume, volume)
	case v.isReadOnly():
		return fmt.Errorf("write to read-only %s: %w", volume, syscall.EIO)
	case first+n > v.clusters:
		return fmt.Errorf("write past the end of %s, which has %d clusters: %w", volume, v.clusters, syscall.EIO)
	}
	want := slices.Clone(v.alloc)
	want.addRange(first, n)
	if want.count()-v.allocated() > v.store.free() ||
		want.pages()-v.alloc.pages() > v.store.freePages() {
		if v.bdev != nil {
			v.bdev.io.failed++
			v.bdev.tally(1)
		}
		return fmt.Errorf("write to %s: %w", volume, syscall.ENOSPC)
	}
	v.store.giveDirty(v, want.count()-v.allocated())
	if v.dirty > 0 {
		return fmt.Errorf("write to %s: %w: it was given %d clusters with old data", volume, syscall.EILSEQ, v.dirty)
	}
	v.alloc = want
	v.store.save(v)
	if v.bdev != nil {
		v.bdev.io.bytesWritten += n * v.store.ClusterSize
		v.bdev.io.writeOps += n
		v.bdev.tally(n)
	}
	return nil
}

// Dirty is how many clusters of an lvstore were freed with what hosts wrote to them: whoever gets one next reads it.
func (t *Target) Dirty(lvstore string) uint64 {
	var dirty uint64
	t.do(func() {
		if s, e := t.app.findStore("", lvstore); e == 0 {
			dirty = s.Dirty
		}
	})
	return dirty
}

// HoldIO makes the target believe that I/O to an exported volume does not end: removing its namespace, deleting it or
// its subsystem wait until release is called, and with them every later change of the subsystem.
func (t *Target) HoldIO(volume string) (release func(), err error) {
	t.do(func() {
		b := t.app.bdevNames[volume]
		if b == nil {
			err = fmt.Errorf("%w: %s", ErrNoVolume, volume)
			return
		}
		b.held++
		release = func() {
			t.do(func() {
				b.held--
				for _, wake := range b.released {
					t.app.post(wake)
				}
				b.released = nil
			})
		}
	})
	return release, err
}

// Mute makes the drive at a PCI address dead: from now on its controller answers no command, and SPDK, which has no
// time limit of its own, answers none that was passed on to it, and no operation on a logical volume there.
func (t *Target) Mute(address string) {
	t.do(func() {
		for _, c := range t.app.controllers {
			if c.drive.Address == address {
				c.mute, c.bdev.hangs = true, true
			}
		}
	})
}

// Hang makes the drive under an lvstore answer nothing that SPDK writes for an operation on a logical volume there, and
// so SPDK answer none of them, until goOn is called.
func (t *Target) Hang(lvstore string) (goOn func()) {
	return t.hold(lvstore, func(base *bdev) *bool { return &base.hangs })
}

// HoldClearing of what is deleted from an lvstore, which begins once a snapshot was merged and takes as long as the
// deleted volume is large.
func (t *Target) HoldClearing(lvstore string) (goOn func()) {
	return t.hold(lvstore, func(base *bdev) *bool { return &base.holdsClearing })
}

// FailOpen of volumes of a name: when their lvstore is loaded, the target leaves them out.
func (t *Target) FailOpen(name string) {
	t.do(func() { t.app.unopenable[name] = true })
}

// FailIO counts an I/O that the drive under an lvstore has answered with an error.
func (t *Target) FailIO(lvstore string) {
	t.do(func() {
		if s, e := t.app.findStore("", lvstore); e == 0 {
			s.base.io.failed++
		}
	})
}

func (t *Target) hold(lvstore string, what func(base *bdev) *bool) (goOn func()) {
	hold := func(holds bool) {
		t.do(func() {
			s, e := t.app.findStore("", lvstore)
			if e != 0 {
				return
			}
			*what(s.base) = holds
			for _, f := range s.base.waiting {
				t.app.post(f)
			}
			s.base.waiting = nil
		})
	}
	hold(true)
	return func() { hold(false) }
}

// Inaccessible are the NQNs of subsystems with a listener whose hosts wait.
func (t *Target) Inaccessible() (nqns []string) {
	t.do(func() {
		for _, s := range t.app.sortedSubsystems() {
			if slices.ContainsFunc(s.listeners, func(l *listener) bool { return slices.Contains(l.anaStates, anaInaccessible) }) {
				nqns = append(nqns, s.nqn)
			}
		}
	})
	return nqns
}

// A Connection is a controller of a host, as the target knows it: what Connect made.
type Connection struct {
	// SubsystemNQN, HostNQN and HostID of the connection.
	SubsystemNQN, HostNQN, HostID string
	// IOQueues besides the admin queue.
	IOQueues uint32

	target  *Target
	address address
	cntlid  uint16
	gone    bool
	held    bool
}

// Connect makes the target believe that a host connected with so many I/O queues, at one of the subsystem's
// listeners. It checks what a target would: that it listens, and that the host is admitted.
func (t *Target) Connect(subsystemNQN, hostNQN string, ioQueues uint32) (*Connection, error) {
	c := &Connection{
		SubsystemNQN: subsystemNQN, HostNQN: hostNQN, HostID: uuid.NewString(), IOQueues: ioQueues, target: t,
	}
	if len(hostNQN) > 36 && validUUID(hostNQN[len(hostNQN)-36:]) {
		c.HostID = hostNQN[len(hostNQN)-36:]
	}
	var err error
	t.do(func() { err = t.app.connect(c) })
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (a *app) connect(c *Connection) error {
	s := a.subsystems[c.SubsystemNQN]
	switch {
	case s == nil || s.destroying:
		return fmt.Errorf("%w: no subsystem %s", ErrRefused, c.SubsystemNQN)
	case len(s.listeners) == 0:
		return fmt.Errorf("%w: subsystem %s has no listener", ErrRefused, c.SubsystemNQN)
	case !s.allowAnyHost && s.host(c.HostNQN) == nil:
		return fmt.Errorf("%w: subsystem %s does not admit %s", ErrRefused, c.SubsystemNQN, c.HostNQN)
	}
	c.address = s.listeners[0].address
	c.cntlid = s.nextCntlid
	s.nextCntlid++
	s.connected = append(s.connected, c)
	n := len(a.nvmf.pollGroups)
	a.count(c.group(0, n), 0)
	for q := range c.IOQueues {
		a.count(c.group(q+1, n), 1)
	}
	return nil
}

func (a *app) count(group, kind int) {
	counts := a.qpairs[group]
	counts[kind]++
	a.qpairs[group] = counts
}

// group is the poll group of a queue: they take turns.
func (c *Connection) group(qid uint32, groups int) int { return int(uint32(c.cntlid)+qid) % groups }

// Alive says whether the target still has the connection: removing its host, its listener or the subsystem, and the
// target's end, end it.
func (c *Connection) Alive() bool {
	alive := false
	c.target.do(func() { alive = !c.gone })
	return alive
}

// Hold the connection, as a drive does that does not answer what the host has sent: while it is held, removing its host
// does not end it. (nvmf_subsystem_remove_host takes the host from the list at once.)
func (c *Connection) Hold() (release func()) {
	c.target.do(func() { c.held = true })
	return func() { c.target.do(func() { c.held = false }) }
}

// Close disconnects.
func (c *Connection) Close() {
	c.target.do(func() {
		if s := c.target.app.subsystems[c.SubsystemNQN]; s != nil {
			s.disconnect(func(o *Connection) bool { return o == c })
		}
	})
}

func (s *subsystem) disconnect(which func(*Connection) bool) {
	s.connected = slices.DeleteFunc(s.connected, func(c *Connection) bool {
		c.gone = c.gone || which(c)
		return c.gone
	})
}

// Starve tells the target that a module (nvmf_TCP, nvmf_RDMA, bdev, accel) had to wait so many more times for a small
// and for a large buffer: the retry counters of iobuf_get_stats.
func (t *Target) Starve(module string, small, large uint64) {
	t.do(func() {
		old := t.app.retries[module]
		t.app.retries[module] = [2]uint64{old[0] + small, old[1] + large}
	})
}

// StarveRDMA counts I/Os over RDMA in a poll group that waited for a data buffer, as nvmf_get_stats does.
func (t *Target) StarveRDMA(group int, n uint64) {
	t.do(func() { t.app.pendingData[group] += n })
}
