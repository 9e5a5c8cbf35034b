// SPDX-License-Identifier: Apache-2.0

package node

import (
	"slices"
	"testing"

	"github.com/weft-storage/weft/csi-driver/node/internal/md"
)

func TestKicked(t *testing.T) {
	const volume = "0a0b0c0d-0e0f-4001-8203-040506070001"
	member := func(name string, role md.Role, events uint64, roles ...md.Role) metadata {
		return metadata{name: name, Superblock: md.Superblock{Array: volume, Bitmap: true, Role: role, Events: events, Roles: roles}}
	}
	whole, cutOff := member("a", 0, 9, 0), member("b", 1, 3, 0, 1)
	cutOff.Bitmap = false
	for name, c := range map[string]struct {
		all  []metadata
		want []string
	}{
		"equal":                        {[]metadata{member("a", 0, 9, 0, 1), member("b", 1, 9, 0, 1)}, nil},
		"a write was cut off":          {[]metadata{member("a", 0, 9, 0, 1), member("b", 1, 8, 0, 1)}, nil},
		"one is behind":                {[]metadata{member("a", 0, 9, 0, 1), member("b", 1, 7, 0, 1)}, []string{"b"}},
		"one is unknown to the other":  {[]metadata{member("a", 0, 9, 0), member("b", 1, 9, 0, 1)}, []string{"b"}},
		"none was ever started":        {[]metadata{{name: "a", none: true}, {name: "b", none: true}}, nil},
		"making it was cut off":        {[]metadata{{name: "a", none: true}, cutOff}, nil},
		"making it was cut off on one": {[]metadata{whole, cutOff}, []string{"b"}},
		"one has none":                 {[]metadata{whole, {name: "b", none: true}}, []string{"b"}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := kicked(volume, c.all); !slices.Equal(got, c.want) {
				t.Errorf("kicked are %v, want %v", got, c.want)
			}
		})
	}
}
