// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/agent"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/nvmet"
	"github.com/weft-storage/weft/dataplane/engine/spdk"
	"github.com/weft-storage/weft/dataplane/inventory"
	"github.com/weft-storage/weft/dataplane/tuning"
)

// machine that the agent runs on.
type machine struct{}

// Discover implements agent.InventorySource.
func (machine) Discover(ctx context.Context) (*v1alpha1.Inventory, error) {
	return inventory.Discover(ctx, inventory.Host{Addresses: inventory.Netlink{}, Prober: inventory.Blkid{}})
}

// unprobed drives are not opened: what is on them stays unknown.
type unprobed struct{}

// Probe implements inventory.Prober.
func (unprobed) Probe(context.Context, string) (inventory.Signature, error) {
	return inventory.Signature{}, errors.New("not looked at")
}

// inventoryCommand prints what an agent would report of a machine. It needs no privileges, and nothing of the machine
// but /lib/modules, if it is in its network: it is what `kubectl weft check --probe` runs.
func inventoryCommand(host inventory.Host) *cobra.Command {
	return &cobra.Command{
		Use:   "inventory",
		Short: "Print what this machine has, as JSON, and change nothing",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			is, err := inventory.Discover(cmd.Context(), host)
			if err != nil {
				return err
			}
			return json.NewEncoder(cmd.OutOrStdout()).Encode(is)
		},
	}
}

// tuned is the machine's kernel and NICs.
func tuned() (tuning.Host, error) {
	drivers, err := tuning.NewEthtool()
	if err != nil {
		return nil, err
	}
	return tuning.NewMachine("/", drivers), nil
}

// engines that this version has. Neither touches anything before a plan asks for it.
func engines(stateDir, spdkSocket string) (agent.Engines, error) {
	kernel := nvmet.New(nvmet.Options{StateDir: stateDir})
	userSpace, err := spdk.New(spdk.Config{Socket: spdkSocket, StateDir: stateDir})
	if err != nil {
		return nil, fmt.Errorf("engine %s: %w", v1alpha1.EngineSPDK, err)
	}
	return func(t v1alpha1.Engine) (engine.Engine, error) {
		switch t {
		case v1alpha1.EngineNvmet:
			return kernel, nil
		case v1alpha1.EngineSPDK:
			return userSpace, nil
		}
		return nil, fmt.Errorf("engine %s is not supported by this version; use engine: %s or %s", t, v1alpha1.EngineSPDK, v1alpha1.EngineNvmet)
	}, nil
}
