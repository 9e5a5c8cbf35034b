// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
)

// Probe asks the target on the socket for its version. It answers within ctx, or fails.
func Probe(ctx context.Context, socket string) (version string, err error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", socket)
	if err != nil {
		return "", fmt.Errorf("no target: %w", err)
	}
	defer conn.Close() //nolint:errcheck // the answer has been read
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return "", err
		}
	}
	if _, err := conn.Write([]byte(`{"jsonrpc":"2.0","id":1,"method":"spdk_get_version"}`)); err != nil {
		return "", fmt.Errorf("ask the target: %w", err)
	}
	var answer struct {
		Result struct {
			Version string `json:"version"`
		} `json:"result"`
		Error *struct {
			Code    int    `json:"code"`
			Message string `json:"message"`
		} `json:"error"`
	}
	if err := json.NewDecoder(conn).Decode(&answer); err != nil {
		return "", fmt.Errorf("the target does not answer: %w", err)
	}
	if answer.Error != nil {
		return "", fmt.Errorf("the target answers: %s (code %d)", answer.Error.Message, answer.Error.Code)
	}
	if answer.Result.Version == "" {
		return "", fmt.Errorf("what answers on %s is no SPDK", socket)
	}
	return answer.Result.Version, nil
}
