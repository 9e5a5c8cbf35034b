// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"k8s.io/utils/ptr"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/claim"
)

// TestPlanOfAServingNodeShowsWhatChanges, and what that interrupts.
func TestPlanOfAServingNodeShowsWhatChanges(t *testing.T) {
	const replaced, same = "target pod must be replaced", "No changes"
	for name, c := range map[string]struct {
		change     func(spec *v1alpha1.NvmfTargetSpec)
		want, lack []string
	}{
		"nothing":         {func(*v1alpha1.NvmfTargetSpec) {}, []string{same}, []string{replaced, "CHANGES"}},
		"cores":           {func(s *v1alpha1.NvmfTargetSpec) { s.Cores = &v1alpha1.Cores{Count: ptr.To[int32](4)} }, []string{"coreMask 0x1ff0000 0xf0000", replaced}, []string{same, "drive"}},
		"over-promising":  {func(s *v1alpha1.NvmfTargetSpec) { s.OverProvisioningPercent = 200 }, []string{"promises of each pool - up to 200%"}, []string{replaced, same}},
		"a smaller queue": {func(s *v1alpha1.NvmfTargetSpec) { s.Transports[0].QueueDepth = 64 }, []string{"8 I/O queues of depth 128", "8 I/O queues of depth 64", replaced}, nil},
		"queues of NICs": {func(s *v1alpha1.NvmfTargetSpec) {
			s.Tuning = &v1alpha1.Tuning{Rings: &v1alpha1.NICRings{RX: ptr.To[int32](4096)}}
		}, []string{"tuning.rings.rx - 4096", "Links of its NICs may be reset"}, []string{replaced, same}},
		"a device class": {func(s *v1alpha1.NvmfTargetSpec) {
			s.Devices = v1alpha1.Devices{Classes: []v1alpha1.DeviceClass{{Name: "tlc", Selector: s.Devices.Selector}}}
		}, []string{"drive eui.S3 serial S3 class tlc, serial S3"}, []string{replaced, same}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newCheckedFleet(t, "storage-1", "storage-2")
			f.claimed(t, "storage-1")
			f.seen()
			changed := f.targets[0].DeepCopy()
			c.change(&changed.Spec)
			answers := Answers{}
			for _, p := range claim.Prospects(changed, f.targets, f.claims) {
				answers.Plans = append(answers.Plans, answer(changed, p, nil))
			}
			if len(answers.Plans) != 2 || answers.Plans[0].Changes == nil || answers.Plans[1].Changes != nil {
				text, _ := json.Marshal(answers)
				t.Fatalf("want changes of the first of two nodes alone: %s", text)
			}
			var out bytes.Buffer
			lines := newTable(&out)
			answers.Plans[0].Changes.print(lines)
			words := strings.Join(strings.Fields(out.String()), " ")
			for _, want := range c.want {
				if !strings.Contains(words, want) {
					t.Errorf("%q is not in:\n%s", want, out.String())
				}
			}
			for _, lack := range c.lack {
				if strings.Contains(words, lack) {
					t.Errorf("%q is in:\n%s", lack, out.String())
				}
			}
		})
	}
}
