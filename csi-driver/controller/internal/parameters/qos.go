// SPDX-License-Identifier: Apache-2.0

package parameters

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// Limits of a volume, as users write them. Unlike the other parameters they may change later.
const (
	// IOPS of reads and writes together.
	IOPS = "iops"
	// Bandwidth of reads and writes together in bytes a second; ReadBandwidth and WriteBandwidth of each.
	Bandwidth      = "bandwidth"
	ReadBandwidth  = "readBandwidth"
	WriteBandwidth = "writeBandwidth"
)

var qosSetters = []setter{
	{IOPS, func(p *Parameters, v string) error {
		n, err := iops(v)
		p.qos().IOPS = n
		return err
	}},
	{Bandwidth, func(p *Parameters, v string) error {
		n, err := bandwidth(Bandwidth, v)
		p.qos().BandwidthMiBps = n
		return err
	}},
	{ReadBandwidth, func(p *Parameters, v string) error {
		n, err := bandwidth(ReadBandwidth, v)
		p.qos().ReadBandwidthMiBps = n
		return err
	}},
	{WriteBandwidth, func(p *Parameters, v string) error {
		n, err := bandwidth(WriteBandwidth, v)
		p.qos().WriteBandwidthMiBps = n
		return err
	}},
}

// Mutable parameters, which may change later.
type Mutable struct {
	// QoS limits, nil without any.
	QoS *v1alpha1.VolumeQoS
	// Replicas, and ReplaceLostReplicaAfterMinutes, as in Parameters: 0 when not given.
	Replicas, ReplaceLostReplicaAfterMinutes int32
}

// ParseMutable reads the parameters of a VolumeAttributesClass. All that is wrong with them is in one *Error.
func ParseMutable(m map[string]string) (Mutable, error) {
	var p Parameters
	if problems := apply(&p, m, mutableSetters, nil); len(problems) > 0 {
		return Mutable{}, &Error{Of: "VolumeAttributesClass", Problems: problems}
	}
	return Mutable{p.QoS, p.Replicas, p.ReplaceLostReplicaAfterMinutes}, nil
}

// FormatQoS writes limits in the words of a StorageClass, the same ones always as the same text:
// iops=1000,bandwidth=10Mi; none without any.
func FormatQoS(q *v1alpha1.VolumeQoS) string {
	var words []string
	limit := func(key string, n *int64, unit string) {
		if n != nil {
			words = append(words, fmt.Sprintf("%s=%d%s", key, *n, unit))
		}
	}
	if q != nil {
		limit(IOPS, q.IOPS, "")
		limit(Bandwidth, q.BandwidthMiBps, "Mi")
		limit(ReadBandwidth, q.ReadBandwidthMiBps, "Mi")
		limit(WriteBandwidth, q.WriteBandwidthMiBps, "Mi")
	}
	return cmp.Or(strings.Join(words, ","), "none")
}

func (p *Parameters) qos() *v1alpha1.VolumeQoS {
	if p.QoS == nil {
		p.QoS = &v1alpha1.VolumeQoS{}
	}
	return p.QoS
}

// iops are counted in steps of SPDK's; what lies between is refused with the nearest two.
func iops(v string) (*int64, error) {
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n < v1alpha1.QoSIOPSStep || n > v1alpha1.QoSMaxIOPS {
		return nil, fmt.Errorf("%s: %q is not a whole number from %d to %d; remove it for no limit", IOPS, v, v1alpha1.QoSIOPSStep, v1alpha1.QoSMaxIOPS)
	}
	if below := n / v1alpha1.QoSIOPSStep * v1alpha1.QoSIOPSStep; below != n {
		return nil, fmt.Errorf("%s: %q is not a multiple of %d; use %d or %d", IOPS, v, v1alpha1.QoSIOPSStep, below, below+v1alpha1.QoSIOPSStep)
	}
	return &n, nil
}

// bandwidth in MiB a second.
func bandwidth(key, v string) (*int64, error) {
	q, err := resource.ParseQuantity(v)
	const step, most = v1alpha1.QoSBandwidthStep, v1alpha1.QoSBandwidthStep * v1alpha1.QoSMaxBandwidthMiBps
	if err != nil || q.Cmp(*resource.NewQuantity(step, resource.BinarySI)) < 0 || q.Cmp(*resource.NewQuantity(most, resource.BinarySI)) > 0 {
		return nil, fmt.Errorf("%s: %q is not a number of bytes per second from 1Mi to 1Ti; remove it for no limit", key, v)
	}
	// Value rounds up, so a fraction of a byte is off the step too.
	n := q.Value() / step
	if q.Cmp(*resource.NewQuantity(n*step, resource.BinarySI)) != 0 {
		return nil, fmt.Errorf("%s: %q is not a multiple of 1Mi; use %dMi or %dMi", key, v, n, n+1)
	}
	return &n, nil
}
