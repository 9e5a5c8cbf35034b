// SPDX-License-Identifier: Apache-2.0

package spdkrpc

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
)

// A call counts from its start until its answer was there before it was asked about.
func TestTouched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, target := pair(t, 4)
		want := func(want Touched) {
			t.Helper()
			if got := conn.Touched(); !reflect.DeepEqual(got, want) {
				t.Errorf("touched are %+v, want %+v", got, want)
			}
		}
		want(Touched{Everything: true}) // nothing is known of what was before
		want(Touched{})

		call := Start(t.Context(), conn, NvmfSubsystemRemoveHost{NQN: "a", Host: "h"})
		read := Start(t.Context(), conn, NvmfGetSubsystems{NQN: "a"})
		sent := target.next()
		target.answer(target.next().ID, "[]")
		if err := read.Err(); err != nil {
			t.Error(err)
		}
		a := Touched{Subsystems: map[string]bool{"a": true}}
		want(a)
		want(a)
		target.answer(sent.ID, "true")
		if err := call.Err(); err != nil {
			t.Error(err)
		}
		want(a) // what was read since may be from before it was carried out
		want(Touched{})

		Start(t.Context(), conn, NvmfSubsystemAddNs{NQN: "b", Namespace: Namespace{Bdev: "v"}})
		Start(t.Context(), conn, BdevSetQosLimit{Name: "w"})
		want(Touched{Subsystems: map[string]bool{"b": true}, Bdevs: map[string]bool{"v": true, "w": true}})
	})
}

// TestTouchedByEachRequest: what is not known to change nothing that is listed counts as a change.
func TestTouchedByEachRequest(t *testing.T) {
	// Keys, writes, cores and histograms are not listed.
	unlisted := []string{"keyring_file_add_key", "keyring_file_remove_key", "bdev_nvme_send_cmd", "thread_set_cpumask", "bdev_enable_histogram"}
	for _, r := range requests {
		method := r.method()
		reads := strings.Contains(method, "_get_") || slices.Contains(unlisted, method)
		if touched := touchedBy(r); reads != reflect.DeepEqual(touched, Touched{}) {
			t.Errorf("%s touches %+v", method, touched)
		}
		if named := reflect.ValueOf(r).FieldByName("NQN"); named.IsValid() && !reads && !touchedBy(r).Subsystems[""] {
			t.Errorf("%s does not touch its subsystem", method)
		}
	}
}
