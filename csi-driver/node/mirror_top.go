// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"slices"

	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
	"github.com/weft-storage/weft/csi-driver/node/internal/mapper"
)

// mirrorTop is the device of a mirrored volume that pods see, and who uses it.
type mirrorTop struct {
	*Service
	uuid string
	// of tells whether a device that was made for an attachment is meant.
	of func(attachment string) bool
}

// devices that do not fail.
func (t *mirrorTop) devices() ([]mapper.Device, error) {
	all, err := t.Mapper.Of(t.uuid)
	var ours []mapper.Device
	for _, d := range all {
		if t.of(d.Attachment) && !d.Lost() {
			ours = append(ours, d)
		}
	}
	return ours, err
}

// Exists implements keeper.Top.
func (t *mirrorTop) Exists() (bool, error) {
	all, err := t.devices()
	return len(all) > 0, err
}

// Bypasses implements keeper.Top.
func (t *mirrorTop) Bypasses() (bool, error) {
	all, err := t.devices()
	if err != nil || len(all) == 0 {
		return false, err
	}
	b, err := t.mirrorOf(t.uuid)
	if err != nil && !errors.Is(err, fabrics.ErrNotFound) {
		return false, err
	}
	return slices.ContainsFunc(all, func(d mapper.Device) bool { return d.Lower != b.lower() }), nil
}

// Block implements keeper.Top.
func (t *mirrorTop) Block(ctx context.Context) error {
	all, err := t.devices()
	for _, d := range all {
		err = errors.Join(err, t.Mapper.Suspend(ctx, d))
	}
	return err
}

// Fail implements keeper.Top.
func (t *mirrorTop) Fail(ctx context.Context) error {
	all, err := t.devices()
	for _, d := range all {
		err = errors.Join(err, t.Mapper.Discard(ctx, d))
	}
	return err
}

// Kill implements keeper.Users.
func (t *mirrorTop) Kill() (int, error) {
	all, err := t.devices()
	if err != nil || len(all) == 0 {
		return 0, err
	}
	var numbers []string
	for _, d := range all {
		numbers = append(numbers, d.Number)
	}
	return t.Processes.Kill(numbers...)
}
