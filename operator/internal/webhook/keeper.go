// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"sync/atomic"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	admissionapply "k8s.io/client-go/applyconfigurations/admissionregistration/v1"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/weft-storage/weft/api/v1alpha1"
)

const (
	// SecretName is that of the Secret, in the operator's namespace. It comes with the installation, empty: who may
	// create Secrets could have one filled with another account's token.
	SecretName = "weft-operator-webhook"
	// ConfigurationName is that of the ValidatingWebhookConfiguration, which comes with the installation too.
	ConfigurationName = "weft-nvmftargets"
)

// errNone: no certificate was loaded yet.
var errNone = errors.New("the webhook has no certificate yet: Secret " + SecretName + " was not read")

// Keeper keeps the Secret and the API server's trust in order, and serves with the certificate. Every
// replica has one at work, the leader or not: whoever is late finds that the work was done.
type Keeper struct {
	// Client reads the one Secret and the one configuration from the cache, see CacheOptions.
	client.Client
	Namespace string
	// Names that the API server may call the webhook by.
	Names []string
	Clock clock.PassiveClock

	current atomic.Pointer[tls.Certificate]
}

// CacheOptions let a cache hold only what a Keeper reads: rights are by name, too.
func CacheOptions(namespace string) map[client.Object]cache.ByObject {
	return map[client.Object]cache.ByObject{
		&corev1.Secret{}: {
			Namespaces: map[string]cache.Config{namespace: {}},
			Field:      fields.OneTermEqualSelector("metadata.name", SecretName),
		},
		&admissionv1.ValidatingWebhookConfiguration{}: {
			Field: fields.OneTermEqualSelector("metadata.name", ConfigurationName),
		},
	}
}

// SetupWithManager registers it.
func (k *Keeper) SetupWithManager(mgr ctrl.Manager) error {
	always := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: k.Namespace, Name: SecretName}}}
	})
	return ctrl.NewControllerManagedBy(mgr).
		Named("webhook-certificate").
		WithOptions(controller.Options{MaxConcurrentReconciles: 1, NeedLeaderElection: new(false)}).
		For(&corev1.Secret{}).
		Watches(&admissionv1.ValidatingWebhookConfiguration{}, always).
		Complete(k)
}

// GetCertificate is for a tls.Config.
func (k *Keeper) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if c := k.current.Load(); c != nil {
		return c, nil
	}
	return nil, errNone
}

// Ready is a health check: an endpoint that cannot serve gets no requests.
func (k *Keeper) Ready(*http.Request) error {
	_, err := k.GetCertificate(nil)
	return err
}

// Reconcile writes the Secret when it has to, then lets the API server trust its authorities, and only then serves with
// its certificate.
func (k *Keeper) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	secret := &corev1.Secret{}
	if err := k.Get(ctx, client.ObjectKey{Namespace: k.Namespace, Name: SecretName}, secret); err != nil {
		return ctrl.Result{}, fmt.Errorf("get Secret %s with the webhook's certificate (helm upgrade creates it again if it is missing): %w", SecretName, err)
	}
	now := k.Clock.Now()
	decided, err := Decide(secret.Data, k.Names, now)
	if err != nil {
		return ctrl.Result{}, err
	}
	if err := k.write(ctx, secret, decided); apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return ctrl.Result{}, nil // another replica was first, and its event is on its way
	} else if err != nil {
		return ctrl.Result{}, err
	}
	if err := k.publish(ctx, decided.Authorities); err != nil {
		return ctrl.Result{}, err
	}
	k.current.Store(decided.Certificate)
	return ctrl.Result{RequeueAfter: decided.Next.Sub(now)}, nil
}

// write changes the Secret that was read, and no later one.
func (k *Keeper) write(ctx context.Context, secret *corev1.Secret, decided Decision) error {
	if maps.EqualFunc(secret.Data, decided.Data, bytes.Equal) {
		return nil
	}
	secret = secret.DeepCopy()
	secret.Data = decided.Data
	if err := k.Update(ctx, secret, client.FieldOwner(v1alpha1.OperatorFieldManager)); err != nil {
		return fmt.Errorf("update Secret %s: %w", SecretName, err)
	}
	log.FromContext(ctx).Info("wrote the webhook's certificate", "reason", decided.Why, "until", decided.Certificate.Leaf.NotAfter)
	return nil
}

// publish gives the authorities to the API server. Without a configuration nobody calls.
func (k *Keeper) publish(ctx context.Context, authorities []byte) error {
	configuration := &admissionv1.ValidatingWebhookConfiguration{}
	if err := k.Get(ctx, client.ObjectKey{Name: ConfigurationName}, configuration); apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("get ValidatingWebhookConfiguration %s: %w", ConfigurationName, err)
	}
	differs := false
	apply := admissionapply.ValidatingWebhookConfiguration(ConfigurationName)
	for _, w := range configuration.Webhooks {
		differs = differs || !bytes.Equal(w.ClientConfig.CABundle, authorities)
		apply.WithWebhooks(admissionapply.ValidatingWebhook().WithName(w.Name).
			WithClientConfig(admissionapply.WebhookClientConfig().WithCABundle(authorities...)))
	}
	if !differs {
		return nil
	}
	if err := k.Apply(ctx, apply, client.FieldOwner(v1alpha1.OperatorFieldManager), client.ForceOwnership); err != nil {
		return fmt.Errorf("apply the authorities to ValidatingWebhookConfiguration %s: %w", ConfigurationName, err)
	}
	log.FromContext(ctx).Info("the API server trusts the webhook's certificate now", "configuration", ConfigurationName)
	return nil
}
