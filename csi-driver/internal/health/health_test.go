// SPDX-License-Identifier: Apache-2.0

package health_test

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"

	"github.com/weft-storage/weft/csi-driver/internal/csitest"
	"github.com/weft-storage/weft/csi-driver/internal/health"
)

func TestConditionAsCallersOfCSI19ReadIt(t *testing.T) {
	for name, c := range map[string]struct {
		problems health.Problems
		abnormal bool
		message  string
	}{
		"well": {nil, false, "no problems"},
		"two": {health.Problems{
			{Kind: health.Degraded, Reason: "PathLost", Message: "one is gone"}, {Kind: health.Inaccessible, Reason: "ReadOnly", Message: "it failed"},
		}, true, "PathLost: one is gone; ReadOnly: it failed"},
	} {
		for _, answer := range []proto.Message{
			&csi.NodeGetVolumeStatsResponse{}, &csi.ListVolumesResponse_VolumeStatus{}, &csi.ControllerGetVolumeResponse_VolumeStatus{},
		} {
			c.problems.AddCondition(answer)
			abnormal, message, err := csitest.Condition(answer)
			if err != nil || abnormal != c.abnormal || message != c.message {
				t.Errorf("%s, %T: got %t, %q, %v", name, answer, abnormal, message, err)
			}
		}
	}
}

func TestVolume(t *testing.T) {
	if got := health.Problems(nil).Volume("v"); got.VolumeId != "v" || len(got.HealthStatuses) != 0 {
		t.Errorf("got %v", got)
	}
	got := health.Problems{{Kind: health.DataLoss, Reason: "Shrunk", Message: "half of it"}}.Volume("v")
	want := &csi.VolumeHealth{VolumeId: "v", HealthStatuses: []*csi.VolumeHealth_VolumeHealthEntry{
		{Status: csi.VolumeHealthErrorType_DATA_LOSS, Reason: "Shrunk", Message: "half of it"},
	}}
	if !proto.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}
