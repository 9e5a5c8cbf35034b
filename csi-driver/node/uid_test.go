// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/weft-storage/weft/csi-driver/node"
)

func TestUIDIsTriedUntilAnswered(t *testing.T) {
	failures := 1
	reader := fake.NewClientBuilder().
		WithObjects(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: uid}}).
		WithInterceptorFuncs(interceptor.Funcs{Get: func(
			ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption,
		) error {
			if failures > 0 {
				failures--
				return errors.New("connection refused")
			}
			return c.Get(ctx, key, obj, opts...)
		}}).Build()
	got, err := node.UID(t.Context(), reader, "n1")
	if err != nil || got != uid {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestUIDEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	reader := fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{Get: func(
		ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption,
	) error {
		cancel()
		return c.Get(ctx, key, obj, opts...)
	}}).Build()
	_, err := node.UID(ctx, reader, "absent")
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "not found") {
		t.Errorf("got %v", err)
	}
}
