// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
	"github.com/weft-storage/weft/internal/header"
)

// beginHeader tells what the first header of a replica in sync says of its data, and what was found in its place.
type beginHeader func(ctx context.Context, name string, found header.Header) (header.Record, error)

// mirrorHeaders are the headers of a mirrored volume's replicas. The keeper writes the mirror's part of each, and a
// stage what they say of the data; both go through here, so that neither takes back what the other wrote.
type mirrorHeaders struct {
	*Service
	volume, uuid string
	slices       *mirrorSlices

	// writing is held while a replica's header is written.
	writing locks

	mu sync.Mutex
	// data is what a stage writes into the headers about the volume's data; nil before it writes anything.
	data *header.Record
	// begin tells what the first header of a replica says of its data; nil when none may be written.
	begin beginHeader
}

// read a replica's header, past all caches.
func (h *mirrorHeaders) read(ctx context.Context, name string) (namespaceHeader, header.Header, error) {
	ns, _, err := h.slices.namespace(name)
	if err != nil {
		return namespaceHeader{}, header.Header{}, err
	}
	on := namespaceHeader{h.Initiator, ns}
	is, err := on.read(ctx)
	return on, is, err
}

// Read implements keeper.Headers. A header that came with the data of another volume has no part of this mirror.
func (h *mirrorHeaders) Read(ctx context.Context, name string) (mirror.Header, error) {
	_, is, err := h.read(ctx, name)
	if err != nil {
		return mirror.Header{}, err
	}
	if is.Volume != h.uuid {
		return mirror.ParseHeader("")
	}
	return mirror.ParseHeader(is.Mirror)
}

// Write implements keeper.Headers.
func (h *mirrorHeaders) Write(ctx context.Context, name string, part mirror.Header) error {
	text, err := part.Encode()
	if err != nil {
		return err
	}
	defer h.writing.lock(name)()
	on, is, err := h.read(ctx, name)
	if err != nil {
		return err
	}
	next, err := h.says(ctx, name, part, is)
	if err != nil {
		return err
	}
	next.Mirror = text
	_, err = on.set(ctx, is, next)
	return err
}

// says is what a replica's header is to say of the data: what it said, if the replica is in sync, else what those say
// that are.
func (h *mirrorHeaders) says(ctx context.Context, name string, part mirror.Header, is header.Header) (header.Record, error) {
	next := is.Record
	if part.Members[name] == v1alpha1.MemberInSync {
		if is.None() || is.Volume != h.uuid {
			var err error
			if next, err = h.first(ctx, name, is); err != nil {
				return next, err
			}
		}
		return h.withData(next), nil
	}
	if !is.None() && is.Volume != h.uuid {
		return next, fmt.Errorf("%w: %s has that of volume %s; nothing was written", errOtherHeader, name, is.Volume)
	}
	var errs []error
	for _, other := range slices.Sorted(maps.Keys(part.Members)) {
		if part.Members[other] != v1alpha1.MemberInSync {
			continue
		}
		_, from, err := h.read(ctx, other)
		if err == nil && from.Volume == h.uuid {
			return h.withData(from.Record), nil
		}
		errs = append(errs, err)
	}
	return next, fmt.Errorf("no replica in sync says whether the volume is formatted: %w", cmp.Or(errors.Join(errs...), errNotStaged))
}

// first header of a replica in sync.
func (h *mirrorHeaders) first(ctx context.Context, name string, is header.Header) (header.Record, error) {
	h.mu.Lock()
	begin := h.begin
	h.mu.Unlock()
	if begin == nil {
		return header.Record{}, fmt.Errorf("%w: %s has none of the volume's, and is in sync", header.ErrUnusable, name)
	}
	return begin(ctx, name, is)
}

func (h *mirrorHeaders) withData(r header.Record) header.Record {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.data != nil {
		r.Volume, r.State, r.Type, r.FormatUsedBy, r.Encryption = h.data.Volume, h.data.State, h.data.Type, h.data.FormatUsedBy, h.data.Encryption
	}
	return r
}

// mayBegin says how first headers are written from now on.
func (h *mirrorHeaders) mayBegin(begin beginHeader) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.begin = begin
}

// mirrorHeader is what the headers of all replicas in sync say together of the volume's data.
type mirrorHeader struct {
	*mirrorHeaders
	records *mirrorRecords
}

// members that are in sync, and those that the mirror writes to beside them, by a live read.
func (h mirrorHeader) members(ctx context.Context) (inSync, others []string, err error) {
	v, err := h.records.live(ctx)
	for _, m := range v.Members {
		switch m.State {
		case v1alpha1.MemberInSync:
			inSync = append(inSync, m.Replica)
		case v1alpha1.MemberReturning, v1alpha1.MemberFilling:
			others = append(others, m.Replica)
		}
	}
	if err == nil && len(inSync) == 0 {
		err = fmt.Errorf("%w: volume %s has no replica in sync", errNotStaged, h.volume)
	}
	return inSync, others, err
}

// read implements headed. One that says Formatted is enough: what was being formatted is formatted by then.
func (h mirrorHeader) read(ctx context.Context) (header.Header, error) {
	inSync, _, err := h.members(ctx)
	if err != nil {
		return header.Header{}, err
	}
	var joint header.Header
	for _, name := range inSync {
		_, is, err := h.mirrorHeaders.read(ctx, name)
		if err != nil {
			return joint, fmt.Errorf("the header of %s: %w", name, err)
		}
		if joint.None() || is.State == header.Formatted && joint.State != header.Formatted {
			joint = is
		}
		if is.None() || is.Volume != h.uuid {
			return is, fmt.Errorf("%w: %s has none of the volume's", header.ErrUnusable, name)
		}
	}
	return joint, nil
}

// set implements headed: on every replica that the mirror writes to. Those that return meanwhile get the same from the
// keeper.
func (h mirrorHeader) set(ctx context.Context, is header.Header, next header.Record) (header.Header, error) {
	h.mu.Lock()
	h.data = &next
	h.mu.Unlock()
	inSync, others, err := h.members(ctx)
	if err != nil {
		return is, err
	}
	for _, name := range inSync {
		if is, err = h.setOne(ctx, name); err != nil {
			return is, fmt.Errorf("the header of %s: %w", name, err)
		}
	}
	for _, name := range others {
		if _, err := h.setOne(ctx, name); err != nil && !errors.Is(err, errNotStaged) {
			return is, fmt.Errorf("the header of %s: %w", name, err)
		}
	}
	return is, nil
}

// setOne header. One that the keeper has not written yet is left to it.
func (h mirrorHeader) setOne(ctx context.Context, name string) (header.Header, error) {
	defer h.writing.lock(name)()
	on, is, err := h.mirrorHeaders.read(ctx, name)
	if err != nil {
		return is, err
	}
	if is.None() || is.Volume != h.uuid {
		return is, fmt.Errorf("%w: it has none of the volume's yet", errNotStaged)
	}
	return on.set(ctx, is, h.withData(is.Record))
}
