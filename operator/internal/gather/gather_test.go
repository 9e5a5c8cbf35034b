// SPDX-License-Identifier: Apache-2.0

package gather

import (
	"reflect"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// Inventories are shared with the cache, which nobody may write to; a quantity keeps its text when it is first asked
// for it.
func TestInventoriesHaveNoQuantities(t *testing.T) {
	seen := map[reflect.Type]bool{}
	var look func(reflect.Type)
	look = func(is reflect.Type) {
		if seen[is] {
			return
		}
		seen[is] = true
		switch is.Kind() {
		case reflect.Struct:
			if is == reflect.TypeFor[resource.Quantity]() {
				t.Error("an inventory has a quantity; see own")
				return
			}
			for i := range is.NumField() {
				look(is.Field(i).Type)
			}
		case reflect.Pointer, reflect.Slice, reflect.Map:
			look(is.Elem())
		}
	}
	look(reflect.TypeFor[v1alpha1.Inventory]())
	if !seen[reflect.TypeFor[v1alpha1.Drive]()] {
		t.Error("it does not look at drives")
	}
}
