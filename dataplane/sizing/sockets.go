// SPDX-License-Identifier: Apache-2.0

package sizing

import (
	"cmp"
	"fmt"
	"strconv"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/weft-storage/weft/api/v1alpha1"
)

const (
	// SPDK asks for socket buffers of 2 MiB each way.
	defaultSocketBuffer = 2 << 20
	// grantedSocketBuffer is what the kernel grants a socket each way: net.core.rmem_max and wmem_max by default.
	grantedSocketBuffer = 212_992
)

// socketOptions resolves spec.sockets, field by field.
type socketOptions struct {
	why     *explanation
	reasons []Reason
}

func (o *socketOptions) invalid(field, format string, args ...any) {
	o.reasons = append(o.reasons, reasonf(v1alpha1.ReasonInvalidSetting, "sockets.%s %s", field, fmt.Sprintf(format, args...)))
}

func (o *socketOptions) toggle(field string, given *v1alpha1.Switch, byDefault v1alpha1.Switch, words string) v1alpha1.Switch {
	setting := "sockets." + field
	if given == nil {
		o.why.byDefault(setting, string(byDefault), words+"; SPDK's default")
		return byDefault
	}
	if !isSwitch(*given) {
		o.invalid(field, "is %q; use Enabled or Disabled", *given)
	}
	o.why.given(setting, string(*given), words)
	return *given
}

// receivePipe is not what SPDK does by default, and cannot be had: without it, a fault of SPDK 26.05 does no harm
// (docs/concepts/strangers.md). Whether 25.05 and 26.01 have the fault was not tried, and no later release is known. A
// plan is made without knowing which release a node will run.
func (o *socketOptions) receivePipe(given *v1alpha1.Switch) v1alpha1.Switch {
	const fault = "with it, SPDK lets anybody who reaches the portal overwrite what other hosts write"
	if given == nil {
		o.why.byDefault("sockets.receivePipe", string(v1alpha1.SwitchDisabled), fault)
		return v1alpha1.SwitchDisabled
	}
	if *given == v1alpha1.SwitchEnabled {
		o.invalid("receivePipe", "is Enabled: %s (seen on 26.05, not tried on 25.05 and 26.01); remove it, or use Disabled", fault)
		return v1alpha1.SwitchDisabled
	}
	return o.toggle("receivePipe", given, v1alpha1.SwitchDisabled, fault)
}

func (o *socketOptions) bytes(field string, given *resource.Quantity, byDefault, least, most int64, words string, warning func(int64) string) int64 {
	setting := "sockets." + field
	if given == nil {
		o.why.byDefault(setting, strconv.FormatInt(byDefault, 10), words+"; SPDK's default")
		return byDefault
	}
	value := given.Value()
	if value < least || value > most {
		o.invalid(field, "is %d bytes; use %d to %d", value, least, most)
	}
	o.why.given(setting, strconv.FormatInt(value, 10), words, warning(value))
	return value
}

func isSwitch(s v1alpha1.Switch) bool {
	return s == v1alpha1.SwitchEnabled || s == v1alpha1.SwitchDisabled
}

// planSockets of SPDK's TCP transport; nil without one.
func planSockets(spec v1alpha1.NvmfTargetSpec, tcp bool, why *explanation) (*v1alpha1.PlannedSockets, []Reason) {
	if spec.Sockets != nil && spec.Sockets.IdlePollPeriod != nil {
		return nil, []Reason{reasonf(v1alpha1.ReasonInvalidSetting, "sockets.idlePollPeriod: with SPDK, cores.mode controls polling; remove it, or use engine: Nvmet")}
	}
	if !tcp {
		if spec.Sockets != nil {
			return nil, []Reason{noSockets()}
		}
		return nil, nil
	}
	var given v1alpha1.Sockets
	if spec.Sockets != nil {
		given = *spec.Sockets
	}
	o := socketOptions{why: why}
	none := func(int64) string { return "" }
	beyond := func(limit string) func(int64) string {
		return func(bytes int64) string {
			if bytes <= grantedSocketBuffer {
				return ""
			}
			return fmt.Sprintf("the kernel grants no more than %s (default %d): raise it on the node too", limit, grantedSocketBuffer)
		}
	}
	p := &v1alpha1.PlannedSockets{
		ZeroCopySend: o.toggle("zeroCopySend", given.ZeroCopySend, v1alpha1.SwitchEnabled, "data goes from the target's buffers to the NIC without a copy, except over loopback"),
		ZeroCopyThreshold: o.bytes("zeroCopyThreshold", given.ZeroCopyThreshold, 0, 0, v1alpha1.MaxZeroCopyThreshold,
			"shorter data is copied, because a copy costs less than the notification of a finished send", none),
		ReceivePipe: o.receivePipe(given.ReceivePipe),
		QuickAck:    o.toggle("quickAck", given.QuickAck, v1alpha1.SwitchDisabled, "when enabled, packets are acknowledged immediately instead of with the next answer"),
		SendBufferSize: o.bytes("sendBufferSize", given.SendBufferSize, defaultSocketBuffer, v1alpha1.MinSocketBuffer, v1alpha1.MaxSocketBuffer,
			"maximum data in transit per connection", beyond("net.core.wmem_max")),
		ReceiveBufferSize: o.bytes("receiveBufferSize", given.ReceiveBufferSize, defaultSocketBuffer, v1alpha1.MinSocketBuffer, v1alpha1.MaxSocketBuffer,
			"maximum data that a connection can receive before the target reads it", beyond("net.core.rmem_max")),
	}
	return p, o.reasons
}

func noSockets() Reason {
	return reasonf(v1alpha1.ReasonInvalidSetting, "sockets is set, but only TCP connections use sockets; remove sockets, or add a transport of type TCP")
}

// grantedBuffers of a connection, both ways: what the user asks for, else what the kernel grants by itself.
func grantedBuffers(spec *v1alpha1.Sockets) int64 {
	one := func(given *resource.Quantity) int64 {
		if given == nil {
			return grantedSocketBuffer
		}
		return given.Value()
	}
	if spec == nil {
		return 2 * grantedSocketBuffer
	}
	return one(spec.SendBufferSize) + one(spec.ReceiveBufferSize)
}

// planTCP adds what only a TCP transport has.
func planTCP(spec v1alpha1.NvmfTargetSpec, t transport, planned *v1alpha1.PlannedTransport, why *explanation) {
	planned.C2HSuccess = cmp.Or(t.c2hSuccess, v1alpha1.SwitchEnabled)
	words := "the last data PDU of a read also reports its completion, which saves one PDU per read"
	if planned.C2HSuccess == v1alpha1.SwitchDisabled {
		words = "each read has a separate completion, for hosts that do not support the combined one"
	}
	if t.c2hSuccess == "" {
		why.byDefault(t.setting("c2hSuccess"), string(planned.C2HSuccess), words+"; SPDK's default")
	} else {
		why.given(t.setting("c2hSuccess"), string(planned.C2HSuccess), words)
	}
	planned.SocketPriority = explainPriority(spec.Sockets, t.setting("socketPriority"), why)
}

// socketPriority of the spec, and whether it was given.
func socketPriority(s *v1alpha1.Sockets) (priority int32, given bool) {
	if s == nil || s.Priority == nil {
		return 0, false
	}
	return *s.Priority, true
}

func explainPriority(s *v1alpha1.Sockets, setting string, why *explanation) int32 {
	priority, given := socketPriority(s)
	value := strconv.Itoa(int(priority))
	if !given {
		why.byDefault(setting, value, "packets have no priority (SO_PRIORITY)")
		return priority
	}
	why.given(setting, value, "priority of packets of new connections (SO_PRIORITY): queueing disciplines and some NICs use it to classify packets")
	return priority
}

func checkPriority(s *v1alpha1.Sockets) *Reason {
	if priority, _ := socketPriority(s); priority < 0 || priority > v1alpha1.MaxSocketPriority {
		return new(reasonf(v1alpha1.ReasonInvalidSetting, "sockets.priority is %d; use 0 to %d", priority, v1alpha1.MaxSocketPriority))
	}
	return nil
}
