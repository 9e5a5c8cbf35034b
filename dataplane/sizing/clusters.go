// SPDX-License-Identifier: Apache-2.0

package sizing

import (
	"fmt"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// clusterSize of pools that SPDK makes from now on.
func clusterSize(devices v1alpha1.Devices) (int64, *Reason) {
	if devices.ClusterSize == nil {
		return v1alpha1.DefaultClusterSize, nil
	}
	bytes := devices.ClusterSize.Value()
	if bytes < v1alpha1.MinClusterSize || bytes > v1alpha1.MaxClusterSize || bytes&(bytes-1) != 0 {
		return 0, new(reasonf(v1alpha1.ReasonInvalidSetting, "devices.clusterSize is %s; use 1Mi, 2Mi, 4Mi, 8Mi or 16Mi", devices.ClusterSize))
	}
	return bytes, nil
}

// largestCluster of the pools that the node has, may be making, and will make.
func largestCluster(node Node, planned int64) int64 {
	largest := max(planned, node.ClusterBytes)
	if node.Current != nil {
		largest = max(largest, node.Current.ClusterBytes)
	}
	return min(largest, 1<<30) // what an lvstore of another's making may have; beyond that it is a mistake
}

func explainClusters(devices v1alpha1.Devices, l load, planned int64, why *explanation) {
	words := fmt.Sprintf("what new pools allocate, and copy for the first write to it after a snapshot; %s of memory for copies", mib(l.stores*l.pollGroups*l.clusterBytes))
	if l.clusterBytes != planned {
		words += fmt.Sprintf(", as pools that were made before have up to %s", mib(l.clusterBytes))
	}
	if devices.ClusterSize == nil {
		why.byDefault("clusterBytes", fmt.Sprint(planned), words)
		return
	}
	why.given("clusterBytes", fmt.Sprint(planned), words)
}
