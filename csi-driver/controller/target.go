// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/controller/internal/parameters"
)

// target that new volumes may be made on. One that does not exist is refused with those that do.
func (s *Service) target(ctx context.Context, name string) (*v1alpha1.NvmfTarget, error) {
	var target v1alpha1.NvmfTarget
	err := s.client.Get(ctx, keyOf(name), &target)
	if apierrors.IsNotFound(err) {
		return s.unknownTarget(ctx, name)
	}
	if err != nil {
		return nil, fmt.Errorf("read NvmfTarget %s: %w", name, err)
	}
	return usable(&target)
}

// unknownTarget asks the API server, since the cache may not show a target made a moment ago.
func (s *Service) unknownTarget(ctx context.Context, name string) (*v1alpha1.NvmfTarget, error) {
	var targets v1alpha1.NvmfTargetList
	if err := s.live.List(ctx, &targets); err != nil {
		return nil, fmt.Errorf("list NvmfTargets: %w", err)
	}
	names := make([]string, len(targets.Items))
	for i := range targets.Items {
		if targets.Items[i].Name == name {
			return usable(&targets.Items[i])
		}
		names[i] = targets.Items[i].Name
	}
	if len(names) == 0 {
		return nil, failf(invalid, "StorageClass parameters: target: NvmfTarget %q not found; create it first", name)
	}
	slices.Sort(names)
	return nil, failf(invalid, "StorageClass parameters: target: NvmfTarget %q not found; existing targets: %s", name, strings.Join(names, ", "))
}

func usable(target *v1alpha1.NvmfTarget) (*v1alpha1.NvmfTarget, error) {
	if target.DeletionTimestamp != nil {
		return nil, failf(inUse, "NvmfTarget %s is being deleted and accepts no new volumes", target.Name)
	}
	return target, nil
}

// checkDeviceClass refuses a class of drives that the target does not have.
func checkDeviceClass(params parameters.Parameters, target *v1alpha1.NvmfTarget) error {
	var names []string
	for _, c := range target.Spec.Devices.Classes {
		names = append(names, c.Name)
	}
	switch {
	case params.DeviceClass == "" || slices.Contains(names, params.DeviceClass):
		return nil
	case len(names) == 0:
		return failf(invalid, "StorageClass parameters: %s: target %q has no device classes; remove %s, or set devices.classes of the target",
			parameters.DeviceClass, target.Name, parameters.DeviceClass)
	}
	return failf(invalid, "StorageClass parameters: %s: target %q has no device class %q; use %s",
		parameters.DeviceClass, target.Name, params.DeviceClass, strings.Join(names, " or "))
}

// keyOf a cluster-scoped object.
func keyOf(name string) client.ObjectKey { return client.ObjectKey{Name: name} }
