// SPDX-License-Identifier: Apache-2.0

//go:build !lab

package agent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/api/v1alpha1"
)

func TestInventoryWatch(t *testing.T) {
	g := NewWithT(t)
	folder := t.TempDir()
	source := &discovered{found: testInventory()}
	w := NewInventoryWatch(source, folder)
	g.Expect(w.Current()).To(BeNil())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- w.Start(ctx) }()
	g.Eventually(w.changed, patience).Should(Receive())
	g.Expect(w.Current().Drives).To(HaveLen(2))

	more := testInventory()
	more.Drives = append([]v1alpha1.Drive{{ID: "c", Name: "nvme2n1"}}, more.Drives...)
	source.set(more, nil)
	g.Expect(os.WriteFile(filepath.Join(folder, "nvme2n1"), nil, 0o600)).To(Succeed())
	g.Eventually(w.changed, patience).Should(Receive())
	g.Expect(w.Current().Drives).To(HaveExactElements(HaveField("ID", "a"), HaveField("ID", "b"), HaveField("ID", "c")))

	cancel()
	g.Eventually(ended, patience).Should(Receive(BeNil()))
}

func TestInventoryThatCannotBeTakenStays(t *testing.T) {
	g := NewWithT(t)
	source := &discovered{found: testInventory()}
	w := NewInventoryWatch(source, t.TempDir())
	w.take(t.Context())
	g.Expect(w.changed).To(Receive())

	source.set(nil, errors.New("input/output error"))
	w.take(t.Context())
	g.Expect(w.Current().Drives).To(HaveLen(2))
	g.Expect(w.changed).NotTo(Receive())

	source.set(testInventory(), nil)
	w.take(t.Context())
	g.Expect(w.changed).NotTo(Receive(), "nothing changed")
}

func TestInventoryNeedsItsFolder(t *testing.T) {
	g := NewWithT(t)
	w := NewInventoryWatch(&discovered{found: testInventory()}, filepath.Join(t.TempDir(), "missing"))
	g.Expect(w.Start(t.Context())).To(MatchError(os.ErrNotExist))
}
