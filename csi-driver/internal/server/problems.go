// SPDX-License-Identifier: Apache-2.0

package server

import (
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// What VOLUME_CONDITION was among the capabilities. CSI 1.13 keeps the numbers reserved.
const (
	NodeVolumeCondition       csi.NodeServiceCapability_RPC_Type       = 4
	ControllerVolumeCondition csi.ControllerServiceCapability_RPC_Type = 11
)

// Kinds of problems, as CSI names them.
const (
	// Degraded: it can be used, and something is missing.
	Degraded = csi.VolumeHealthErrorType_DEGRADED
	// Inaccessible: reads or writes of it wait or fail.
	Inaccessible = csi.VolumeHealthErrorType_INACCESSIBLE
	// DataLoss is known or suspected.
	DataLoss = csi.VolumeHealthErrorType_DATA_LOSS
)

// Problem of a volume.
type Problem struct {
	Kind csi.VolumeHealthErrorType
	// Reason is one CamelCase word, Message says it for people.
	Reason, Message string
}

// Problems of a volume; none when it is well. No two have the same kind and reason.
//
// They are told in the words of CSI 1.13 (VolumeHealth) and in those that CSI had until 1.12 (VolumeCondition).
// CSI 1.13 took VolumeCondition out. But it is what a kubelet understands (feature gate CSIVolumeHealth; Kubernetes
// 1.36 still speaks CSI 1.9), and what external-health-monitor asks for. Both are alpha, and say the same here.
type Problems []Problem

// Add a problem, but one whose kind and reason are there already.
func (p *Problems) Add(kind csi.VolumeHealthErrorType, reason, message string) {
	if !slices.ContainsFunc(*p, func(e Problem) bool { return e.Kind == kind && e.Reason == reason }) {
		*p = append(*p, Problem{Kind: kind, Reason: reason, Message: message})
	}
}

// Volume gives them in the words of CSI 1.13.
func (p Problems) Volume(id string) *csi.VolumeHealth {
	v := &csi.VolumeHealth{VolumeId: id}
	for _, e := range p {
		v.HealthStatuses = append(v.HealthStatuses, &csi.VolumeHealth_VolumeHealthEntry{Status: e.Kind, Reason: e.Reason, Message: e.Message})
	}
	return v
}

// String gives all of them to people.
func (p Problems) String() string {
	if len(p) == 0 {
		return "no problems"
	}
	words := make([]string, len(p))
	for i, e := range p {
		words[i] = e.Reason + ": " + e.Message
	}
	return strings.Join(words, "; ")
}

// Fields of the messages of CSI 1.9. In each answer that had one, the condition was field 2.
const (
	fieldCondition = 2
	fieldAbnormal  = 1
	fieldMessage   = 2
)

// AddCondition writes the condition into an answer as callers up to CSI 1.12 read it: a NodeGetVolumeStatsResponse, or
// the status in the answers of ListVolumes and ControllerGetVolume.
func (p Problems) AddCondition(answer proto.Message) {
	var condition []byte
	if len(p) > 0 {
		condition = protowire.AppendTag(condition, fieldAbnormal, protowire.VarintType)
		condition = protowire.AppendVarint(condition, protowire.EncodeBool(true))
	}
	condition = protowire.AppendTag(condition, fieldMessage, protowire.BytesType)
	condition = protowire.AppendString(condition, p.String())
	m := answer.ProtoReflect()
	field := protowire.AppendTag(nil, fieldCondition, protowire.BytesType)
	m.SetUnknown(append(m.GetUnknown(), protowire.AppendBytes(field, condition)...))
}
