// SPDX-License-Identifier: Apache-2.0

package spdkrpc

import "maps"

// Touched is what calls may have changed of what BdevGetBdevs and NvmfGetSubsystems list.
type Touched struct {
	// Subsystems by their NQNs, and Bdevs by a name, alias or UUID.
	Subsystems, Bdevs map[string]bool
	// Everything may have changed.
	Everything bool
}

// add what another call may change.
func (t *Touched) add(other Touched) {
	t.Everything = t.Everything || other.Everything
	t.Subsystems, t.Bdevs = union(t.Subsystems, other.Subsystems), union(t.Bdevs, other.Bdevs)
}

// union of two sets, in the first of them if that is one.
func union(a, b map[string]bool) map[string]bool {
	if a == nil {
		return maps.Clone(b)
	}
	maps.Copy(a, b)
	return a
}

// Touched says what the calls on this connection may have changed since it was asked last; the first time, since the
// target began. A call without an answer counts until it has one, and once more after that: what is read between its
// start and its end may be from before it. Only calls on this connection count.
func (c *Conn) Touched() Touched {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.touched
	c.touched = Touched{}
	for _, call := range c.flying {
		c.touched.add(call.touches)
	}
	return t
}

// touchedBy a request. One that is not named here may change everything.
func touchedBy(req request) Touched {
	switch r := req.(type) {
	case SpdkGetVersion, RPCGetMethods, FrameworkGetConfig, FrameworkGetScheduler, FrameworkGetReactors, ThreadGetStats, ThreadSetCpumask,
		BdevGetBdevs, BdevGetIostat, BdevEnableHistogram, BdevGetHistogramBorders, BdevNvmeSendCmd, BdevLvolGetLvstores, BdevLvolGetLvols,
		NvmfGetTransports, NvmfGetSubsystems, NvmfSubsystemGetControllers, NvmfGetStats, IobufGetStats, SockImplGetOptions,
		KeyringFileAddKey, KeyringFileRemoveKey, KeyringGetKeys:
		return Touched{}
	case NvmfCreateSubsystem:
		return subsystem(r.NQN)
	case NvmfDeleteSubsystem:
		return subsystem(r.NQN)
	case NvmfSubsystemAddNs:
		t := subsystem(r.NQN)
		t.add(bdev(r.Namespace.Bdev))
		return t
	case NvmfSubsystemRemoveNs:
		return subsystem(r.NQN)
	case NvmfSubsystemAddListener:
		return subsystem(r.NQN)
	case NvmfSubsystemRemoveListener:
		return subsystem(r.NQN)
	case NvmfSubsystemListenerSetAnaState:
		return subsystem(r.NQN)
	case NvmfSubsystemSetNsAnaGroup:
		return subsystem(r.NQN)
	case NvmfSubsystemAddHost:
		return subsystem(r.NQN)
	case NvmfSubsystemRemoveHost:
		return subsystem(r.NQN)
	case NvmfSubsystemSetKeys:
		return subsystem(r.NQN)
	case BdevSetQosLimit:
		return bdev(r.Name)
	case BdevLvolCreate:
		return bdev(r.LvstoreName + "/" + r.Name)
	}
	return Touched{Everything: true}
}

func subsystem(nqn string) Touched { return Touched{Subsystems: map[string]bool{nqn: true}} }

func bdev(name string) Touched { return Touched{Bdevs: map[string]bool{name: true}} }
