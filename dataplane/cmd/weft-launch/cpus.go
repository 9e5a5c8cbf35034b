// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
	"k8s.io/utils/cpuset"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/internal/cpus"
)

// affinity asks the kernel where this process may run.
func affinity() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("sched_getaffinity: %w", err)
	}
	var allowed []int
	for cpu := range len(set) * 64 {
		if set.IsSet(cpu) {
			allowed = append(allowed, cpu)
		}
	}
	return allowed, nil
}

// grantedCPUs are the planned CPUs that the container may use: the kubelet's static
// CPU manager hands out whole CPUs, and not always those that were planned.
func grantedCPUs(m Machine, coreMask string) (cpuset.CPUSet, error) {
	planned, err := cpus.ParseMask(coreMask)
	if err != nil {
		return planned, err
	}
	allowed, err := m.Affinity()
	if err != nil {
		return planned, err
	}
	granted := cpuset.New(allowed...)
	inGroup, err := groupCPUs(m)
	if err != nil {
		return planned, err
	}
	if !inGroup.IsEmpty() {
		granted = granted.Intersection(inGroup)
	}
	used := planned.Intersection(granted)
	if used.IsEmpty() {
		return used, refuse(v1alpha1.ReasonCPUsNotGranted,
			"the planned CPUs are %s, but this container has CPUs %s; remove the planned CPUs from the kubelet's reservedSystemCPUs, or choose available CPUs with cores.mask",
			planned, granted)
	}
	if used.Size() < planned.Size() {
		m.Log.Info("fewer CPUs than planned: not all of them are available to this container", "planned", planned.String(), "granted", granted.String(), "used", used.String())
	}
	return used, nil
}

// groupCPUs are those of the container's cgroup; none when it does not say.
func groupCPUs(m Machine) (cpuset.CPUSet, error) {
	group, err := ownGroup(m)
	if err != nil {
		return cpuset.New(), err
	}
	// Where the controller is not enabled for a group, its nearest ancestor's answer holds.
	for _, dir := range group {
		text, err := m.read(dir, "cpuset.cpus.effective")
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return cpuset.New(), err
		}
		effective, err := cpuset.Parse(text)
		if err != nil {
			return effective, fmt.Errorf("%s: %w", m.path(dir, "cpuset.cpus.effective"), err)
		}
		return effective, nil
	}
	return cpuset.New(), nil
}
