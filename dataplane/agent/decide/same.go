// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"reflect"

	"k8s.io/apimachinery/pkg/api/equality"
)

// Same as the API server sees it: equal quantities and times may be written differently. Nearly all that is compared
// is the same in every bit, which is found out in half the time.
func Same[T any](a, b T) bool {
	return reflect.DeepEqual(a, b) || equality.Semantic.DeepEqual(a, b)
}
