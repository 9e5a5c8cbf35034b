// SPDX-License-Identifier: Apache-2.0

// Package parameters reads the parameters of a StorageClass. It is strict: a
// parameter that is not known, or whose value is out of bounds, is refused with what to write instead,
// since a misspelt setting that is passed over would only be noticed under load.
package parameters

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// Parameters of a StorageClass, as users write them.
const (
	// Target names the NvmfTarget. Required.
	Target = "target"
	// Transport: TCP, RDMA, or both separated by a comma. Default: the target's first.
	Transport = "transport"
	// IOQueues that each host opens.
	IOQueues = "ioQueues"
	// QueueDepth of each of them.
	QueueDepth = "queueDepth"
	// CtrlLossTimeout: how long a host tries to reconnect before it fails I/O.
	CtrlLossTimeout = "ctrlLossTimeout"
	// DeviceClass of the target's drives that hold the volumes. Default: all of the target's.
	DeviceClass = "deviceClass"
	// Replicas of each volume, 1 or 2. Default: 1.
	Replicas = "replicas"
	// ReplaceLostReplicaAfter is how long a replica of a volume may be lost before it is replaced. Default: never.
	ReplaceLostReplicaAfter = "replaceLostReplicaAfter"
	// Zones whose nodes may hold the volumes, separated by commas. Default: all of the target's.
	Zones = "zones"
	// ZoneLabel is the node label whose values are zones. Default: topology.kubernetes.io/zone.
	ZoneLabel = "zoneLabel"
	// Placement of volumes: Spread, PreferSameNode or PreferSameZone. Default: Spread.
	Placement = "placement"
	// Encrypted: true or false. Default: false.
	Encrypted = "encrypted"
	// StageSecretName and StageSecretNamespace name the Secret with the keys of encrypted volumes. csi-provisioner
	// keeps them to itself, and the kubelet sends the Secret to the node plugin.
	StageSecretName      = provisionerPrefix + "node-stage-secret-name"
	StageSecretNamespace = provisionerPrefix + "node-stage-secret-namespace"
	// FSType of a mounted volume. The provisioner moves it into the volume's capability.
	FSType = provisionerPrefix + "fstype"

	// What the provisioner adds when it runs with --extra-create-metadata; users do not write these.
	pvName       = provisionerPrefix + "pv/name"
	pvcName      = provisionerPrefix + "pvc/name"
	pvcNamespace = provisionerPrefix + "pvc/namespace"
)

// provisionerPrefix of the keys that are for csi-provisioner.
const provisionerPrefix = "csi.storage.k8s.io/"

// Bounds of ctrlLossTimeout. The shortest is longer than that of v1alpha1.Connection: the kernel makes ctrl_loss_tmo /
// reconnect_delay tries and then gives the volume up: with fewer than five, the restart of a target would break its
// volumes, or one that is busy.
const (
	minCtrlLossTimeout = 5 * v1alpha1.ReconnectDelay
	maxCtrlLossTimeout = v1alpha1.MaxCtrlLossTimeoutSeconds * time.Second
)

// forever is how people write a ctrlLossTimeout without end, and never a replaceLostReplicaAfter.
const (
	forever = "forever"
	never   = "never"
)

// Ways to place volumes. The words are those of a Service's trafficDistribution.
const (
	// Spread over the nodes: the one with the most free space.
	Spread = "Spread"
	// PreferSameNode as the pod's, then its zone.
	PreferSameNode = "PreferSameNode"
	// PreferSameZone as the pod's.
	PreferSameZone = "PreferSameZone"
)

// Filesystems that a volume can be formatted with; the first is the default.
const (
	Ext4 = "ext4"
	XFS  = "xfs"
)

// Error says what is wrong with the parameters, and what to write instead.
type Error struct {
	// Of is the kind of object that has the parameters; empty for a StorageClass.
	Of string
	// Problems, one for each parameter that is wrong.
	Problems []string
}

func (e *Error) Error() string {
	return cmp.Or(e.Of, "StorageClass") + " parameters: " + strings.Join(e.Problems, "; ")
}

// Parameters are a StorageClass's parameters, parsed.
type Parameters struct {
	// Target is the NvmfTarget's name.
	Target string
	// Connection settings, with sorted transports; what is not given is empty or 0.
	v1alpha1.Connection
	// QoS limits, nil when none are given. They may change later.
	QoS *v1alpha1.VolumeQoS
	// Replicas, 0 when not given.
	Replicas int32
	// ReplaceLostReplicaAfterMinutes, v1alpha1.ReplaceLostNever for never, 0 when not given. It may change later.
	ReplaceLostReplicaAfterMinutes int32
	// DeviceClass, empty when not given.
	DeviceClass string
	// Zones, sorted; none when not given.
	Zones []string
	// ZoneLabel, empty when not given.
	ZoneLabel string
	// Placement, empty when not given.
	Placement string
	// Encryption of the volumes' data, empty for none.
	Encryption v1alpha1.VolumeEncryption
	// FSType, empty when not given.
	FSType string
	// PVName, PVCName and PVCNamespace say whom the volume is for; empty when the provisioner does not tell.
	PVName, PVCName, PVCNamespace string
}

type setter struct {
	key string
	set func(p *Parameters, value string) error
}

// setters of all that users may write, in the order in which they are listed to them.
var setters = slices.Concat(fixedSetters, qosSetters)

// replicaSetters set what may change later, too.
var replicaSetters = []setter{
	{Replicas, func(p *Parameters, v string) (err error) {
		if p.Replicas, err = integer(Replicas, v, 1, v1alpha1.MaxReplicas); err != nil {
			return fmt.Errorf("%s: %q is not possible; weft keeps 1 or %d copies of a volume", Replicas, v, v1alpha1.MaxReplicas)
		}
		return nil
	}},
	{ReplaceLostReplicaAfter, func(p *Parameters, v string) (err error) {
		p.ReplaceLostReplicaAfterMinutes, err = replaceLostAfter(v)
		return err
	}},
}

// mutableSetters of all that a VolumeAttributesClass may have.
var mutableSetters = slices.Concat(replicaSetters, qosSetters)

// fixedSetters are those of what is settled when a volume is made.
var fixedSetters = []setter{
	{Target, func(p *Parameters, v string) error {
		if v == "" {
			return fmt.Errorf("%s is empty; set it to the name of an NvmfTarget", Target)
		}
		p.Target = v
		return nil
	}},
	{Transport, func(p *Parameters, v string) (err error) {
		p.Transports, err = ParseTransports(v)
		return err
	}},
	{IOQueues, func(p *Parameters, v string) (err error) {
		p.IOQueues, err = integer(IOQueues, v, v1alpha1.MinIOQueues, v1alpha1.MaxIOQueues)
		return err
	}},
	{QueueDepth, func(p *Parameters, v string) (err error) {
		p.QueueDepth, err = integer(QueueDepth, v, v1alpha1.MinQueueDepth, v1alpha1.MaxQueueDepth)
		return err
	}},
	{CtrlLossTimeout, func(p *Parameters, v string) (err error) {
		p.CtrlLossTimeoutSeconds, err = ctrlLossTimeout(v)
		return err
	}},
	replicaSetters[0], replicaSetters[1],
	{DeviceClass, func(p *Parameters, v string) error {
		if len(validation.IsDNS1123Label(v)) > 0 {
			return fmt.Errorf("%s: %q is not the name of a device class; use a name from devices.classes of the target", DeviceClass, v)
		}
		p.DeviceClass = v
		return nil
	}},
	{Zones, func(p *Parameters, v string) (err error) {
		p.Zones, err = zones(v)
		return err
	}},
	{ZoneLabel, func(p *Parameters, v string) error {
		if len(validation.IsQualifiedName(v)) > 0 {
			return fmt.Errorf("%s: %q is not the key of a node label; use one such as %s", ZoneLabel, v, corev1.LabelTopologyZone)
		}
		p.ZoneLabel = v
		return nil
	}},
	{Placement, func(p *Parameters, v string) error {
		if v != Spread && v != PreferSameNode && v != PreferSameZone {
			return fmt.Errorf("%s: %q is not a placement; use %s, %s or %s", Placement, v, Spread, PreferSameNode, PreferSameZone)
		}
		p.Placement = v
		return nil
	}},
	{Encrypted, func(p *Parameters, v string) error {
		switch v {
		case "true":
			p.Encryption = v1alpha1.EncryptionLUKS2
		case "false":
		default:
			return fmt.Errorf("%s: %q is neither \"true\" nor \"false\"", Encrypted, v)
		}
		return nil
	}},
	{FSType, func(p *Parameters, v string) error {
		p.FSType = v
		return CheckFSType(v)
	}},
}

var metadata = []setter{
	{pvName, func(p *Parameters, v string) error { p.PVName = v; return nil }},
	{pvcName, func(p *Parameters, v string) error { p.PVCName = v; return nil }},
	{pvcNamespace, func(p *Parameters, v string) error { p.PVCNamespace = v; return nil }},
}

// OfClass returns what a StorageClass tells the driver. csi-provisioner keeps keys with its own prefix to itself when
// it asks for a volume, and passes them on when it asks for capacity.
func OfClass(m map[string]string) map[string]string {
	m = maps.Clone(m)
	maps.DeleteFunc(m, func(key, _ string) bool { return key != FSType && strings.HasPrefix(key, provisionerPrefix) })
	return m
}

// Parse reads a StorageClass's parameters. All that is wrong with them is in
// one *Error, so that a user need not find it out piece by piece.
func Parse(m map[string]string) (Parameters, error) {
	var p Parameters
	problems := apply(&p, m, setters, metadata)
	if _, ok := m[Target]; !ok {
		problems = append(problems, Target+" is required; set it to the name of an NvmfTarget")
	}
	if p.ZoneLabel != "" && len(p.Zones) == 0 && !p.Nearby() && p.Replicas < 2 {
		problems = append(problems, fmt.Sprintf("%s has no effect without %s, %s \"2\", or %s %s or %s; add one of them, or remove it", ZoneLabel, Zones, Replicas, Placement, PreferSameNode, PreferSameZone))
	}
	if len(problems) > 0 {
		return Parameters{}, &Error{Problems: problems}
	}
	return p, nil
}

// ZoneKey is the key of the node label whose values are zones.
func (p Parameters) ZoneKey() string { return cmp.Or(p.ZoneLabel, corev1.LabelTopologyZone) }

// Nearby says that volumes are placed near the pod that they are made for.
func (p Parameters) Nearby() bool {
	return p.Placement == PreferSameNode || p.Placement == PreferSameZone
}

// apply what m sets, and return what is wrong with it. Those of silent are known, but not listed to users.
func apply(p *Parameters, m map[string]string, listed, silent []setter) (problems []string) {
	known := map[string]bool{}
	for _, s := range slices.Concat(listed, silent) {
		known[s.key] = true
		if v, ok := m[s.key]; ok {
			if err := s.set(p, v); err != nil {
				problems = append(problems, err.Error())
			}
		}
	}
	names := make([]string, len(listed))
	for i, s := range listed {
		names[i] = s.key
	}
	list := false
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if known[k] {
			continue
		}
		problem, sure := unknownProblem(k, names)
		problems, list = append(problems, problem), list || !sure
	}
	if list {
		problems = append(problems, "supported parameters: "+strings.Join(names, ", "))
	}
	return problems
}

// unknownProblem says of a key that it is unknown, and which of the names is near; sure: it is that name.
func unknownProblem(key string, names []string) (problem string, sure bool) {
	low := strings.ToLower(key)
	near := ""
	for _, name := range names {
		n := strings.ToLower(name)
		switch {
		case n == low:
			return fmt.Sprintf("%q is unknown; use %s", key, name), true
		case len(name) > len(near) && (strings.Contains(low, n) || len(key) >= shortestHint && strings.Contains(n, low) || similar(low, n)):
			near = name
		}
	}
	if near != "" {
		return fmt.Sprintf("%q is unknown; you may mean %s", key, near), false
	}
	return fmt.Sprintf("%q is unknown", key), false
}

// shortestHint is how long a key is at least that hints at a longer name.
const shortestHint = 4

// similar words have the same letters, or all but two of them in the same places from their beginning and their end.
func similar(a, b string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	from := 0
	for from < len(a) && a[from] == b[from] {
		from++
	}
	to := 0
	for to < len(a)-from && a[len(a)-1-to] == b[len(b)-1-to] {
		to++
	}
	return len(b)-from-to <= 2
}

func integer(key, v string, low, high int64) (int32, error) {
	n, err := strconv.ParseInt(v, 10, 32)
	if err != nil || n < low || n > high {
		return 0, fmt.Errorf("%s: %q is not a whole number from %d to %d", key, v, low, high)
	}
	return int32(n), nil
}

// ctrlLossTimeout reads seconds (600), a duration (10m), or a wait without end (forever, or the kernel's -1).
func ctrlLossTimeout(v string) (int32, error) {
	if v == forever || v == "-1" {
		return v1alpha1.CtrlLossTimeoutForever, nil
	}
	d, err := time.ParseDuration(v)
	if n, nerr := strconv.ParseInt(v, 10, 32); nerr == nil {
		d, err = time.Duration(n)*time.Second, nil
	}
	if err != nil || d < minCtrlLossTimeout || d > maxCtrlLossTimeout || d%time.Second != 0 {
		return 0, fmt.Errorf("%s: %q is not a valid timeout; "+
			"use whole seconds from %d to %d (600), a duration (10m), or %s", CtrlLossTimeout, v,
			int(minCtrlLossTimeout.Seconds()), v1alpha1.MaxCtrlLossTimeoutSeconds, forever)
	}
	return int32(d / time.Second), nil
}

// replaceLostAfter reads a duration of whole minutes (30m, 2h), or never.
func replaceLostAfter(v string) (int32, error) {
	if v == never {
		return v1alpha1.ReplaceLostNever, nil
	}
	d, err := time.ParseDuration(v)
	if err != nil || d < time.Minute || d > v1alpha1.MaxReplaceLostMinutes*time.Minute || d%time.Minute != 0 {
		return 0, fmt.Errorf("%s: %q is not a duration of whole minutes from 1m to %dh; use one such as %dm, or %s", ReplaceLostReplicaAfter, v,
			v1alpha1.MaxReplaceLostMinutes/60, v1alpha1.UsualReplaceLostMinutes, never)
	}
	return int32(d / time.Minute), nil
}

// zones are values of the zone label.
func zones(v string) ([]string, error) {
	list := strings.Split(v, ",")
	for i := range list {
		list[i] = strings.TrimSpace(list[i])
		if list[i] == "" || len(validation.IsValidLabelValue(list[i])) > 0 {
			return nil, fmt.Errorf("%s: %q is not a list of zones; use values of the node label topology.kubernetes.io/zone, or of zoneLabel, separated by commas, such as zone-a,zone-b", Zones, v)
		}
	}
	slices.Sort(list)
	list = slices.Compact(list)
	if len(list) > v1alpha1.MaxZones {
		return nil, fmt.Errorf("%s: %d zones; at most %d are supported", Zones, len(list), v1alpha1.MaxZones)
	}
	return list, nil
}

// CheckFSType returns an error that names the filesystems there are when fsType is not one of them.
func CheckFSType(fsType string) error {
	if fsType == Ext4 || fsType == XFS {
		return nil
	}
	return fmt.Errorf("%s: filesystem %q is not supported; use %s or %s", FSType, fsType, Ext4, XFS)
}
