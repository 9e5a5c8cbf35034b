// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// uidBackoff between tries to read the Node: from 1 s, doubling, to at most 30 s.
var uidBackoff = wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 0.1, Steps: 6, Cap: 30 * time.Second}

// UID reads the UID of a Kubernetes Node, from which the host NQN is made. It tries until it is
// answered, or the context ends: without its identity a host must not connect to anything.
func UID(ctx context.Context, reader client.Reader, node string) (string, error) {
	var uid string
	var last error
	err := uidBackoff.DelayFunc().Until(ctx, true, false, func(ctx context.Context) (bool, error) {
		if uid, last = readUID(ctx, reader, node); last != nil {
			logr.FromContextOrDiscard(ctx).Error(last, "Cannot read the Node yet", "node", node)
		}
		return last == nil, nil
	})
	if err != nil {
		return "", fmt.Errorf("%w (last answer: %w)", err, last)
	}
	return uid, nil
}

func readUID(ctx context.Context, reader client.Reader, node string) (string, error) {
	var n corev1.Node
	if err := reader.Get(ctx, client.ObjectKey{Name: node}, &n); err != nil {
		return "", fmt.Errorf("read Node %s: %w", node, err)
	}
	return string(n.UID), nil
}
