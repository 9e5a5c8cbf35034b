// SPDX-License-Identifier: Apache-2.0

package fabrics

import "errors"

// ControllerState is what a controller is of, and its state.
type ControllerState struct{ NQN, State string }

// States of all controllers of this machine, by their names. It reads two files of each, which never waits, and nothing
// that a controller that is going away could trip over.
func (h *Host) States() (map[string]ControllerState, error) {
	class := h.sys("class/nvme")
	names, err := children(controllerName, class)
	if err != nil {
		return nil, err
	}
	all := make(map[string]ControllerState, len(names))
	for _, name := range names {
		nqn, err := attribute(class, name, "subsysnqn")
		if errors.Is(err, errGone) {
			continue
		}
		if err != nil {
			return nil, err
		}
		state, err := attribute(class, name, "state")
		if errors.Is(err, errGone) {
			continue
		}
		if err != nil {
			return nil, err
		}
		all[name] = ControllerState{NQN: nqn, State: state}
	}
	return all, nil
}
