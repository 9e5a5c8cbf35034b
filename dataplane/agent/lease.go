// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/apimachinery/lease"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/weft-storage/weft/api/v1alpha1"
)

const (
	leaseRenewal  = 10 * time.Second
	leaseDuration = 40 * time.Second
)

// heartbeat renews the Lease by which the operator knows that the agent lives. It is left
// behind when the agent stops, and runs out.
func heartbeat(client kubernetes.Interface, c clock.Clock, nodeName, namespace string) manager.Runnable {
	label := func(l *coordinationv1.Lease) error {
		if l.Labels == nil {
			l.Labels = map[string]string{}
		}
		l.Labels[v1alpha1.ComponentLabel] = v1alpha1.ComponentAgent
		return nil
	}
	return manager.RunnableFunc(func(ctx context.Context) error {
		lease.NewController(c, client, nodeName, int32(leaseDuration.Seconds()), nil, leaseRenewal,
			v1alpha1.AgentLeasePrefix+nodeName, namespace, label).Run(ctx)
		return nil
	})
}
