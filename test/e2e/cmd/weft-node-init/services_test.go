// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"

	"github.com/weft-storage/weft/test/e2e/internal/nodeconfig"
)

func TestServicesAreStoppedAndStarted(t *testing.T) {
	dir := folders{logs: t.TempDir(), state: t.TempDir()}
	services := []nodeconfig.Service{{Name: "test-sleep", Args: []string{"sleep", "1000"}}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- supervise(ctx, dir, services, slog.New(slog.NewTextHandler(io.Discard, nil))) }()
	defer func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}()
	do := func(want string, args ...string) {
		t.Helper()
		var out strings.Builder
		if err := control(ctx, &out, dir, services, args...); err != nil || strings.TrimSpace(out.String()) != want {
			t.Errorf("systemctl %v: %v, %q instead of %q", args, err, out.String(), want)
		}
	}
	active := []string{"show", "test-sleep", "--property", "ActiveState", "--value"}
	do("", "start", "test-sleep")
	do("active", active...)
	do("", "stop", "test-sleep.service")
	do("inactive", active...)
	do("", "start", "test-sleep")
	do("active", active...)
	do("", "restart", "test-sleep")
	do("active", active...)
	for _, args := range [][]string{{"stop"}, {"stop", "other"}, {"mask", "test-sleep"}} {
		if err := control(ctx, io.Discard, dir, services, args...); err == nil {
			t.Errorf("systemctl %v succeeded", args)
		}
	}
}
