// SPDX-License-Identifier: Apache-2.0

// Package versions says which versions of weft's components work together; docs/reference/compatibility.md says it to
// users.
package versions

import (
	"k8s.io/apimachinery/pkg/util/version"
)

// MaxSkew is how many minor versions a node's component may be apart from the operator and the CSI controller, in
// either direction: behind them during an upgrade, ahead of them during a rollback.
const MaxSkew = 1

// Verdict on two versions.
type Verdict int

// Verdicts.
const (
	// Incomparable: one of them is no version, as that of a development build.
	Incomparable Verdict = iota
	// Supported: they work together.
	Supported
	// Unsupported: they are further apart than what is tested.
	Unsupported
)

// Compare says whether two versions of weft, such as 1.2.3, work together. Versions of different major versions do not.
func Compare(a, b string) Verdict {
	x, errX := version.ParseSemantic(a)
	y, errY := version.ParseSemantic(b)
	switch {
	case errX != nil || errY != nil:
		return Incomparable
	case x.Major() == y.Major() && max(x.Minor(), y.Minor())-min(x.Minor(), y.Minor()) <= MaxSkew:
		return Supported
	default:
		return Unsupported
	}
}
