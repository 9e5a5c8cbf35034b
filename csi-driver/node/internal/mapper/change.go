// SPDX-License-Identifier: Apache-2.0

package mapper

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node/internal/doing"
	"github.com/weft-storage/weft/internal/tracing"
)

// Spec of a device.
type Spec struct {
	// Owner of the device, and Attachment by its UUID.
	Owner
	Attachment string
	// Lower is the device to build on. Keep it open, or another may have got its number.
	Lower Lower
	// OffsetBytes in it where the data begin, and SizeBytes of the data. A device of kind Crypt begins behind the LUKS
	// header, and is that much smaller.
	OffsetBytes, SizeBytes int64
	// Cipher of a device of kind Crypt that is built; when one is changed, it keeps what it has.
	Cipher *Cipher
}

// HiddenBytes of the data that a device does not show: the LUKS header.
func (o Owner) HiddenBytes() int64 {
	if o.Kind == Crypt {
		return v1alpha1.LUKSHeaderBytes
	}
	return 0
}

func (s Spec) table() Table {
	header := s.HiddenBytes()
	return Table{SizeBytes: s.SizeBytes - header, Lower: s.Lower.Number, OffsetBytes: s.OffsetBytes + header, Cipher: s.Cipher}
}

// cipherOf a device: that of the table in force, with the key. Devices of other kinds have none.
func (h *Host) cipherOf(d Device) (*Cipher, error) {
	if d.Kind != Crypt {
		return nil, nil
	}
	t, err := h.Control.Table(d.Label)
	if err == nil && t.Cipher == nil {
		err = fmt.Errorf("%s has no cipher in force: %w", d.Name, ErrNotFound)
	}
	return t.Cipher, err
}

// Load device mapper, unless it is there. It fails with doing.ErrNoModule; any other error says that it is not known.
// It is idempotent.
func (h *Host) Load(ctx context.Context) error {
	return doing.LoadModules(ctx, h.LoadModule, h.there, "dm_mod")
}

// there tells whether the kernel has device mapper. The device by which it is controlled may be there without it
// (kmod static-nodes); opening that makes the kernel load the module (dm_mod's alias devname:mapper/control).
func (h *Host) there() (bool, error) {
	control, err := os.Open(h.path("mapper/control"))
	switch {
	case err == nil:
		return true, control.Close()
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENODEV), errors.Is(err, syscall.ENXIO):
		return false, nil
	default:
		return false, err
	}
}

// LoadCrypt makes the kernel ready for devices of kind Crypt, unless it is. It fails as Load does, and is idempotent.
func (h *Host) LoadCrypt(ctx context.Context) error {
	if err := h.Load(ctx); err != nil {
		return err
	}
	return doing.LoadModules(ctx, h.LoadModule, func() (bool, error) {
		types, err := h.Control.Types()
		return slices.Contains(types, typeCrypt), err
	}, "dm_crypt")
}

// Build a device. What earlier ones there are must be discarded before. It fails with ErrNotFound when the
// lower device changed meanwhile.
func (h *Host) Build(ctx context.Context, s Spec) (_ Device, err error) {
	ctx, span := tracing.Start(ctx, "build device")
	defer func() { tracing.End(span, err) }()
	load := h.Load
	if s.Kind == Crypt {
		load = h.LoadCrypt
		if s.Cipher == nil {
			return Device{}, fmt.Errorf("%s: no cipher for it: %w", s.Label(), ErrUnfit)
		}
	}
	if err := load(ctx); err != nil {
		return Device{}, err
	}
	id, err := h.freeUUID(s)
	if err != nil {
		return Device{}, err
	}
	if err := h.create(ctx, s.Label(), id, s.table()); err != nil {
		return Device{}, err
	}
	all, err := h.of(s.Owner)
	if err != nil {
		return Device{}, err
	}
	i := slices.IndexFunc(all, func(d Device) bool { return d.UUID == id })
	if i < 0 || all[i].Lower != s.Lower {
		return Device{}, fmt.Errorf("%s was made over %s (%s): %w", s.Label(), s.Lower.Name, s.Lower.Number, ErrNotFound)
	}
	return all[i], nil
}

// freeUUID for a device. One of the same attachment may be there still, held open after what it was made of was lost.
func (h *Host) freeUUID(s Spec) (string, error) {
	all, err := h.of(s.Owner)
	if err != nil {
		return "", err
	}
	first := s.uuid() + s.Attachment
	id := first
	for n := 2; slices.ContainsFunc(all, func(d Device) bool { return d.UUID == id }); n++ {
		id = first + "-" + strconv.Itoa(n)
	}
	return id, nil
}

// Grow a device to so many bytes of data; one that has them, or more, is left alone. I/O that is on its way is waited
// for, and what comes meanwhile waits.
func (h *Host) Grow(ctx context.Context, d Device, offsetBytes, sizeBytes int64) (Device, error) {
	if d.DataBytes() >= sizeBytes {
		return d, nil
	}
	if d.Lost() {
		return d, fmt.Errorf("grow %s: what it was made of: %w", d.Name, ErrNotFound)
	}
	cipher, err := h.cipherOf(d)
	if err != nil {
		return d, err
	}
	if err := h.exchange(ctx, d.Label, Spec{Owner: d.Owner, Lower: d.Lower, OffsetBytes: offsetBytes, SizeBytes: sizeBytes, Cipher: cipher}.table()); err != nil {
		return d, err
	}
	now, err := h.Find(d.Number)
	if err == nil && now.DataBytes() < sizeBytes {
		err = fmt.Errorf("%s has %d bytes after it was made to have %d", d.Name, now.DataBytes(), sizeBytes)
	}
	return now, err
}

// Exchange what is under a device for what a spec says, though it is mounted and written: I/O that is on its way is
// waited for, what comes meanwhile waits. Until it is exchanged, the former serves; if that was lost, its I/O fails.
// It fails with ErrUnfit when the device would get smaller, or other blocks: a filesystem that is mounted relies on
// both. Repeating it is no error.
func (h *Host) Exchange(ctx context.Context, d Device, s Spec) (Device, error) {
	if s.Owner != d.Owner || s.Attachment != d.Attachment {
		return d, fmt.Errorf("%s is of %s, not of %s: %w", d.Name, d.UUID, s.uuid()+s.Attachment, ErrForeign)
	}
	if s.SizeBytes < d.DataBytes() {
		return d, fmt.Errorf("%s has %d bytes, and would have %d: %w", d.Name, d.DataBytes(), s.SizeBytes, ErrUnfit)
	}
	is, err := attribute(h.sys("class/block", d.Name), "queue/logical_block_size")
	if err != nil {
		return d, err
	}
	gets, err := attribute(h.sys("class/block", s.Lower.Name), "queue/logical_block_size")
	if err != nil {
		return d, err
	}
	// dm-crypt has blocks of its sectors, whatever is below.
	if is != gets && d.Kind != Crypt {
		return d, fmt.Errorf("%s has blocks of %s bytes, and %s of %s: %w", d.Name, is, s.Lower.Name, gets, ErrUnfit)
	}
	if s.Cipher, err = h.cipherOf(d); err != nil {
		return d, err
	}
	if err := h.exchange(ctx, d.Label, s.table()); err != nil {
		return d, err
	}
	now, err := h.Find(d.Number)
	if err == nil && (now.UUID != d.UUID || now.Lower != s.Lower) {
		err = fmt.Errorf("%s is %s over %s (%s) after it was put over %s (%s): %w", d.Name, now.UUID, now.Lower.Name, now.Lower.Number, s.Lower.Name, s.Lower.Number, ErrNotFound)
	}
	return now, err
}

// create a device with a table. One that cannot have it is taken away again.
func (h *Host) create(ctx context.Context, label, id string, t Table) error {
	if err := h.Control.Create(label, id); err != nil {
		return err
	}
	if err := h.exchange(ctx, label, t); err != nil {
		return errors.Join(err, h.Control.Remove(label))
	}
	return nil
}

// exchange a device's table. I/O that is on its way through the one in force is waited for.
func (h *Host) exchange(ctx context.Context, label string, t Table) error {
	defer doing.Begin(ctx, "exchanging the table of "+label)()
	for {
		if err := h.Control.Load(label, t); err != nil {
			return err
		}
		if err := h.Control.Resume(label); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// Suspend a device for good: new I/O waits from now on, until the device is discarded. It returns when what is on its
// way has ended, which may be never. Repeating it is no error.
func (h *Host) Suspend(ctx context.Context, d Device) error {
	defer doing.Begin(ctx, "suspending "+d.Label)()
	for {
		if err := h.Control.Suspend(d.Label); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// scanned is how long a scanner may have a device open, such as lsblk.
var scanned = wait.Backoff{Duration: 20 * time.Millisecond, Factor: 2, Steps: 6}

// Remove a device that nobody uses. It fails when somebody has it open.
func (h *Host) Remove(ctx context.Context, d Device) (err error) {
	ctx, span := tracing.Start(ctx, "remove device", tracing.StepKey.String("removing "+d.Label))
	defer func() { tracing.End(span, err) }()
	err = retry.OnError(scanned, func(err error) bool { return errors.Is(err, syscall.EBUSY) && ctx.Err() == nil },
		func() error { return h.Control.Remove(d.Label) })
	if err != nil {
		return fmt.Errorf("remove %s (%s), which a process may have open: %w", d.Path, d.Label, err)
	}
	return nil
}

// Discard a device of an attachment that has ended, or whose lower device is gone, though somebody may use it. From now
// on all its I/O fails, it does not hold what it was made of, and another can be built for the volume. It is gone when
// its last user lets go of it.
//
// Exchanging its table waits for I/O that is on its way to the lower device: take that device's paths away before.
func (h *Host) Discard(ctx context.Context, d Device) error {
	discarded := d.Lost() && d.Label != d.Owner.Label()
	if !discarded && d.SizeBytes > 0 { // else it never had a table
		if err := h.exchange(ctx, d.Label, Table{SizeBytes: d.SizeBytes}); err != nil {
			return err
		}
	}
	if d.Label == d.Owner.Label() {
		label := d.Label + "-" + d.Name
		if err := h.Control.Rename(d.Label, label); err != nil {
			return err
		}
		d.Label = label
	}
	// It may have been discarded before, and gone since: no other device has its label, in which is its name.
	if err := h.Control.RemoveLater(d.Label); err != nil && !errors.Is(err, syscall.ENXIO) {
		return err
	}
	return nil
}
