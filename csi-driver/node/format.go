// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
	"github.com/weft-storage/weft/csi-driver/node/internal/filesystem"
	"github.com/weft-storage/weft/internal/header"
)

// maxSources that a volume was made from, one from the other, are followed.
const maxSources = 64

// heading is the header of a volume that is being staged: the record of whether it was formatted, which lies with the
// data, and outlives objects and hosts as they do.
type heading struct {
	staging
	// on is what begins with it: a volume's only replica, or each that is in sync.
	on headed
	is header.Header
}

// headed is what has a volume's header.
type headed interface {
	// read the header, past all caches.
	read(ctx context.Context) (header.Header, error)
	// set what it says of the volume's data, durably, and read it again.
	set(ctx context.Context, is header.Header, next header.Record) (header.Header, error)
}

// readHeader of a volume. It fails with header.ErrUnusable, with errOtherHeader when it is that of a volume which this
// one was not made from, and with errEncryption. Nothing is written then.
func (st staging) readHeader(ctx context.Context, b base) (*heading, error) {
	h := &heading{staging: st, on: namespaceHeader{st.Initiator, b.ns}}
	var err error
	if b.mirrored() {
		h.on, err = st.mirrorHeader()
	}
	if err == nil {
		h.is, err = h.on.read(ctx)
	}
	if err != nil {
		return nil, err
	}
	if err := st.storedAsAsked(h.is); err != nil {
		return nil, err
	}
	if !b.mirrored() && h.is.Volume == h.own() && h.is.Mirror != "" {
		return nil, fmt.Errorf("%w: it is one of several replicas, and NvmfVolume %s lists it alone: another replica may have later data; list all members, "+
			"with spec.replicas, and restore its NvmfMirror", errOtherHeader, st.volume)
	}
	if !h.is.None() && h.is.Volume != h.own() {
		return h, st.madeFrom(ctx, h.is.Volume)
	}
	return h, nil
}

// storedAsAsked fails with errEncryption when a header says that the data are encrypted, and the volume's object does
// not, or the other way round. Data that are not taken for what they are would be overwritten, or written in plain
// text.
func (st staging) storedAsAsked(is header.Header) error {
	if is.None() || is.Encryption == string(st.at.Encryption) {
		return nil
	}
	said := func(encryption string) string {
		if encryption == "" {
			return "not encrypted"
		}
		return "encrypted with " + encryption
	}
	return fmt.Errorf("%w: its header says that the data is %s, and NvmfVolume %s says that it is %s; if the object was created again, delete it, and create it with the "+
		"spec.encryption that it had; nothing was written", errEncryption, said(is.Encryption), st.volume, said(string(st.at.Encryption)))
}

func (h *heading) own() string { return h.at.UUID }

// namespaceHeader is the header with which a namespace begins.
type namespaceHeader struct {
	Initiator
	ns fabrics.Namespace
}

func (n namespaceHeader) read(ctx context.Context) (header.Header, error) {
	start, err := n.ReadStart(ctx, n.ns, header.Bytes)
	if err != nil {
		return header.Header{}, err
	}
	is, err := header.Parse(start)
	if err != nil {
		err = fmt.Errorf("%s: %w", n.ns.Path, err)
	}
	return is, err
}

func (n namespaceHeader) set(ctx context.Context, is header.Header, next header.Record) (header.Header, error) {
	if is.Is(next) {
		return is, nil
	}
	offset, slot, err := is.Next(next)
	if err != nil {
		return is, err
	}
	if err := n.WriteStart(ctx, n.ns, offset, slot); err != nil {
		return is, fmt.Errorf("write the volume's header: %w", err)
	}
	now, err := n.read(ctx)
	if err == nil && !now.Is(next) {
		err = fmt.Errorf("%s: %w: it was written, and says something else", n.ns.Path, header.ErrUnusable)
	}
	return now, err
}

// madeFrom fails with errOtherHeader unless the volume may have been made from the one with a UUID, directly or not. A
// source that was deleted since leads nowhere, and may have been it.
func (st staging) madeFrom(ctx context.Context, uuid string) error {
	refuse := func(why string) error {
		return fmt.Errorf("%w: it is that of volume %s, and NvmfVolume %s %s; nothing was written", errOtherHeader, uuid, st.volume, why)
	}
	source := st.at.source
	for range maxSources {
		if source == nil {
			return refuse("was not created from it (if it was and its object was created again, delete the object and create it with spec.source)")
		}
		from, err := st.sourceOf(ctx, source)
		if apierrors.IsNotFound(err) {
			logr.FromContextOrDiscard(ctx).Info("The volume has the header of another volume, and its source is deleted", "volume", st.volume, "header", uuid)
			return nil
		}
		if err != nil {
			return err
		}
		if from.Spec.UUID == uuid {
			return nil
		}
		source = from.Spec.Source
	}
	return refuse(fmt.Sprintf("was created from it in more than %d steps", maxSources))
}

// sourceOf a volume: the volume that it was made from, be it through a snapshot. It fails with errUnread.
func (st staging) sourceOf(ctx context.Context, source *v1alpha1.VolumeSource) (*v1alpha1.NvmfVolume, error) {
	if source.Snapshot == "" {
		return st.readVolume(ctx, source.Volume)
	}
	var snapshot v1alpha1.NvmfSnapshot
	if err := st.get(ctx, "NvmfSnapshot", source.Snapshot, &snapshot); err != nil {
		return nil, err
	}
	return st.readVolume(ctx, snapshot.Spec.Volume)
}

// allowed: an administrator gave up what the volume holds, for this attachment, and that was not made use of yet.
func (h *heading) allowed() bool {
	return h.at.allowFormat && h.is.FormatUsedBy != h.at.Attachment
}

func (h *heading) fence() filesystem.Fence {
	states := map[header.State]filesystem.HeaderState{
		header.Formatting: filesystem.HeaderFormatting, header.Formatted: filesystem.HeaderFormatted,
	}
	return filesystem.Fence{Header: states[h.is.State], Blank: h.at.blank, AllowFormat: h.allowed(), Volume: h.volume}
}

// beginBlock makes durable that the volume may hold data, before anybody can write to it as a raw block device. It
// writes the same as any other host that shares the volume, whichever was admitted first.
func (h *heading) beginBlock(ctx context.Context) error {
	r := filesystem.Request{Device: h.volume, ReadOnly: h.use.readOnly, Fence: h.fence()}
	r.Fence.Blank = !h.at.written
	if err := r.MayBegin(); err != nil {
		return err
	}
	return h.end(ctx, header.Block)
}

// end makes durable that the volume is formatted, as what was asked for unless it was before, and that a permission to
// format was made use of. For who only reads it writes nothing.
func (h *heading) end(ctx context.Context, kind string) error {
	if h.use.readOnly {
		return nil
	}
	if h.is.State == header.Formatted {
		kind = h.is.Type
	}
	return h.set(ctx, header.Formatted, kind)
}

// set the volume's header, and read it again. A header that says so already stays. One that came with the data from
// another volume is replaced by one of the volume's own.
func (h *heading) set(ctx context.Context, state header.State, kind string) error {
	next := h.is.Record
	if next.Volume != h.own() {
		next = header.Record{Volume: h.own()}
	}
	next.State, next.Type, next.Encryption = state, kind, string(h.at.Encryption)
	if h.at.allowFormat {
		next.FormatUsedBy = h.at.Attachment
	}
	now, err := h.on.set(ctx, h.is, next)
	if err == nil {
		h.is = now
	}
	return err
}
