// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"os"
	"path/filepath"
	"testing"
)

func TestBackUpCopiesWhatEtcdHasAndLetsItGoOn(t *testing.T) {
	l := testLab(t)
	dir := filepath.Join(t.TempDir(), "backup")
	if err := l.BackUp(t.Context(), dir); err == nil {
		t.Error("etcd does not run, and was backed up")
	}
	p := startSleep(t, "echo; while :; do :; done")
	if err := writeJSON(l.pidFile(etcdName), p); err != nil {
		t.Fatal(err)
	}
	wal := filepath.Join("member", "wal", "0.wal")
	if err := writeFileAtomic(l.path("etcd", wal), []byte("entries"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := l.BackUp(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(filepath.Join(dir, wal)); err != nil || string(data) != "entries" {
		t.Errorf("the backup has %q, %v", data, err)
	}
	if frozen, err := p.frozen(); err != nil || frozen {
		t.Errorf("etcd is frozen after the backup: %v, %v", frozen, err)
	}
	if err := l.BackUp(t.Context(), dir); err == nil {
		t.Error("a backup was overwritten")
	}
	if frozen, err := p.frozen(); err != nil || frozen {
		t.Errorf("etcd is frozen after a backup that failed: %v, %v", frozen, err)
	}
}
