// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

const (
	// SkewInterval is between looks at the installed version: an upgrade reaches a node within minutes, and a thousand
	// nodes ask less than twice a second.
	SkewInterval = 10 * time.Minute
	// SkewFieldManager is the field manager of the condition, which is not that of the Node's other condition.
	SkewFieldManager = "weft-csi-node-version"
	// skewTimeout bounds one look.
	skewTimeout = 10 * time.Second
)

// SkewReporter tells the API whether the version of this machine's node plugin works with the one that is installed, in
// the Node's condition v1alpha1.ConditionNodeVersionSkew. What is installed, the CSIDriver says by its label: the chart
// writes it together with the operator and the CSI controller.
type SkewReporter struct {
	// Client reads the CSIDriver.
	Client client.Reader
	// Version of the node plugin.
	Version string
	// Writer of the condition.
	Writer *ConditionWriter
	// Clock for the looks.
	Clock clock.WithTicker
}

// Run looks at once and then at each SkewInterval until the context ends. A look that fails leaves the condition as it
// is.
func (r *SkewReporter) Run(ctx context.Context) error {
	log := logr.FromContextOrDiscard(ctx).WithName("skew")
	ticker := r.Clock.NewTicker(SkewInterval)
	defer ticker.Stop()
	for {
		if err := r.Look(ctx); err != nil && ctx.Err() == nil {
			log.Error(err, "Cannot report whether this node plugin's version works with the installed one; trying again")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
	}
}

// Look once, and write what is found.
func (r *SkewReporter) Look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, skewTimeout)
	defer cancel()
	var driver storagev1.CSIDriver
	if err := r.Client.Get(ctx, client.ObjectKey{Name: v1alpha1.DriverName}, &driver); err != nil {
		return fmt.Errorf("read CSIDriver %s: %w", v1alpha1.DriverName, err)
	}
	installed := driver.Labels[v1alpha1.VersionLabel]
	if installed == "" {
		return r.Writer.Write(ctx, corev1.ConditionUnknown, v1alpha1.ReasonPending,
			fmt.Sprintf("CSIDriver %s has no label %s, so the installed version is unknown", v1alpha1.DriverName, v1alpha1.VersionLabel))
	}
	switch v1alpha1.CompareVersions(installed, r.Version) {
	case v1alpha1.VersionsUnsupported:
		return r.Writer.Write(ctx, corev1.ConditionTrue, v1alpha1.ReasonVersionSkew, fmt.Sprintf("the node plugin has version %s and weft %s is installed, "+
			"which are not supported together; upgrade one minor version at a time, and check that the weft-csi-node pod of the node is replaced", r.Version, installed))
	case v1alpha1.VersionsSupported:
		return r.Writer.Write(ctx, corev1.ConditionFalse, v1alpha1.ReasonAsExpected,
			fmt.Sprintf("the node plugin's version %s works with the installed one, %s", r.Version, installed))
	default:
		return r.Writer.Write(ctx, corev1.ConditionFalse, v1alpha1.ReasonAsExpected,
			fmt.Sprintf("the versions were not compared: node plugin %s, installed %q", r.Version, installed))
	}
}
