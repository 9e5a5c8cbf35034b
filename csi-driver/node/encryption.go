// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/go-logr/logr"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node/internal/filesystem"
	"github.com/weft-storage/weft/csi-driver/node/internal/mapper"
	"github.com/weft-storage/weft/internal/header"
)

// An encrypted volume has a device of dm-crypt in place of a linear one, over its replica or its mirror. So data are
// encrypted before they are sent to any replica. The LUKS header lies with the data, is mirrored and copied with them,
// and is made under the same fence as a filesystem: after the volume's header says Formatting, and before it says
// Formatted.
//
// cryptsetup reads and writes the LUKS header only. It sees it through a device of its own (mapper.LUKS), which is gone
// before the volume's device is made. That one is made by this plugin, with the flags that keep the host's udev away.

// keySource gives the keys that open the key slots of a volume's LUKS header. Secrets and a KMS are such sources.
type keySource interface {
	// newKey for a volume that is encrypted now, and what is to be kept with its LUKS header so that existingKeys gives
	// the same again; empty for nothing. The caller clears the key.
	newKey(ctx context.Context) (key []byte, token string, err error)
	// withToken tells whether newKey gives something to be kept.
	withToken() bool
	// existingKeys are the key of a volume that is encrypted, by what newKey kept with its header, and the one that it
	// replaces; nil for none. The caller clears them.
	existingKeys(ctx context.Context, token string) (current, former []byte, err error)
}

// encrypted tells whether an attachment's volume is encrypted.
func (a attached) encrypted() bool { return a.Encryption != "" }

// kind of the device that pods see of the volume.
func (a attached) kind() mapper.Kind {
	if a.encrypted() {
		return mapper.Crypt
	}
	return mapper.Plain
}

// unlock makes the device of an encrypted volume: it makes the LUKS header first, where the fence lets it. What it did
// is undone when it fails, but for the header.
func (st staging) unlock(ctx context.Context, b base, h *heading) (device, error) {
	if st.at.Encryption != v1alpha1.EncryptionLUKS2 {
		return device{}, fmt.Errorf("%w: NvmfVolume %s has encryption %q; use a newer version of weft on this node", errIncompatible, st.volume, st.at.Encryption)
	}
	if st.use.shared {
		return device{}, invalid("an encrypted volume cannot be written by several nodes: each could make a LUKS header of its own; use access mode ReadWriteOnce")
	}
	keys, err := keysFrom(st.secrets, st.volume)
	if err != nil {
		return device{}, err
	}
	volumeKey, err := st.openLUKS(ctx, b, h, keys)
	if err != nil {
		return device{}, err
	}
	defer clear(volumeKey)
	return st.buildSpec(ctx, b, mapper.Spec{
		Owner:  mapper.Owner{Volume: st.at.UUID, Kind: mapper.Crypt},
		Cipher: &mapper.Cipher{Name: filesystem.LUKSCipher, Key: volumeKey, SectorBytes: filesystem.LUKSSectorBytes},
	})
}

// openLUKS gives the volume's key. The device through which the LUKS header is seen is gone when it returns.
func (st staging) openLUKS(ctx context.Context, b base, h *heading, keys keySource) (volumeKey []byte, err error) {
	d, err := st.buildSpec(ctx, b, mapper.Spec{Owner: mapper.Owner{Volume: st.at.UUID, Kind: mapper.LUKS}})
	if err != nil {
		return nil, err
	}
	defer func() {
		if removeErr := st.Mapper.Remove(ctx, d.Device); removeErr != nil {
			clear(volumeKey)
			volumeKey, err = nil, errors.Join(err, removeErr)
		}
	}()
	opened, err := st.open(ctx, d, st.use.readOnly)
	if err != nil {
		return nil, err
	}
	defer opened.Close() //nolint:errcheck // nothing was written through it
	kind := st.use.fsType
	if st.use.block {
		kind = header.Block
	}
	is, err := st.Filesystems.PrepareLUKS(ctx, filesystem.Request{
		Device: d.Path, SizeBytes: d.SizeBytes, Type: filesystem.LUKS, ReadOnly: st.use.readOnly, Fence: h.fence(), WithToken: keys.withToken(),
		Begin: func(ctx context.Context) error { return h.set(ctx, header.Formatting, kind) },
	}, keys.newKey)
	if err != nil {
		return nil, err
	}
	defer is.Close() //nolint:errcheck // it is memory
	return st.openSlot(ctx, d.Path, is, keys, h.is.State == header.Formatting)
}

// openSlot of a LUKS header, with the current key or the one that it replaces. The current one has a slot before the
// former one loses its own. Unused: the volume's header says that nothing was ever stored in it.
func (st staging) openSlot(ctx context.Context, path string, is filesystem.LUKSHeader, keys keySource, unused bool) (volumeKey []byte, err error) {
	current, former, err := keys.existingKeys(ctx, is.Token)
	if err != nil {
		return nil, err
	}
	defer clear(current)
	defer clear(former)
	if volumeKey, err = st.Filesystems.LUKSKey(ctx, is, current); errors.Is(err, filesystem.ErrWrongKey) {
		err = st.wrongKey(former != nil, unused, err)
		if former != nil {
			volumeKey, err = st.addSlot(ctx, path, is, current, former, err)
		}
	}
	if err != nil || former == nil || st.use.readOnly || slices.Equal(current, former) {
		return volumeKey, err
	}
	// Of an earlier change that was cut off, or of this one.
	err = st.Filesystems.RemoveLUKSKey(ctx, path, former)
	switch {
	case err == nil:
		logr.FromContextOrDiscard(ctx).Info("Removed the key slot of the former key", "volume", st.volume)
	case !errors.Is(err, filesystem.ErrWrongKey):
		clear(volumeKey)
		return nil, err
	}
	return volumeKey, nil
}

// addSlot for the current key with the one that it replaces. Refused is the error if that opens none either.
func (st staging) addSlot(ctx context.Context, path string, is filesystem.LUKSHeader, current, former []byte, refused error) (volumeKey []byte, err error) {
	volumeKey, err = st.Filesystems.LUKSKey(ctx, is, former)
	if errors.Is(err, filesystem.ErrWrongKey) {
		return nil, refused
	}
	if err != nil {
		return nil, err
	}
	if !st.use.readOnly {
		logr.FromContextOrDiscard(ctx).Info("Adding a key slot for the changed key", "volume", st.volume)
		if err = st.Filesystems.AddLUKSKey(ctx, path, former, current); err == nil {
			err = st.opensTheSame(ctx, path, current, volumeKey)
		}
	}
	if err != nil {
		clear(volumeKey)
		return nil, err
	}
	if st.use.readOnly {
		logr.FromContextOrDiscard(ctx).Info("The volume was opened with the former key, and is not changed, because it is staged read-only; keep the former key until it was staged for writing",
			"volume", st.volume)
	}
	return volumeKey, nil
}

// opensTheSame fails unless a key opens a slot with the volume's key. cryptsetup reads the header again when it adds a
// slot: a target that answers something else then must not make the slot one of another key.
func (st staging) opensTheSame(ctx context.Context, path string, key, volumeKey []byte) error {
	is, err := st.Filesystems.ReadLUKS(ctx, path)
	if err != nil {
		return err
	}
	defer is.Close() //nolint:errcheck // it is memory
	opened, err := st.Filesystems.LUKSKey(ctx, is, key)
	defer clear(opened)
	if err == nil && !slices.Equal(opened, volumeKey) {
		err = fmt.Errorf("%w: the key slot that was added has the key of another volume", filesystem.ErrUnknownLUKS)
	}
	return err
}

// wrongKey says what to do about a key that opens nothing.
func (st staging) wrongKey(withFormer, unused bool, err error) error {
	if unused {
		return fmt.Errorf("%w of volume %s, in which nothing was stored yet: put the key that the Secret had when the volume was first staged into it; if that is lost, "+
			"delete the claim, and create it again; nothing was written", err, st.volume)
	}
	if withFormer {
		return fmt.Errorf("%w of volume %s, and neither does the former key: put the key with which the volume was encrypted last into the Secret; nothing was written", err, st.volume)
	}
	advice := "put the key with which the volume was encrypted into the Secret, or add it as " + secretFormer + " if you changed the key"
	if st.at.source != nil {
		advice += "; a volume that was created from another one, or from a snapshot, has the key of that one"
	}
	return fmt.Errorf("%w of volume %s: %s; nothing was written", err, st.volume, advice)
}
