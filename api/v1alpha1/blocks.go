// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import "net/url"

// What the CSI controller and agents say to each other about the blocks of snapshots: the controller gets a URL of the
// agent's, with a token of its service account, and the agent answers with BlockRanges, each a line of JSON.
const (
	// AgentAudience of the tokens that agents accept.
	AgentAudience = "weft-agent"
	// BlocksPattern of the URLs, as net/http has patterns. The others are parameters of a query: the name of the
	// NvmfSnapshot to compare with, the UUIDs of both, and the first byte of interest.
	BlocksPattern = "GET /snapshots/{" + BlocksSnapshot + "}/blocks"
	// BlocksSnapshot is the name of the NvmfSnapshot in the pattern.
	BlocksSnapshot = "snapshot"
	BlocksUUID     = "uuid"
	BlocksBase     = "base"
	BlocksBaseUUID = "baseUUID"
	BlocksFrom     = "from"
	// BlocksResource is the subresource of an NvmfSnapshot that whoever asks must be allowed to get.
	BlocksResource = "blocks"
)

// BlocksURL of a snapshot at the server of an agent.
func (s *SnapshotMetadataServer) BlocksURL(snapshot string, query url.Values) string {
	u := url.URL{Scheme: "https", Host: s.Address, Path: "/snapshots/" + snapshot + "/blocks", RawQuery: query.Encode()}
	return u.String()
}

// BlockRange of a volume's data as pods see them, or what the answer ends with: an answer without an end is cut off.
// +kubebuilder:object:generate=false
type BlockRange struct {
	Offset int64 `json:"offset,omitempty"`
	Bytes  int64 `json:"bytes,omitempty"`
	// End says that all ranges were told, and Error why the others cannot be.
	End   bool   `json:"end,omitempty"`
	Error string `json:"error,omitempty"`
}
