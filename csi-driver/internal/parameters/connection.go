// SPDX-License-Identifier: Apache-2.0

package parameters

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// Connection returns the settings of a new volume on the target: what is
// given, else the default, lowered to what the target can do. A setting
// that is given and that the target cannot do is an *Error: the kernel would lower it without a word.
func (p Parameters) Connection(target string, transports []v1alpha1.Transport) (v1alpha1.Connection, error) {
	var types []string
	for _, t := range transports {
		if !slices.Contains(types, string(t.Type)) {
			types = append(types, string(t.Type))
		}
	}
	if len(types) == 0 {
		return v1alpha1.Connection{}, &Error{Problems: []string{fmt.Sprintf("target %q has no transport", target)}}
	}
	c := v1alpha1.Connection{Transport: p.Transport, CtrlLossTimeoutSeconds: p.CtrlLossTimeoutSeconds}
	if c.Transport == "" {
		c.Transport = v1alpha1.TransportType(types[0])
	}
	if !slices.Contains(types, string(c.Transport)) {
		return v1alpha1.Connection{}, &Error{Problems: []string{fmt.Sprintf(
			"%s: target %q has no %s, it has %s; write that, or add %s to the target's spec.transports",
			Transport, target, c.Transport, strings.Join(types, " and "), c.Transport)}}
	}
	if c.CtrlLossTimeoutSeconds == 0 {
		c.CtrlLossTimeoutSeconds = defaultCtrlLossTimeout
	}
	queues, depth := limits(c.Transport, transports)
	var problems []string
	var problem string
	c.IOQueues, problem = bounded(p.IOQueues, defaultIOQueues, queues, IOQueues, "maxIOQueues", target, c.Transport)
	problems = append(problems, problem)
	c.QueueDepth, problem = bounded(p.QueueDepth, defaultQueueDepth, depth, QueueDepth, "queueDepth", target, c.Transport)
	problems = append(problems, problem)
	problems = slices.DeleteFunc(problems, func(s string) bool { return s == "" })
	if len(problems) > 0 {
		return v1alpha1.Connection{}, &Error{Problems: problems}
	}
	return c, nil
}

// limits of the target's transports of one type. A host uses all of them as paths of one volume, so the lowest counts.
func limits(of v1alpha1.TransportType, transports []v1alpha1.Transport) (queues, depth int32) {
	queues, depth = maxIOQueues, maxQueueDepth
	for _, t := range transports {
		if t.Type == of && t.MaxIOQueues > 0 {
			queues = min(queues, t.MaxIOQueues)
		}
		if t.Type == of && t.QueueDepth > 0 {
			depth = min(depth, t.QueueDepth)
		}
	}
	return queues, depth
}

func bounded(given, byDefault, limit int32, key, field, target string, t v1alpha1.TransportType) (int32, string) {
	if given == 0 {
		return min(byDefault, limit), ""
	}
	if given > limit {
		return 0, fmt.Sprintf("%s: %d is more than the %d that target %q takes over %s; lower it, or raise %s of the target's %s transport",
			key, given, limit, target, t, field, t)
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
	differ(Transport, p.Transport != "", p.Transport, c.Transport)
	differ(IOQueues, p.IOQueues != 0, p.IOQueues, c.IOQueues)
	differ(QueueDepth, p.QueueDepth != 0, p.QueueDepth, c.QueueDepth)
	differ(CtrlLossTimeout, p.CtrlLossTimeoutSeconds != 0, p.CtrlLossTimeoutSeconds, c.CtrlLossTimeoutSeconds)
	return d
}
