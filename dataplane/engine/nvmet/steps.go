// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"fmt"
	"slices"

	"github.com/weft-storage/weft/dataplane/engine"
)

// step is one change in configfs.
type step struct {
	do stepKind
	// port to link or unlink.
	port int
	nsid uint32
	// namespace to make.
	namespace namespace
	// host to admit or to refuse.
	host string
}

// awaitsWrites tells whether the kernel may wait for the writes of hosts with it.
func (s step) awaitsWrites() bool {
	return s.do == unlinkPort || s.do == removeNamespace || s.do == removeSubsystem
}

type stepKind string

const (
	unlinkPort      stepKind = "unlink port"
	removeSubsystem stepKind = "remove subsystem"
	makeSubsystem   stepKind = "make subsystem"
	setQueues       stepKind = "set queues"
	removeNamespace stepKind = "remove namespace"
	makeNamespace   stepKind = "make namespace"
	admitHost       stepKind = "admit host"
	setKeys         stepKind = "set keys of host"
	refuseHost      stepKind = "refuse host"
	dropHost        stepKind = "drop host"
	linkPort        stepKind = "link port"
)

// steps from what is to what is wanted, in an order that never lets a host see
// half of it: namespaces, then hosts, then ports; and the other way round
// when something goes that a host may still use. It fails with
// engine.ErrRestartNeeded when hosts know it by what would change.
func steps(is *subsystem, want subsystem) ([]step, error) {
	if is == nil {
		return makeSteps(want), nil
	}
	renamed := is.serial != want.serial || is.model != want.model
	if renamed && len(is.hosts) > 0 {
		return nil, fmt.Errorf("serial number and model of %s, which admits hosts: %w", want.nqn, engine.ErrRestartNeeded)
	}
	again := is.retired && (len(want.hosts) > 0 || !slices.Equal(spacesOf(is), spacesOf(&want)))
	if renamed || is.allowAnyHost || again || losesHost(is, want) || losesKeys(is, want) {
		return append(removeSteps(is), makeSteps(want)...), nil
	}
	var todo []step
	for _, port := range is.ports {
		if !slices.Contains(want.ports, port) {
			todo = append(todo, step{do: unlinkPort, port: port})
		}
	}
	if !is.retired {
		if is.queues != 0 && is.queues != want.queues {
			todo = append(todo, step{do: setQueues})
		}
		todo = append(todo, namespaceSteps(is.namespaces, want.namespaces)...)
	}
	for _, host := range without(want.refused, is.refused) {
		todo = append(todo, step{do: refuseHost, host: host})
	}
	for _, host := range is.hosts {
		if slices.Contains(want.gone, host) {
			todo = append(todo, step{do: dropHost, host: host})
		}
		if has, shall := is.keys[host].Fingerprint, want.keys[host].Keys.Fingerprint(); shall != "" && shall != has && slices.Contains(want.hosts, host) {
			todo = append(todo, step{do: setKeys, host: host})
		}
	}
	for _, host := range without(want.hosts, is.hosts) {
		todo = append(todo, step{do: admitHost, host: host})
	}
	for _, port := range want.ports {
		if !slices.Contains(is.ports, port) {
			todo = append(todo, step{do: linkPort, port: port})
		}
	}
	return todo, nil
}

// losesHost says whether a host is admitted that must not be. Its
// controllers may still be there, so the subsystem is made again; see the package's doc. The same holds for one that is
// refused and is to be admitted. One that is refused longer than it has to be is no reason, nor is one that is gone: it
// has no controllers.
func losesHost(is *subsystem, want subsystem) bool {
	return len(without(is.hosts, slices.Concat(want.hosts, want.gone))) > 0 || len(without(want.hosts, is.refused)) < len(want.hosts)
}

// losesKeys says whether a host has keys that it should not have: the kernel cannot take them away from it.
func losesKeys(is *subsystem, want subsystem) bool {
	return slices.ContainsFunc(without(is.hosts, want.gone), func(host string) bool {
		return is.keys[host].Fingerprint != "" && want.keys[host].Keys.IsZero() && want.keys[host].Fingerprint == ""
	})
}

// spacesOf a subsystem, by what they serve.
func spacesOf(s *subsystem) []engine.Namespace { return s.export(nil).Namespaces }

func namespaceSteps(is, want map[uint32]namespace) []step {
	var gone, todo []step
	for _, nsid := range sortedKeys(is) {
		if ns, stays := want[nsid]; !stays || is[nsid] != ns {
			gone = append(gone, step{do: removeNamespace, nsid: nsid})
		}
	}
	for _, nsid := range sortedKeys(want) {
		if old, there := is[nsid]; !there || old != want[nsid] {
			todo = append(todo, step{do: makeNamespace, nsid: nsid, namespace: want[nsid]})
		}
	}
	return append(gone, todo...)
}

func makeSteps(want subsystem) []step {
	todo := []step{{do: makeSubsystem}}
	for _, host := range want.refused { // even if there is no namespace to be had
		todo = append(todo, step{do: refuseHost, host: host})
	}
	todo = append(todo, namespaceSteps(nil, want.namespaces)...)
	for _, host := range want.hosts {
		todo = append(todo, step{do: admitHost, host: host})
	}
	for _, port := range want.ports {
		todo = append(todo, step{do: linkPort, port: port})
	}
	return todo
}

func removeSteps(is *subsystem) []step {
	var todo []step
	for _, port := range is.ports {
		todo = append(todo, step{do: unlinkPort, port: port})
	}
	return append(todo, step{do: removeSubsystem})
}

// interrupts says whether hosts that stay admitted, or are refused, find their subsystem missing for a moment.
func interrupts(todo []step, want subsystem) bool {
	return want.isKnown() && slices.ContainsFunc(todo, func(s step) bool { return s.do == unlinkPort })
}
