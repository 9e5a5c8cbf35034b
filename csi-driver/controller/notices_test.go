// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
)

// twoMembers of a volume, on two nodes.
var twoMembers = []v1alpha1.VolumeMember{{Name: "v-0", Node: "a"}, {Name: "v-1", Node: "b"}}

// mirrorWith a member v-0 that is in sync, and v-1 in a state.
func mirrorWith(epoch int64, state v1alpha1.MirrorMemberState, reason string, change ...func(*mirror.Member)) *v1alpha1.NvmfMirror {
	since := metav1.NewTime(time.Unix(epoch, 0))
	m := mirror.Member{Replica: "v-1", ReplicaUID: "u-1", State: state, Reason: reason, Since: &since}
	for _, c := range change {
		c(&m)
	}
	return &v1alpha1.NvmfMirror{ObjectMeta: metav1.ObjectMeta{Name: "v", UID: "m"}, Spec: mirror.Record{Epoch: epoch, Members: []mirror.Member{
		{Replica: "v-0", ReplicaUID: "u-0", State: v1alpha1.MemberInSync}, m,
	}}}
}

func volumeWith(generation int64, move *v1alpha1.VolumeMove, members ...v1alpha1.VolumeMember) *v1alpha1.NvmfVolume {
	return &v1alpha1.NvmfVolume{ObjectMeta: metav1.ObjectMeta{Name: "v", UID: "vol", Generation: generation}, Spec: v1alpha1.NvmfVolumeSpec{Members: members, Move: move}}
}

func replicaWith(reason string) *v1alpha1.NvmfReplica {
	return &v1alpha1.NvmfReplica{
		ObjectMeta: metav1.ObjectMeta{Name: "v-0", UID: "r"}, Spec: v1alpha1.NvmfReplicaSpec{Node: "a", Volume: v1alpha1.ReplicaOf{Name: "v"}},
		Status: v1alpha1.NvmfReplicaStatus{Conditions: []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: reason, Message: "older than what it acted on"}}},
	}
}

// leftWith is a replica that its volume does not list, before or after it was to be deleted.
func leftWith(reason string, retired bool) *v1alpha1.NvmfReplica {
	rep := replicaWith(reason)
	rep.Name = "v-9"
	if retired {
		rep.Annotations = map[string]string{retiredAnnotation: string(rep.UID)}
	}
	return rep
}

func named(name string, rep *v1alpha1.NvmfReplica) *v1alpha1.NvmfReplica {
	rep.Name = name
	return rep
}

func TestNotices(t *testing.T) {
	inSync, out, returning, filling := v1alpha1.MemberInSync, v1alpha1.MemberOut, v1alpha1.MemberReturning, v1alpha1.MemberFilling
	to := func(replacement, waiting string) *v1alpha1.VolumeMove {
		return &v1alpha1.VolumeMove{Replica: "v-1", Node: "c", Replacement: replacement, Waiting: waiting}
	}
	moved := v1alpha1.VolumeMember{Name: "v-2", Node: "c"}
	retiring := func(m *mirror.Member) { m.Retired = true }
	refuse := func(m *mirror.Member) { m.Foreign = true }
	another := func(m *mirror.Member) { m.ReplicaUID = "u-9" }
	deleted := func(o client.Object) client.Object {
		now := metav1.Now()
		o.SetDeletionTimestamp(&now)
		return o
	}
	recreated := func(o client.Object) client.Object { o.SetUID(types.UID("other")); return o }
	for _, test := range []struct {
		name    string
		was, is client.Object
		// want are the notices: kind, reason, and what each says.
		want [][]string
	}{
		{"nothing new", mirrorWith(2, out, mirror.ReasonLost), mirrorWith(2, out, mirror.ReasonLost), nil},
		{"a replica is lost", mirrorWith(1, inSync, ""), mirrorWith(2, out, mirror.ReasonLost),
			[][]string{{"Warning", "ReplicaLost", "the replica on node b is no longer used: it did not answer", "volume goes on with the replica on node a", "replaceLostReplicaAfter", "kubectl weft move"}}},
		{"a replica is left behind by an attachment", mirrorWith(1, inSync, ""), mirrorWith(2, out, mirror.ReasonUnconfirmed),
			[][]string{{"Warning", "ReplicaLost", "did not confirm in time"}}},
		{"a replica is lost while it is filled", mirrorWith(1, filling, mirror.ReasonNew), mirrorWith(2, out, mirror.ReasonLost),
			[][]string{{"Warning", "ReplicaLost", "the replica on node b"}}},
		{"an attachment ends a copy", mirrorWith(1, returning, mirror.ReasonBitmap), mirrorWith(2, out, mirror.ReasonUnconfirmed), nil},
		{"a replica leaves on request", mirrorWith(1, inSync, "", retiring), mirrorWith(2, out, mirror.ReasonRetired, retiring), nil},
		{"a replica is released", mirrorWith(2, out, mirror.ReasonLost), mirrorWith(2, out, mirror.ReasonLost, func(m *mirror.Member) { m.Released = true }), nil},
		{"a replica returns", mirrorWith(2, out, mirror.ReasonLost), mirrorWith(3, returning, mirror.ReasonBitmap),
			[][]string{{"Normal", "ReplicaReturning", "the replica on node b returns: it gets what was written meanwhile"}}},
		{"a replica returns, and gets everything", mirrorWith(2, out, mirror.ReasonLost), mirrorWith(3, filling, mirror.ReasonNew),
			[][]string{{"Normal", "ReplicaReturning", "it gets a full copy"}}},
		{"a copy of what changed becomes a full one", mirrorWith(2, returning, mirror.ReasonBitmap), mirrorWith(3, filling, mirror.ReasonBitmap),
			[][]string{{"Normal", "ReplicaReturning", "it gets a full copy"}}},
		{"a replica was never disconnected", mirrorWith(2, out, mirror.ReasonLost), mirrorWith(3, returning, mirror.ReasonKept),
			[][]string{{"Normal", "ReplicaReturning", "never disconnected it"}}},
		{"a copy makes progress", mirrorWith(3, returning, mirror.ReasonBitmap), mirrorWith(3, returning, mirror.ReasonBitmap, func(m *mirror.Member) { m.CopiedBytes = 1 }), nil},
		{"a replica is in sync again", mirrorWith(3, returning, mirror.ReasonBitmap), mirrorWith(4, inSync, ""),
			[][]string{{"Normal", "ReplicaInSync", "the replica on node b is in sync", "2 of 2"}}},
		{"a replica was created again", mirrorWith(3, out, mirror.ReasonLost), mirrorWith(4, filling, mirror.ReasonNew, another), nil},
		{"a replica is refused", mirrorWith(2, out, mirror.ReasonLost), mirrorWith(2, out, mirror.ReasonLost, refuse),
			[][]string{{"Warning", "ReplicaRefused", "the replica on node b is not taken back", "not replaced automatically", "replica-missing.md"}}},
		{"a replica is refused still", mirrorWith(2, out, mirror.ReasonLost, refuse), mirrorWith(2, out, mirror.ReasonLost, refuse), nil},
		{"a replica that is to leave is refused", mirrorWith(2, out, mirror.ReasonLost, retiring), mirrorWith(2, out, mirror.ReasonLost, retiring, refuse), nil},
		{"a replica that was refused returns", mirrorWith(2, out, mirror.ReasonLost, refuse), mirrorWith(3, returning, mirror.ReasonBitmap), [][]string{{"Normal", "ReplicaReturning"}}},
		{"a record was restored", mirrorWith(1, inSync, ""), recreated(mirrorWith(2, out, mirror.ReasonLost)), nil},
		{"a record is deleted", mirrorWith(1, inSync, ""), deleted(mirrorWith(2, out, mirror.ReasonLost)), nil},

		{"a volume grows", volumeWith(1, nil, twoMembers...), volumeWith(2, nil, twoMembers...), nil},
		{"a move starts", volumeWith(1, nil, twoMembers...), volumeWith(2, to("", ""), twoMembers...),
			[][]string{{"Normal", "MoveStarted", "the replica on node b moves to node c"}}},
		{"a move to any node starts", volumeWith(1, nil, twoMembers...), volumeWith(2, &v1alpha1.VolumeMove{Replica: "v-0"}, twoMembers...),
			[][]string{{"Normal", "MoveStarted", "the replica on node a moves to another node"}}},
		{"a lost replica is replaced", volumeWith(1, nil, twoMembers...), volumeWith(2, &v1alpha1.VolumeMove{Replica: "v-1", Reason: v1alpha1.MoveReplicaLost}, twoMembers...),
			[][]string{{"Normal", "MoveStarted", "the replica on node b is lost, and is replaced by a new one on another node"}}},
		{"a move waits", volumeWith(2, to("", ""), twoMembers...), volumeWith(3, to("", "no node has room"), twoMembers...),
			[][]string{{"Warning", "MoveWaiting", "the replica on node b waits: no node has room"}}},
		{"a move waits still", volumeWith(3, to("", "no node has room"), twoMembers...), volumeWith(4, to("v-2", "no node has room"), twoMembers...), nil},
		{"a person chooses the node of a replacement", volumeWith(2, &v1alpha1.VolumeMove{Replica: "v-1", Reason: v1alpha1.MoveReplicaLost, Replacement: "v-2"}, twoMembers[0], twoMembers[1], moved),
			volumeWith(3, &v1alpha1.VolumeMove{Replica: "v-1", Node: "d"}, twoMembers[0], twoMembers[1], moved), [][]string{{"Normal", "MoveStarted", "the replica on node b moves to node d"}}},
		{"a move goes on", volumeWith(3, to("", "no node has room"), twoMembers...), volumeWith(4, to("v-2", ""), twoMembers...), nil},
		{"a move starts and waits, seen at once", volumeWith(1, nil, twoMembers...), volumeWith(3, to("", "no node has room"), twoMembers...),
			[][]string{{"Normal", "MoveStarted"}, {"Warning", "MoveWaiting"}}},
		{"a move ends", volumeWith(5, to("v-2", ""), twoMembers[0], twoMembers[1], moved), volumeWith(6, nil, twoMembers[0], moved),
			[][]string{{"Normal", "MoveFinished", "the replica on node b was replaced by the replica on node c"}}},
		{"a move is canceled", volumeWith(5, to("v-2", ""), twoMembers[0], twoMembers[1], moved), volumeWith(6, nil, twoMembers[0], twoMembers[1], moved),
			[][]string{{"Normal", "MoveCanceled", "the replica on node b stays"}}},
		{"a move ends and another starts, seen at once", volumeWith(5, to("v-2", ""), twoMembers[0], twoMembers[1], moved), volumeWith(7, &v1alpha1.VolumeMove{Replica: "v-0"}, twoMembers[0], moved),
			[][]string{{"Normal", "MoveFinished"}, {"Normal", "MoveStarted", "node a"}}},
		{"a volume is deleted", volumeWith(1, to("", ""), twoMembers...), deleted(volumeWith(2, nil, twoMembers...)), nil},

		{"the API may have been restored", replicaWith(v1alpha1.ReasonAsExpected), replicaWith(v1alpha1.ReasonRestoreSuspected),
			[][]string{{"Warning", "RestoreSuspected", "node a", "cannot be attached again", "older than what it acted on"}}},
		{"the API may have been restored, still", replicaWith(v1alpha1.ReasonRestoreSuspected), replicaWith(v1alpha1.ReasonRestoreSuspected), nil},
		{"a replica that has left is kept", leftWith(v1alpha1.ReasonRestoreSuspected, true), leftWith(v1alpha1.ReasonRestoreSuspected, false),
			[][]string{{"Warning", "ReplicaKept", "replica v-9 on node a has left the volume, but is not deleted", "restore-suspected.md"}}},
		{"a replica that has left is suspect and kept, seen at once", leftWith(v1alpha1.ReasonAsExpected, true), leftWith(v1alpha1.ReasonRestoreSuspected, false),
			[][]string{{"Warning", "RestoreSuspected", "nothing of replica v-9: older"}, {"Warning", "ReplicaKept"}}},
		{"a replica that was to leave is declared current", leftWith(v1alpha1.ReasonAsExpected, true), leftWith(v1alpha1.ReasonAsExpected, false), nil},
		{"a replica that was to leave is declared current, and suspect", named("v-0", leftWith(v1alpha1.ReasonRestoreSuspected, true)), named("v-0", leftWith(v1alpha1.ReasonRestoreSuspected, false)), nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := noticesOf(test.was, test.is, twoMembers)
			if len(got) != len(test.want) {
				t.Fatalf("got %+v, want %v", got, test.want)
			}
			keys := map[string]bool{}
			for i, want := range test.want {
				if got[i].kind != want[0] || got[i].reason != want[1] {
					t.Errorf("got %s %s, want %s %s", got[i].kind, got[i].reason, want[0], want[1])
				}
				for _, says := range want[2:] {
					if !strings.Contains(got[i].note, says) {
						t.Errorf("%q does not say %q", got[i].note, says)
					}
				}
				keys[got[i].key] = true
			}
			if len(keys) != len(got) || keys[""] {
				t.Errorf("the keys do not tell what happened apart: %v", keys)
			}
		})
	}
}

// A full copy tells each quarter once, whoever notices it, and however many come at once.
func TestNoticesOfProgress(t *testing.T) {
	const size = 1000
	at := func(state v1alpha1.MirrorMemberState, copied int64, change ...func(*mirror.Member)) *v1alpha1.NvmfMirror {
		return mirrorWith(3, state, mirror.ReasonNew, append(change, func(m *mirror.Member) { m.CopiedBytes = copied })...)
	}
	filling, returning := v1alpha1.MemberFilling, v1alpha1.MemberReturning
	for name, test := range map[string]struct {
		was, is *v1alpha1.NvmfMirror
		want    string
	}{
		"less than a quarter":         {at(filling, 0), at(filling, 249), ""},
		"a quarter":                   {at(filling, 249), at(filling, 250), "25 % of the data is copied to the replica on node b"},
		"the same quarter":            {at(filling, 250), at(filling, 499), ""},
		"two quarters at once":        {at(filling, 249), at(filling, 749), "50 %"},
		"the third":                   {at(filling, 749), at(filling, 999), "75 %"},
		"all":                         {at(filling, 999), at(filling, 1000), ""},
		"by bitmap":                   {at(returning, 0), at(returning, 500), ""},
		"of one that is to leave":     {at(filling, 0, func(m *mirror.Member) { m.Retired = true }), at(filling, 500, func(m *mirror.Member) { m.Retired = true }), ""},
		"of one that begins":          {at(returning, 0), at(filling, 500), ""},
		"of another replica":          {at(filling, 0, func(m *mirror.Member) { m.ReplicaUID = "u-9" }), at(filling, 500), ""},
		"of one that was added since": {at(filling, 0, func(m *mirror.Member) { m.Replica = "v-9" }), at(filling, 500), ""},
	} {
		got := progressNotices(test.was, test.is, twoMembers, size)
		switch {
		case test.want == "" && len(got) == 0:
		case test.want == "" || len(got) != 1 || !strings.HasPrefix(got[0].note, test.want) || got[0].reason != v1alpha1.ReasonReplicaCopying:
			t.Errorf("%s: got %+v, want %q", name, got, test.want)
		}
	}
	keys := map[string]bool{}
	for n := range int64(3) {
		keys[progressNotices(at(filling, 250*n), at(filling, 250*n+250), twoMembers, size)[0].key] = true
	}
	if other := progressNotices(at(filling, 0), at(filling, 260), nil, size)[0].key; len(keys) != 3 || !keys[other] {
		t.Errorf("the keys do not tell what happened: %v, %q", keys, other)
	}
}

// A replica that is lost, returns and is lost once more tells so each time; whoever missed a state in between tells the
// same of the last.
func TestKeysTellWhatHappened(t *testing.T) {
	key := func(was, is *v1alpha1.NvmfMirror) string {
		t.Helper()
		all := noticesOf(was, is, nil)
		if len(all) != 1 {
			t.Fatalf("got %+v", all)
		}
		return all[0].key
	}
	inSync, lost, again := mirrorWith(1, v1alpha1.MemberInSync, ""), mirrorWith(2, v1alpha1.MemberOut, mirror.ReasonLost), mirrorWith(5, v1alpha1.MemberOut, mirror.ReasonLost)
	if key(inSync, lost) == key(inSync, again) {
		t.Error("two losses have one key")
	}
	if key(inSync, lost) == key(inSync, mirrorWith(2, v1alpha1.MemberOut, mirror.ReasonLost, func(m *mirror.Member) { m.Identity = "fresh" })) {
		t.Error("two losses within a second have one key")
	}
	later := lost.DeepCopy()
	later.Spec.Epoch = 3
	if key(inSync, lost) != key(inSync, later) {
		t.Error("one loss has two keys")
	}
}
