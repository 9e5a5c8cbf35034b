// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	utilexec "k8s.io/client-go/util/exec"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/test/e2e/suite"
)

const (
	// benchName is that of all that a run makes.
	benchName = "weft-bench"
	// benchDevice is the volume in the pod.
	benchDevice = "/dev/weft-volume"
	benchPort   = 4440
	// byID has the names of drives that stay the same.
	byID = "/dev/disk/by-id/"
	// SPDK's own pools; its caches are half of each, shared by the poll groups.
	spdkSmall, spdkLarge = 8192, 1024
)

// benchSetup is what is measured, and where.
type benchSetup struct {
	// StorageNode serves, and the pod runs on ClientNode.
	StorageNode, ClientNode string
	// NvmetDrive and SPDKDrive are the names in /dev/disk/by-id of blank drives of the storage node, one for each
	// engine: a drive that one engine has used is not blank for the other. Without a drive an engine is left out.
	NvmetDrive, SPDKDrive string
	// LocalNode and LocalDrive, a path in /dev/disk/by-id, are the drive that volumes are compared with. It has to be
	// blank: what is on it is lost.
	LocalNode, LocalDrive string
	// Image has fio, a shell, coreutils and util-linux.
	Image string
	// PullNever: the nodes have the image.
	PullNever bool
	// Rounds of measurements, each of so many seconds.
	Rounds, Seconds int
	// Size of the volume, and of the part of the local drive that is used.
	Size resource.Quantity
	// Cores, Mode and Hugepages of an SPDK target.
	Cores     int32
	Mode      v1alpha1.CoreMode
	Hugepages v1alpha1.Hugepages
}

// variant is a target to measure.
type variant struct {
	name  string
	drive string
	edit  func(*v1alpha1.NvmfTargetSpec)
}

func (o benchSetup) variants() []variant {
	var all []variant
	if o.NvmetDrive != "" {
		all = append(all, variant{"Nvmet", o.NvmetDrive, func(*v1alpha1.NvmfTargetSpec) {}})
	}
	if o.SPDKDrive != "" {
		all = append(all, variant{"SPDK, plan Auto", o.SPDKDrive, o.spdk}, variant{"SPDK, default buffers", o.SPDKDrive, func(s *v1alpha1.NvmfTargetSpec) {
			o.spdk(s)
			s.Buffers = &v1alpha1.Buffers{
				Mode:  v1alpha1.BuffersManual,
				Small: &v1alpha1.SmallPool{Count: spdkSmall, CachePerCore: spdkSmall / 2 / o.Cores},
				Large: &v1alpha1.LargePool{Count: spdkLarge, CachePerCore: spdkLarge / 2 / o.Cores},
			}
		}})
	}
	return all
}

func (o benchSetup) spdk(s *v1alpha1.NvmfTargetSpec) {
	s.Engine = v1alpha1.EngineSPDK
	s.Cores = &v1alpha1.Cores{Count: &o.Cores, Mode: o.Mode}
	s.Memory = &v1alpha1.Memory{Hugepages: o.Hugepages}
}

// runner measures on a cluster.
type runner struct {
	benchSetup
	*suite.Cluster

	out io.Writer
}

// measure all variants on a cluster that has weft. It tells out how it goes, and leaves nothing behind.
func measure(ctx context.Context, c *suite.Cluster, o benchSetup, out io.Writer) (report Report, err error) {
	r := &runner{benchSetup: o, Cluster: c, out: out}
	if len(o.variants()) == 0 {
		return report, errors.New("no engine has a drive: name one with --nvmet-drive or --spdk-drive")
	}
	if err := r.blank(ctx); err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, r.cleanUp(context.WithoutCancel(ctx))) }()
	if err := r.helpers(ctx); err != nil {
		return report, err
	}
	r.say("filling the local drive %s of node %s", o.LocalDrive, o.LocalNode)
	if _, err := r.exec(ctx, helper(o.LocalNode), fill(o.LocalDrive, o.Size.Value())...); err != nil {
		return report, err
	}
	report.Seconds = o.Seconds
	for _, v := range o.variants() {
		measured, err := r.variant(ctx, v)
		report.Variants = append(report.Variants, measured)
		if err != nil {
			return report, fmt.Errorf("%s: %w", v.name, err)
		}
	}
	return report, nil
}

func (r *runner) say(format string, args ...any) { _, _ = fmt.Fprintf(r.out, format+"\n", args...) }

// exec runs a command in a pod. All that a run has executed can be repeated, and is when the connection to the kubelet
// breaks: an emulated node that polls a target does not always answer in time.
func (r *runner) exec(ctx context.Context, pod string, command ...string) (string, error) {
	const attempts = 3
	for attempt := 1; ; attempt++ {
		out, err := r.Exec(ctx, benchName, pod, command...)
		var ended utilexec.CodeExitError
		if err == nil || errors.As(err, &ended) || ctx.Err() != nil || attempt == attempts {
			return out, err
		}
		r.say("attempt %d of %d failed: %v", attempt, attempts, err)
	}
}

// blank says no where the local drive is not one that weft would take. After an installation it waits for the agent.
func (r *runner) blank(ctx context.Context) error {
	var node v1alpha1.NvmfNode
	err := wait.PollUntilContextTimeout(ctx, time.Second, 2*time.Minute, true, func(ctx context.Context) (bool, error) {
		err := r.Get(ctx, client.ObjectKey{Name: r.LocalNode}, &node)
		return err == nil && node.Status.Inventory != nil, client.IgnoreNotFound(err)
	})
	if err != nil {
		return fmt.Errorf("no agent has reported the drives of node %s, so nobody knows what is on them: %w", r.LocalNode, err)
	}
	i := slices.IndexFunc(node.Status.Inventory.Drives, func(d v1alpha1.Drive) bool {
		return slices.Contains(d.ByID, strings.TrimPrefix(r.LocalDrive, byID))
	})
	if i < 0 {
		return fmt.Errorf("node %s has no drive %s", r.LocalNode, r.LocalDrive)
	}
	if d := node.Status.Inventory.Drives[i]; d.Content != v1alpha1.ContentBlank {
		return fmt.Errorf("drive %s of node %s is not blank (%s): its content would be lost", r.LocalDrive, r.LocalNode, d.Content)
	}
	return nil
}

func helper(node string) string { return benchName + "-" + node }

// nodes that take part, each once.
func (r *runner) nodes() []string {
	all := []string{r.StorageNode, r.ClientNode, r.LocalNode}
	slices.Sort(all)
	return slices.Compact(all)
}

// helpers are privileged pods on all nodes: they drop caches, and see drives.
func (r *runner) helpers(ctx context.Context) error {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: benchName, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "privileged"}}}
	if err := r.Create(ctx, namespace); err != nil {
		return fmt.Errorf("namespace: %w; delete what an interrupted run left: kubectl delete namespace %s nvmftarget %s", err, benchName, benchName)
	}
	for _, node := range r.nodes() {
		pod := r.pod(helper(node), node)
		privileged := true
		pod.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: &privileged}
		pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "dev", MountPath: "/dev"}}
		pod.Spec.Volumes = []corev1.Volume{{Name: "dev", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/dev"}}}}
		if err := r.Create(ctx, pod); err != nil {
			return err
		}
	}
	for _, node := range r.nodes() {
		if _, err := r.PodReady(ctx, benchName, helper(node)); err != nil {
			return err
		}
	}
	return nil
}

func (r *runner) pod(called, node string) *corev1.Pod {
	zero, policy := int64(0), corev1.PullIfNotPresent
	if r.PullNever {
		policy = corev1.PullNever
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: benchName, Name: called},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &zero, RestartPolicy: corev1.RestartPolicyNever,
			NodeSelector: map[string]string{corev1.LabelHostname: node},
			Containers:   []corev1.Container{{Name: "fio", Image: r.Image, ImagePullPolicy: policy, Command: []string{"sleep", "infinity"}}},
		},
	}
}

// variant is deployed, measured and taken away.
func (r *runner) variant(ctx context.Context, v variant) (measured Variant, err error) {
	r.say("%s: deploying", v.name)
	measured.Name = v.name
	defer func() { err = errors.Join(err, r.remove(context.WithoutCancel(ctx))) }()
	if err := r.deploy(ctx, v); err != nil {
		return measured, err
	}
	var node v1alpha1.NvmfNode
	if err := r.Get(ctx, client.ObjectKey{Name: r.StorageNode}, &node); err != nil {
		return measured, err
	}
	if p := node.Spec.Plan; p != nil && p.SPDK != nil {
		measured.MemoryBytes, measured.LargeBuffers = p.SPDK.MemoryBytes, p.SPDK.LargeBuffers
	}
	if _, err := r.exec(ctx, benchName, fill(benchDevice, r.Size.Value())...); err != nil {
		return measured, err
	}
	for _, c := range Cases() {
		measured.Results = append(measured.Results, Result{Case: c})
	}
	for round := range r.Rounds {
		for i := range measured.Results {
			if err := r.pair(ctx, &measured.Results[i], round%2 == 1); err != nil {
				return measured, err
			}
		}
		r.say("%s: round %d of %d is done", v.name, round+1, r.Rounds)
	}
	return measured, nil
}

// pair measures the local drive and the volume, or the other way round.
func (r *runner) pair(ctx context.Context, result *Result, volumeFirst bool) error {
	local := func() error {
		m, err := r.measure(ctx, result.Case, helper(r.LocalNode), r.LocalDrive)
		result.Local = append(result.Local, m)
		return err
	}
	volume := func() error {
		m, err := r.measure(ctx, result.Case, benchName, benchDevice)
		result.Volume = append(result.Volume, m)
		return err
	}
	first, second := local, volume
	if volumeFirst {
		first, second = second, first
	}
	if err := first(); err != nil {
		return err
	}
	return second()
}

// measure a device from a pod, after the caches of all nodes were dropped.
func (r *runner) measure(ctx context.Context, c Case, pod, path string) (Measured, error) {
	for _, node := range r.nodes() {
		if _, err := r.exec(ctx, helper(node), "sh", "-c", "sync; echo 3 >/proc/sys/vm/drop_caches"); err != nil {
			return Measured{}, err
		}
	}
	out, err := r.exec(ctx, pod, c.command(path, r.Size.Value(), r.Seconds)...)
	if err != nil {
		return Measured{}, err
	}
	m, err := parse(out)
	if err != nil {
		return m, fmt.Errorf("%s on %s: %w", c.Name, path, err)
	}
	return m, nil
}

// deploy a target, a class, a claim of a block device, and a pod with it.
func (r *runner) deploy(ctx context.Context, v variant) error {
	target := &v1alpha1.NvmfTarget{ObjectMeta: metav1.ObjectMeta{Name: benchName}, Spec: v1alpha1.NvmfTargetSpec{
		Engine:       v1alpha1.EngineNvmet,
		NodeSelector: metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelHostname: r.StorageNode}},
		Transports:   []v1alpha1.Transport{{Type: v1alpha1.TransportTCP, Port: benchPort}},
		Devices:      v1alpha1.Devices{Selector: &v1alpha1.DeviceSelector{ByID: []string{v.drive}}},
		Attachments:  v1alpha1.Attachments{Expected: 4, IOQueues: 2},
	}}
	v.edit(&target.Spec)
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: benchName}, Provisioner: v1alpha1.DriverName, Parameters: map[string]string{"target": benchName}}
	if err := errors.Join(r.Create(ctx, target), r.Create(ctx, class)); err != nil {
		return err
	}
	if err := r.TargetReady(ctx, benchName); err != nil {
		return err
	}
	block, className := corev1.PersistentVolumeBlock, benchName
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: benchName, Name: benchName}, Spec: corev1.PersistentVolumeClaimSpec{
		StorageClassName: &className, VolumeMode: &block, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: r.Size}},
	}}
	pod := r.pod(benchName, r.ClientNode)
	pod.Spec.Containers[0].VolumeDevices = []corev1.VolumeDevice{{Name: "volume", DevicePath: benchDevice}}
	pod.Spec.Volumes = []corev1.Volume{{Name: "volume", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: benchName},
	}}}
	if err := errors.Join(r.Create(ctx, claim), r.Create(ctx, pod)); err != nil {
		return err
	}
	_, err := r.PodReady(ctx, benchName, benchName)
	return err
}

// remove what deploy made. A target goes when its last volume has gone.
func (r *runner) remove(ctx context.Context) error {
	inside := metav1.ObjectMeta{Namespace: benchName, Name: benchName}
	for _, o := range []client.Object{
		&corev1.Pod{ObjectMeta: inside}, &corev1.PersistentVolumeClaim{ObjectMeta: inside},
		&v1alpha1.NvmfTarget{ObjectMeta: metav1.ObjectMeta{Name: benchName}}, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: benchName}},
	} {
		if err := r.Delete(ctx, o); client.IgnoreNotFound(err) != nil {
			return err
		}
		if err := r.WaitGone(ctx, o); err != nil {
			return fmt.Errorf("%T %s is not gone: %w", o, o.GetName(), err)
		}
	}
	return nil
}

// erase the two ends of the local drive, so that it is blank to weft again.
const erase = `set -e
blkdiscard -f "$0" || true
last=$(($(blockdev --getsize64 "$0") / 1048576 - 1))
dd if=/dev/zero of="$0" bs=1M count=1 oflag=direct
dd if=/dev/zero of="$0" bs=1M count=1 seek="$last" oflag=direct
sync`

func (r *runner) cleanUp(ctx context.Context) error {
	_, err := r.exec(ctx, helper(r.LocalNode), "sh", "-c", erase, r.LocalDrive)
	if apierrors.IsNotFound(err) {
		err = nil
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: benchName}}
	return errors.Join(err, client.IgnoreNotFound(r.Delete(ctx, namespace)))
}

// Defaults fills in what is not set.
func (o benchSetup) Defaults() benchSetup {
	o.LocalNode = cmp.Or(o.LocalNode, o.ClientNode)
	o.Cores = cmp.Or(o.Cores, 2)
	o.Mode = cmp.Or(o.Mode, v1alpha1.CoresDynamic)
	o.Hugepages = cmp.Or(o.Hugepages, v1alpha1.Hugepages2Mi)
	o.Rounds, o.Seconds = cmp.Or(o.Rounds, 3), cmp.Or(o.Seconds, 30)
	return o
}
