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
		var n corev1.Node
		if last = reader.Get(ctx, client.ObjectKey{Name: node}, &n); last != nil {
			logr.FromContextOrDiscard(ctx).Error(last, "Cannot read the Node yet", "node", node)
		}
		uid = string(n.UID)
		return last == nil, nil
	})
	if err != nil {
		return "", fmt.Errorf("read Node %s: %w (last answer: %w)", node, err, last)
	}
	return uid, nil
}
