// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// scrapedComponents have metrics.
var scrapedComponents = []string{componentOperator, componentController, componentAgent, componentNodePlugin}

// scraped pods have metrics.
func scraped(pods []corev1.Pod) []corev1.Pod {
	return slices.DeleteFunc(slices.Clone(pods), func(p corev1.Pod) bool { return !slices.Contains(scrapedComponents, p.Labels[v1alpha1.ComponentLabel]) })
}

// collectMetrics of all pods that have some, as they serve them.
func (r *reporter) collectMetrics(ctx context.Context, b *bundle, pods []corev1.Pod) {
	b.collect(ctx, scraped(pods), func(pod *corev1.Pod) string { return "metrics/" + pod.Name + ".txt" }, r.metrics)
}

// text of a pod's metrics, as it serves them, and when it answered.
func (a *asker) text(ctx context.Context, pod *corev1.Pod) (string, error) {
	e, err := endpointOf(pod)
	if err != nil {
		return "", err
	}
	if e.secure {
		if err := a.renewToken(ctx); err != nil {
			return "", err
		}
	}
	var text []byte
	at, err := a.get(ctx, e, func(body io.Reader) (err error) {
		text, err = io.ReadAll(io.LimitReader(body, maxMetricsBytes))
		return err
	})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("# %s at %s\n%s", pod.Name, at.UTC().Format(time.RFC3339), text), nil
}

// collect a text of each pod, of several at the same time. All together may take a quarter of the bundle.
func (b *bundle) collect(ctx context.Context, pods []corev1.Pod, name func(*corev1.Pod) string, text func(context.Context, *corev1.Pod) (string, error)) {
	var mu sync.Mutex
	var asking errgroup.Group
	asking.SetLimit(askedAtOnce)
	left := b.most / objectsShare
	for i := range pods {
		asking.Go(func() error {
			got, err := text(ctx, &pods[i])
			mu.Lock()
			defer mu.Unlock()
			defer b.step()
			switch {
			case err != nil:
				b.fail(name(&pods[i]), err)
			case int64(len(got)) > left:
				b.fail(name(&pods[i]), errors.New("left out: those of all pods would take more than a quarter of --max-size"))
			default:
				left -= int64(len(got))
				b.add(name(&pods[i]), got)
			}
			return nil
		})
	}
	_ = asking.Wait() // every failure is in the bundle
}
