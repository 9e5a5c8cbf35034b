// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"context"

	"github.com/weft-storage/weft/dataplane/device"
)

// PoolLabel is the label of a pool's XFS: the mark that weft wrote it.
const PoolLabel = device.PoolLabel

// content of a device.
type content int

const (
	blank content = iota
	ours
	// unfinished: weft's own mkfs was interrupted, so there cannot be a volume in it.
	unfinished
)

// probe says what is on a device or file. What is neither blank nor weft's is a
// *device.ForeignSignatureError. An error is never "blank".
func (h *host) probe(ctx context.Context, path string) (content, error) {
	found, err := device.Look(ctx, h.exec, path)
	if err != nil {
		return 0, err
	}
	is, foreign := judge(found)
	if foreign != "" {
		return 0, &device.ForeignSignatureError{Device: path, Signature: foreign}
	}
	return is, nil
}

// judge what is on a device. A signature is named unless the device is weft's or blank.
func judge(found device.Content) (is content, foreign string) {
	ownXFS := found.Values["TYPE"] == "xfs" && found.Values["LABEL"] == PoolLabel && found.Values["PTTYPE"] == ""
	switch {
	case interrupted(found.Head) && (ownXFS || found.Values == nil):
		return unfinished, ""
	case ownXFS:
		return ours, ""
	}
	return blank, found.Name()
}

// interrupted says whether weft's own mkfs.xfs did not come to its end: byte 126 of the superblock is
// sb_inprogress (XFS Algorithms & Data Structures, "Superblocks").
func interrupted(head []byte) bool {
	return len(head) > 126 && head[126] != 0 && device.HasPoolXFS(head)
}
