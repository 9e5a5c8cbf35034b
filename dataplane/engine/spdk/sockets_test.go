// SPDX-License-Identifier: Apache-2.0

package spdk_test

import (
	"errors"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
)

// TestSocketOptions are taken by a target that starts, read back, and need a restart afterwards.
func TestSocketOptions(t *testing.T) {
	m := newMachine(t)
	m.plan = planOf(v1alpha1.TransportTCP)
	m.plan.SPDK.Sockets = &v1alpha1.PlannedSockets{
		ZeroCopySend: v1alpha1.SwitchDisabled, ZeroCopyThreshold: 4096, ReceivePipe: v1alpha1.SwitchDisabled, QuickAck: v1alpha1.SwitchEnabled,
		SendBufferSize: 64 << 10, ReceiveBufferSize: 128 << 10,
	}
	m.plan.SPDK.Transports[0].C2HSuccess, m.plan.SPDK.Transports[0].SocketPriority = v1alpha1.SwitchDisabled, 3
	g := NewWithT(t)
	m.restart(t)
	e := m.engine(t)
	check(t, e.Start(t.Context(), m.plan))

	other := m.plan
	other.SPDK = m.plan.SPDK.DeepCopy()
	other.SPDK.Sockets = &v1alpha1.PlannedSockets{
		ZeroCopySend: v1alpha1.SwitchEnabled, ReceivePipe: v1alpha1.SwitchEnabled, QuickAck: v1alpha1.SwitchDisabled, SendBufferSize: 2 << 20, ReceiveBufferSize: 2 << 20,
	}
	other.SPDK.Transports[0].C2HSuccess, other.SPDK.Transports[0].SocketPriority = v1alpha1.SwitchEnabled, 0
	var restart *engine.RestartNeededError
	err := e.Start(t.Context(), other)
	g.Expect(errors.As(err, &restart)).To(BeTrue(), "%v", err)
	g.Expect(restart.Differences).To(ConsistOf(
		"zero-copy send of sockets is off, but should be on", "zero-copy threshold in bytes of sockets is 4096, but should be 0", "receive pipe of sockets is off, but should be on",
		"quick acknowledgement of sockets is on, but should be off", "send buffer in bytes of sockets is 65536, but should be 2097152", "receive buffer in bytes of sockets is 131072, but should be 2097152",
		"C2H success of transport TCP is off, but should be on", "socket priority of transport TCP is 3, but should be 0",
	))

	// A plan that says nothing of them leaves them alone.
	other.SPDK.Sockets, other.SPDK.Transports = nil, m.plan.SPDK.Transports
	check(t, e.Start(t.Context(), other))
}
