// SPDX-License-Identifier: Apache-2.0

package sizing

import (
	"cmp"

	"github.com/weft-storage/weft/api/v1alpha1"
)

const (
	// lvstorePages of metadata that an lvstore has at least, of 4 KiB each, in whole percent of its clusters: what
	// the SPDK engine makes. Its bit masks fit into two clusters more.
	lvstorePages     = 16384
	lvstorePageBytes = 4096
	// minXFSLogBytes and maxXFSLogBytes of the log of an XFS, which is one part in xfsLogShare of its device: what
	// mkfs.xfs 6.13 makes (64 MiB of 20 GiB, 512 MiB of 1 TiB).
	minXFSLogBytes, maxXFSLogBytes, xfsLogShare = 64 << 20, 2 << 30, 2048
)

// PoolBytes is the size of the pool that an engine makes on a device of this size, in bytes: what its metadata leaves.
// It is an estimate, at most a few clusters off; the agent reports the real size once there is a pool.
func PoolBytes(plan *v1alpha1.Plan, deviceBytes int64) int64 {
	if plan.Engine == v1alpha1.EngineNvmet {
		return v1alpha1.FillableXFS(deviceBytes - min(max(deviceBytes/xfsLogShare, minXFSLogBytes), maxXFSLogBytes))
	}
	cluster := cmp.Or(plan.ClusterBytes, v1alpha1.DefaultClusterSize)
	clusters := deviceBytes / cluster
	if clusters < 1 {
		return 0
	}
	percent := min(max(100, 100*cluster/v1alpha1.DefaultClusterSize), ceilDiv(100*lvstorePages, clusters))
	metadata := ceilDiv(clusters*percent/100*lvstorePageBytes, cluster) + 2
	return max(0, clusters-metadata) * cluster
}
