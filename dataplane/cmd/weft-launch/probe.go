// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"github.com/weft-storage/weft/dataplane/spdkrpc"
)

// Probe asks the target on the socket for its version. It answers within ctx, or fails. A target that still waits for
// its settings answers too.
func Probe(ctx context.Context, socket string) (version string, err error) {
	client, err := spdkrpc.New(socket, spdkrpc.Options{})
	if err != nil {
		return "", err
	}
	defer client.Close()
	answer, err := spdkrpc.Call(ctx, client, spdkrpc.SpdkGetVersion{})
	if err != nil {
		return "", err
	}
	return answer.Text, nil
}
