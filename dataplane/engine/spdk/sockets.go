// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"strconv"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
)

// Names of settings that are on, 1, or off, 0.
const (
	zeroCopySend = "zero-copy send"
	receivePipe  = "receive pipe"
	quickAck     = "quick acknowledgement"
	c2hSuccess   = "C2H success"
)

// socketSettings are the names of what a plan decides of sockets.
var socketSettings = []string{zeroCopySend, "zero-copy threshold in bytes", receivePipe, quickAck, "send buffer in bytes", "receive buffer in bytes"}

// inWords is a setting's value for people.
func inWords(name string, value int64) string {
	switch name {
	case zeroCopySend, receivePipe, quickAck, c2hSuccess:
		return onOff(value == 1)
	}
	return strconv.FormatInt(value, 10)
}

// socketsOf a plan. What it does not say stays as SPDK has it.
func socketsOf(plan *v1alpha1.SPDKPlan) spdkrpc.SockImplSetOptions {
	placement := placements[plan.Placement]
	req := spdkrpc.SockImplSetOptions{Impl: spdkrpc.SockPosix, Placement: &placement}
	if s := plan.Sockets; s != nil {
		req.SendBufBytes, req.RecvBufBytes = uint32(s.SendBufferSize), uint32(s.ReceiveBufferSize)
		req.EnableRecvPipe, req.EnableQuickAck = new(isOn(s.ReceivePipe)), new(isOn(s.QuickAck))
		req.EnableZeroCopySendServer, req.ZeroCopyThresholdBytes = new(isOn(s.ZeroCopySend)), new(uint32(s.ZeroCopyThreshold))
	}
	return req
}

// plannedSockets as the target would say them.
func plannedSockets(s *v1alpha1.PlannedSockets) map[string]int64 {
	if s == nil {
		return nil
	}
	return socketNumbers(spdkrpc.SockImplOptions{
		SendBufBytes: uint32(s.SendBufferSize), RecvBufBytes: uint32(s.ReceiveBufferSize), EnableRecvPipe: isOn(s.ReceivePipe), EnableQuickAck: isOn(s.QuickAck),
		EnableZeroCopySendServer: isOn(s.ZeroCopySend), ZeroCopyThresholdBytes: uint32(s.ZeroCopyThreshold),
	})
}

func socketNumbers(o spdkrpc.SockImplOptions) map[string]int64 {
	values := []int64{bit(o.EnableZeroCopySendServer), int64(o.ZeroCopyThresholdBytes), bit(o.EnableRecvPipe), bit(o.EnableQuickAck), int64(o.SendBufBytes), int64(o.RecvBufBytes)}
	numbers := make(map[string]int64, len(values))
	for i, name := range socketSettings {
		numbers[name] = values[i]
	}
	return numbers
}

func isOn(s v1alpha1.Switch) bool { return s == v1alpha1.SwitchEnabled }

func bit(on bool) int64 {
	if on {
		return 1
	}
	return 0
}
