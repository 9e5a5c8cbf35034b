// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import "k8s.io/apimachinery/pkg/util/version"

// MaxVersionSkew is how many minor versions a node's component may be apart from the operator and the CSI controller,
// in either direction: behind them during an upgrade, ahead of them during a rollback.
const MaxVersionSkew = 1

// VersionVerdict says whether two versions work together.
type VersionVerdict int

// Verdicts on two versions.
const (
	// VersionsIncomparable: one of them is no version, as that of a development build.
	VersionsIncomparable VersionVerdict = iota
	// VersionsSupported: they work together.
	VersionsSupported
	// VersionsUnsupported: they are further apart than what is tested.
	VersionsUnsupported
)

// CompareVersions says whether two versions of weft, such as 1.2.3, work together; docs/reference/compatibility.md says
// it to users. Versions of different major versions do not.
func CompareVersions(a, b string) VersionVerdict {
	x, errX := version.ParseSemantic(a)
	y, errY := version.ParseSemantic(b)
	switch {
	case errX != nil || errY != nil:
		return VersionsIncomparable
	case x.Major() == y.Major() && max(x.Minor(), y.Minor())-min(x.Minor(), y.Minor()) <= MaxVersionSkew:
		return VersionsSupported
	default:
		return VersionsUnsupported
	}
}
