// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"math"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/weft-storage/weft/api/v1alpha1"
)

const (
	// sizeStep that every engine can keep exactly.
	sizeStep = v1alpha1.VolumeSizeStep
	// maxVolumeBytes is the largest spec.size that an NvmfVolume can have.
	maxVolumeBytes = 8 << 50
	// defaultSize of a volume that is asked for without one.
	defaultSize = 1 << 30
)

// sizeRange of a volume, in bytes. Zero is no bound.
type sizeRange struct {
	required, limit int64
}

func newSizeRange(r *csi.CapacityRange) (sizeRange, error) {
	s := sizeRange{required: r.GetRequiredBytes(), limit: r.GetLimitBytes()}
	switch {
	case s.required < 0 || s.limit < 0:
		return s, failf(invalid, "size: %d to %d bytes: sizes must not be negative", s.required, s.limit)
	case r != nil && s == sizeRange{}:
		return s, failf(invalid, "size is zero; request at least 4Mi")
	case s.limit != 0 && s.required > s.limit:
		return s, failf(invalid, "size: required_bytes (%s) is greater than limit_bytes (%s)", quantity(s.required), quantity(s.limit))
	}
	return s, nil
}

// choose the size of a new volume: what is required, rounded up to whole steps, or the default.
func (s sizeRange) choose(minBytes int64, why string) (int64, error) {
	size := s.required
	if size == 0 {
		size = defaultSize
		if s.limit != 0 && s.limit < size {
			size = s.limit - s.limit%sizeStep
		}
	}
	if size > math.MaxInt64-sizeStep {
		return 0, failf(outOfRange, "size: %s is greater than the maximum size of a volume", quantity(size))
	}
	size = (size + sizeStep - 1) / sizeStep * sizeStep
	if s.limit != 0 && size > s.limit {
		return 0, failf(outOfRange, "size: volume sizes are multiples of 4Mi, and the next one, %s, is greater than the limit of %s",
			quantity(size), quantity(s.limit))
	}
	if size < minBytes {
		return 0, failf(outOfRange, "size: %s is too small: %s", quantity(size), why)
	}
	return size, nil
}

// holds says that an existing volume's size is within the range.
func (s sizeRange) holds(size int64) bool {
	return size >= s.required && (s.limit == 0 || size <= s.limit)
}

func quantity(n int64) string { return resource.NewQuantity(n, resource.BinarySI).String() }
