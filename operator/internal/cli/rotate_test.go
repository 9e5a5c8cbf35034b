// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// keyedVolume is a volume with one replica, whose host has keys, and has written.
func keyedVolume(name string) (*v1alpha1.NvmfVolume, []client.Object) {
	v, objects := volume(name, "a")
	v.Spec.Attachments[0].NQN = v1alpha1.HostNQN("first-" + name)
	r := objects[len(objects)-1].(*v1alpha1.NvmfReplica)
	r.Spec.Hosts = []v1alpha1.VolumeHost{{NQN: v.Spec.Attachments[0].NQN, Node: "worker", SealedKeys: "YWdl", SealedTo: strings.Repeat("0", 32)}}
	r.Status.Hosts, r.Status.Written = []v1alpha1.AdmittedHost{{NQN: r.Spec.Hosts[0].NQN}}, true
	return v, objects
}

func (r *rig) replica(name string, change func(*v1alpha1.NvmfReplica)) {
	r.t.Helper()
	rep := &v1alpha1.NvmfReplica{}
	r.do(r.api.Get(r.ctx, client.ObjectKey{Name: name}, rep))
	change(rep)
	r.do(r.api.Update(r.ctx, rep))
}

func TestRotate(t *testing.T) {
	v, objects := keyedVolume("data")
	r := newRig(t, objects...)
	name := v.Name + "-0"
	next := v1alpha1.HostNQN("second")
	r.steps = []func(){
		func() {
			r.replica(name, func(rep *v1alpha1.NvmfReplica) {
				h := rep.Spec.Hosts[0]
				h.NQN, h.Attachment, h.KeyRotation = next, "first-data", r.volume(v.Name).Spec.KeyRotation
				rep.Spec.Hosts = append(rep.Spec.Hosts, h)
			})
			if err := rotateVolumes(r.ctx, r.watcher(), v.Name, rotateOptions{}); err != nil {
				t.Error(err)
			}
		},
		func() {
			r.replica(name, func(rep *v1alpha1.NvmfReplica) {
				rep.Status.Hosts = append(rep.Status.Hosts, v1alpha1.AdmittedHost{NQN: next})
			})
		},
		func() { r.replica(name, func(rep *v1alpha1.NvmfReplica) { rep.Spec.Hosts = rep.Spec.Hosts[1:] }) },
		func() { r.replica(name, func(rep *v1alpha1.NvmfReplica) { rep.Status.Hosts = rep.Status.Hosts[1:] }) },
	}
	r.do(rotateVolumes(r.ctx, r.watcher(), v.Name, rotateOptions{wait: true}))
	r.wantLines(
		"volume databases/data: rotating its keys",
		"volume databases/data: the CSI controller has not made new keys yet",
		"volume databases/data: its keys are already being rotated: node a does not admit the new identity yet",
		"volume databases/data: node a does not admit the new identity yet",
		"volume databases/data: node worker has not connected with the new keys yet",
		"volume databases/data: node a has not dismissed the former identity yet",
		"volume databases/data: its keys are rotated",
	)
	if r.volume(v.Name).Spec.KeyRotation == "" {
		t.Error("nothing was requested")
	}
}

// wantLines checks that the output has these, in this order, and no others.
func (r *rig) wantLines(want ...string) {
	r.t.Helper()
	got := strings.Split(strings.TrimSpace(r.out.String()), "\n")
	for i, line := range got {
		if i >= len(want) || !strings.Contains(line, want[i]) {
			r.t.Fatalf("line %d is %q, want %q", i, line, append(want, "none")[min(i, len(want))])
		}
	}
	if len(got) != len(want) {
		r.t.Fatalf("%d lines, want %d: %q", len(got), len(want), got)
	}
}

func TestRotateAll(t *testing.T) {
	v, objects := keyedVolume("data")
	fresh, more := keyedVolume("fresh")
	objects = append(objects, more...)
	more[len(more)-1].(*v1alpha1.NvmfReplica).Status = v1alpha1.NvmfReplicaStatus{Hosts: []v1alpha1.AdmittedHost{{NQN: fresh.Spec.Attachments[0].NQN, Blank: true}}}
	copied, more := keyedVolume("copied")
	objects = append(objects, more...)
	copied.Spec.Attachments[0].Mover = true
	moving, more := keyedVolume("moving")
	objects = append(objects, more...)
	moving.Spec.Move = &v1alpha1.VolumeMove{Replica: moving.Name + "-0"}
	bare, more := volume("bare", "b")
	objects = append(objects, more...)
	idle, more := keyedVolume("idle")
	objects = append(objects, more...)
	idle.Spec.Attachments = nil
	r := newRig(t, objects...)
	target := &v1alpha1.NvmfTarget{}
	r.do(r.api.Get(r.ctx, client.ObjectKey{Name: "fast"}, target))
	target.Spec.Security = &v1alpha1.Security{Authentication: v1alpha1.AuthenticationDisabled}
	r.do(r.api.Update(r.ctx, target))

	r.do(rotateVolumes(r.ctx, r.watcher(), "", rotateOptions{target: "fast", dryRun: true}))
	if got := r.volume(v.Name).Spec.KeyRotation; got != "" {
		t.Error("a dry run has changed something")
	}
	r.out.Reset()
	r.do(rotateVolumes(r.ctx, r.watcher(), "", rotateOptions{all: true}))
	r.wantLines(
		"databases/bare: not rotated: its hosts have no keys",
		"databases/data: rotating its keys",
		"databases/fresh: rotating its keys",
		"databases/moving: not rotated: it is about to be mirrored",
	)
	for _, name := range []string{bare.Name, copied.Name, moving.Name, idle.Name} {
		if got := r.volume(name).Spec.KeyRotation; got != "" {
			t.Errorf("%s was requested to be rotated", name)
		}
	}
	r.out.Reset()
	r.do(rotateVolumes(r.ctx, r.watcher(), fresh.Name, rotateOptions{}))
	r.wantLines("its keys are already being rotated: nothing was written to the volume yet")

	for name, want := range map[string]string{copied.Name: "it is not attached", idle.Name: "it is not attached", "none": "not found"} {
		if err := rotateVolumes(r.ctx, r.watcher(), name, rotateOptions{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := rotateVolumes(r.ctx, r.watcher(), "", rotateOptions{target: "none"}); err == nil {
		t.Error("there is no such target")
	}
}

// The replicas of a mirrored volume get new keys one after the other, and one that is out of sync when it returns.
func TestRotateAMirroredVolume(t *testing.T) {
	v, objects := volume("data", "a", "b")
	v.Spec.Attachments[0].NQN = v1alpha1.HostNQN("first-data")
	mirror := &v1alpha1.NvmfMirror{ObjectMeta: metav1.ObjectMeta{Name: v.Name}, Spec: v1alpha1.NvmfMirrorSpec{Members: []v1alpha1.MirrorMember{
		{Replica: v.Name + "-0", State: v1alpha1.MemberInSync}, {Replica: v.Name + "-1", State: v1alpha1.MemberOut},
	}}}
	objects = append(objects, mirror)
	for _, o := range objects {
		if rep, is := o.(*v1alpha1.NvmfReplica); is {
			host := v1alpha1.VolumeHost{NQN: v1alpha1.HostNQN(rep.Name), Attachment: "first-data", Node: "worker", SealedKeys: "YWdl", SealedTo: strings.Repeat("0", 32)}
			rep.Spec.Hosts, rep.Status.Hosts, rep.Status.Written = []v1alpha1.VolumeHost{host}, []v1alpha1.AdmittedHost{{NQN: host.NQN}}, true
		}
	}
	r := newRig(t, objects...)
	rotated := func(name string) func() {
		return func() {
			r.replica(name, func(rep *v1alpha1.NvmfReplica) {
				rep.Spec.Hosts[0].NQN, rep.Spec.Hosts[0].KeyRotation = v1alpha1.HostNQN(name+"-next"), r.volume(v.Name).Spec.KeyRotation
				rep.Status.Hosts[0].NQN = rep.Spec.Hosts[0].NQN
			})
		}
	}
	r.steps = []func(){
		rotated(v.Name + "-0"),
		func() {
			r.replica(v.Name+"-1", func(rep *v1alpha1.NvmfReplica) {
				next := rep.Spec.Hosts[0]
				next.NQN = v1alpha1.HostNQN("beside")
				rep.Spec.Hosts = append(rep.Spec.Hosts, next)
			})
			r.replica(v.Name+"-0", func(rep *v1alpha1.NvmfReplica) { rep.Spec.Hosts[0].KeyRotation = "" })
		},
		func() {
			r.replica(v.Name+"-1", func(rep *v1alpha1.NvmfReplica) { rep.Spec.Hosts = rep.Spec.Hosts[:1] })
			rotated(v.Name + "-0")()
			rotated(v.Name + "-1")()
		},
	}
	r.do(rotateVolumes(r.ctx, r.watcher(), v.Name, rotateOptions{wait: true}))
	r.wantLines(
		"volume databases/data: rotating its keys",
		"volume databases/data: the CSI controller has not made new keys yet",
		"volume databases/data: replica "+v.Name+"-1 is not in sync; it gets new keys when it is",
		"volume databases/data: node b does not admit the new identity yet",
		"volume databases/data: its keys are rotated",
	)
}
