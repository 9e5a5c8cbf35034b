// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/gather"
	"github.com/weft-storage/weft/operator/internal/webhook"
)

// webhookNames are the names that the certificate is for.
func (o settings) webhookNames() []string {
	if len(o.WebhookNames) > 0 {
		return o.WebhookNames
	}
	return []string{webhookService + "." + o.Namespace + ".svc"}
}

// webhookServer listens on the address, and serves with what the keeper has.
func webhookServer(address string, keeper *webhook.Keeper) (ctrlwebhook.Server, error) {
	if address == off {
		return nil, nil
	}
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("webhook address %q: %w; use an address such as :9443, or 0 to disable it", address, err)
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil || port == 0 {
		return nil, fmt.Errorf("webhook address %q: the port must be a number from 1 to 65535, such as :9443", address)
	}
	return ctrlwebhook.NewServer(ctrlwebhook.Options{Host: host, Port: int(port), TLSOpts: []func(*tls.Config){func(c *tls.Config) {
		c.MinVersion = tls.VersionTLS13
		c.GetCertificate = keeper.GetCertificate
	}}}), nil
}

// addWebhook judges NvmfTargets in every replica, and keeps the certificate. A replica without one is not ready, so
// that the API server does not call it.
func addWebhook(ctx context.Context, mgr ctrl.Manager, keeper *webhook.Keeper) error {
	// Controllers that wait for the lead do not watch yet; the first request would wait for all of this to be read, and
	// so would controllers that take the lead.
	for _, o := range append(gather.Kinds(), &v1alpha1.NvmfVolume{}) {
		if _, err := mgr.GetCache().GetInformer(ctx, o, cache.BlockUntilSynced(false)); err != nil {
			return fmt.Errorf("watch %T: %w", o, err)
		}
	}
	keeper.Client = mgr.GetClient()
	targets := &webhook.Targets{Reader: mgr.GetClient()}
	if err := errors.Join(keeper.SetupWithManager(mgr), targets.SetupWithManager(mgr)); err != nil {
		return fmt.Errorf("set up the webhook: %w", err)
	}
	if err := mgr.AddReadyzCheck("webhook", keeper.Ready); err != nil {
		return fmt.Errorf("add the webhook's check: %w", err)
	}
	return nil
}
