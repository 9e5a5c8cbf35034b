// SPDX-License-Identifier: Apache-2.0

package webhook

import "github.com/prometheus/client_golang/prometheus"

var certificateExpiry = prometheus.NewDesc("weft_webhook_certificate_expiration_timestamp_seconds",
	"When the certificate that this replica's webhook serves with expires, in seconds since 1970.", []string{}, nil)

// Describe implements prometheus.Collector.
func (*Keeper) Describe(descs chan<- *prometheus.Desc) { descs <- certificateExpiry }

// Collect implements prometheus.Collector. A replica that has no certificate yet gives no value.
func (k *Keeper) Collect(out chan<- prometheus.Metric) {
	if c := k.current.Load(); c != nil {
		out <- prometheus.MustNewConstMetric(certificateExpiry, prometheus.GaugeValue, float64(c.Leaf.NotAfter.Unix()))
	}
}
