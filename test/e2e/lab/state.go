// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/weft-storage/weft/test/e2e/internal/build"
)

// state is what the lab remembers between commands, in state.json. It is
// written before anything is created, so that whatever an interrupted command
// left can be found and removed.
type state struct {
	// Slot decides the lab's addresses.
	Slot int `json:"slot"`
	// Nodes are the names of the virtual machines.
	Nodes []string `json:"nodes"`
	// Carried are the serial numbers of drives from other labs, by the node that has them beside its own.
	Carried map[string][]string `json:"carried,omitempty"`
	// Cluster is false for a lab that has machines only.
	Cluster bool `json:"cluster"`
	// RDMA says whether nodes have a soft RDMA device.
	RDMA bool `json:"rdma"`
	// IOMMU says whether nodes have one.
	IOMMU bool `json:"iommu,omitempty"`
	// MemoryMiB is the memory of each node.
	MemoryMiB int `json:"memoryMiB"`
	// Complete is set when the lab came up; one that is not complete is
	// removed before the next attempt.
	Complete bool `json:"complete"`
	// Machine is what the nodes start from, AssetsDir what the control plane
	// is run from.
	Machine   build.Machine `json:"machine"`
	AssetsDir string        `json:"assetsDir,omitempty"`
}

func (s state) addresses() addresses { return addresses{s.Slot} }

// ErrNotUp is returned where a running lab is needed and there is none.
var ErrNotUp = errors.New("the lab is not up; run `weft-lab up`")

// writeFileAtomic replaces path at once, so that an interruption leaves the
// old or the new content.
func writeFileAtomic(path string, data []byte, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, data, mode); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

func writeJSON(path string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", filepath.Base(path), err)
	}
	return writeFileAtomic(path, append(data, '\n'), 0o644)
}

func readState(path string) (state, error) {
	var s state
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, ErrNotUp
	}
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return s, fmt.Errorf("parse %s: %w", path, err)
	}
	return s, nil
}
