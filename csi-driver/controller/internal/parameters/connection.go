// SPDX-License-Identifier: Apache-2.0

package parameters

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// ConnectionTo returns the settings of a new volume on the target: what is
// given, else the default, lowered to what the target can do. A setting
// that is given and that the target cannot do is an *Error: the kernel would lower it without a word. What a node of
// the target serves may be less still; that is for placement to see.
func (p Parameters) ConnectionTo(target string, transports []v1alpha1.Transport) (v1alpha1.Connection, error) {
	var types []v1alpha1.TransportType
	for _, t := range transports {
		if !slices.Contains(types, t.Type) {
			types = append(types, t.Type)
		}
	}
	if len(types) == 0 {
		return v1alpha1.Connection{}, &Error{Problems: []string{fmt.Sprintf("target %q has no transports", target)}}
	}
	c := v1alpha1.Connection{Transports: p.Transports, CtrlLossTimeoutSeconds: p.CtrlLossTimeoutSeconds}
	if len(c.Transports) == 0 {
		c.Transports = types[:1]
	}
	var problems []string
	for _, t := range c.Transports {
		if !slices.Contains(types, t) {
			problems = append(problems, fmt.Sprintf("%s: target %q has no %s; use %s, or add %s to the target's spec.transports",
				Transport, target, t, join(types, " and "), t))
		}
	}
	if len(problems) > 0 {
		return v1alpha1.Connection{}, &Error{Problems: problems}
	}
	if c.CtrlLossTimeoutSeconds == 0 {
		c.CtrlLossTimeoutSeconds = v1alpha1.CtrlLossTimeoutForever
	}
	queues := limitOf(c.Transports, transports, v1alpha1.MaxIOQueues, func(t v1alpha1.Transport) int32 { return t.MaxIOQueues })
	depth := limitOf(c.Transports, transports, v1alpha1.MaxQueueDepth, func(t v1alpha1.Transport) int32 { return t.QueueDepth })
	var problem string
	c.IOQueues, problem = bounded(p.IOQueues, v1alpha1.DefaultAttachmentIOQueues, queues, IOQueues, "maxIOQueues", target)
	problems = append(problems, problem)
	c.QueueDepth, problem = bounded(p.QueueDepth, v1alpha1.DefaultQueueDepth, depth, QueueDepth, "queueDepth", target)
	problems = append(problems, problem)
	problems = slices.DeleteFunc(problems, func(s string) bool { return s == "" })
	if len(problems) > 0 {
		return v1alpha1.Connection{}, &Error{Problems: problems}
	}
	return c, nil
}

func bounded(given, byDefault int32, l limit, key, field, target string) (int32, string) {
	if given == 0 {
		return min(byDefault, l.most), ""
	}
	if given > l.most {
		return 0, fmt.Sprintf("%s: %d is greater than %d, the maximum of target %q over %s; lower it, or raise %s of the target's %s transport",
			key, given, l.most, target, l.by, field, l.by)
	}
	return given, ""
}

// Differences between what is asked for and an existing volume, in words; none when the volume fits. What
// is not given fits anything, since its default may have changed with the target since the volume was made.
func (p Parameters) Differences(spec v1alpha1.NvmfVolumeSpec) []string {
	var d []string
	differ := func(key string, given bool, want, has any) {
		if given && want != has {
			d = append(d, fmt.Sprintf("%s is %v, not %v", key, has, want))
		}
	}
	c := spec.Connection
	differ(Target, true, p.Target, spec.Target)
	differ(Replicas, p.Replicas != 0, p.Replicas, max(spec.Replicas, 1))
	differ(DeviceClass, p.DeviceClass != "", strconv.Quote(p.DeviceClass), strconv.Quote(spec.DeviceClass))
	differ(Transport, len(p.Transports) > 0, FormatTransports(p.Transports), FormatTransports(c.Transports))
	differ(IOQueues, p.IOQueues != 0, p.IOQueues, c.IOQueues)
	differ(QueueDepth, p.QueueDepth != 0, p.QueueDepth, c.QueueDepth)
	differ(CtrlLossTimeout, p.CtrlLossTimeoutSeconds != 0, p.CtrlLossTimeoutSeconds, c.CtrlLossTimeoutSeconds)
	// A class that says nothing asks for volumes that are not encrypted, and always did.
	differ(Encrypted, true, p.Encryption != "", spec.Encryption != "")
	return d
}
