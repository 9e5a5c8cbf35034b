// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"

	"github.com/weft-storage/weft/csi-driver/internal/server"
	"github.com/weft-storage/weft/csi-driver/node/nodetest"
)

func TestConditionAsCallersOfCSI19ReadIt(t *testing.T) {
	for name, c := range map[string]struct {
		problems server.Problems
		abnormal bool
		message  string
	}{
		"well": {nil, false, "no problems"},
		"two": {server.Problems{
			{Kind: server.Degraded, Reason: "PathLost", Message: "one is gone"}, {Kind: server.Inaccessible, Reason: "ReadOnly", Message: "it failed"},
		}, true, "PathLost: one is gone; ReadOnly: it failed"},
	} {
		for _, answer := range []proto.Message{
			&csi.NodeGetVolumeStatsResponse{}, &csi.ListVolumesResponse_VolumeStatus{}, &csi.ControllerGetVolumeResponse_VolumeStatus{},
		} {
			c.problems.AddCondition(answer)
			abnormal, message, err := nodetest.Condition(answer)
			if err != nil || abnormal != c.abnormal || message != c.message {
				t.Errorf("%s, %T: got %t, %q, %v", name, answer, abnormal, message, err)
			}
		}
	}
}

func TestVolume(t *testing.T) {
	if got := server.Problems(nil).Volume("v"); got.VolumeId != "v" || len(got.HealthStatuses) != 0 {
		t.Errorf("got %v", got)
	}
	got := server.Problems{{Kind: server.DataLoss, Reason: "Shrunk", Message: "half of it"}}.Volume("v")
	want := &csi.VolumeHealth{VolumeId: "v", HealthStatuses: []*csi.VolumeHealth_VolumeHealthEntry{
		{Status: csi.VolumeHealthErrorType_DATA_LOSS, Reason: "Shrunk", Message: "half of it"},
	}}
	if !proto.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}
