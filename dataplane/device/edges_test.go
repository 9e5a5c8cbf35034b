// SPDX-License-Identifier: Apache-2.0

package device

import (
	"bytes"
	"errors"
	"io"
	"testing"
)

func TestZeroEdges(t *testing.T) {
	const mib = 1 << 20
	for name, c := range map[string]struct {
		size int
		at   []int // what is not zero
		want bool
	}{
		"zeros":                                    {4 * mib, nil, true},
		"the first byte":                           {4 * mib, []int{0}, false},
		"the last byte of the first MiB":           {4 * mib, []int{mib - 1}, false},
		"between":                                  {4 * mib, []int{mib, 3*mib - 1}, true},
		"the first byte of the last MiB":           {4 * mib, []int{3 * mib}, false},
		"the last byte":                            {4 * mib, []int{4*mib - 1}, false},
		"smaller than an edge":                     {4096, nil, true},
		"smaller than an edge, its last byte":      {4096, []int{4095}, false},
		"smaller than two edges, where they touch": {mib + 1, []int{mib}, false},
	} {
		t.Run(name, func(t *testing.T) {
			device := make([]byte, c.size)
			for _, at := range c.at {
				device[at] = 1
			}
			if zero, err := ZeroEdges(bytes.NewReader(device)); err != nil || zero != c.want {
				t.Errorf("got %t, %v; want %t", zero, err, c.want)
			}
		})
	}
	t.Run("nothing to read", func(t *testing.T) {
		if zero, err := ZeroEdges(bytes.NewReader(nil)); err == nil {
			t.Errorf("got %t, want an error", zero)
		}
	})
	t.Run("an end that cannot be read, behind a beginning that is not zero", func(t *testing.T) {
		device := halfDead{bytes.NewReader(bytes.Repeat([]byte{1}, 4*mib))}
		if zero, err := ZeroEdges(device); !errors.Is(err, errDead) {
			t.Errorf("got %t, %v", zero, err)
		}
	})
}

var errDead = errors.New("input/output error")

// halfDead fails reads beyond its first half.
type halfDead struct{ *bytes.Reader }

func (d halfDead) Read(p []byte) (int, error) {
	if at, _ := d.Seek(0, io.SeekCurrent); at >= d.Size()/2 {
		return 0, errDead
	}
	return d.Reader.Read(p)
}
