// SPDX-License-Identifier: Apache-2.0

package nodeinit

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/weft-storage/weft/test/e2e/internal/nodeconfig"
)

const (
	// restartDelay is the pause before a service that ended is started again.
	restartDelay = time.Second
	// waitForPeriod is how often a service looks for what it waits for.
	waitForPeriod = 100 * time.Millisecond
)

// supervise keeps the services running until ctx ends.
func supervise(ctx context.Context, services []nodeconfig.Service, log *slog.Logger) error {
	var wg sync.WaitGroup
	for _, s := range services {
		wg.Go(func() {
			for ctx.Err() == nil {
				if !waitForPath(ctx, s.WaitFor) {
					return
				}
				err := runService(ctx, s)
				log.Error("service ended; starting it again", "service", s.Name, "error", err)
				pause(ctx, restartDelay)
			}
		})
	}
	wg.Wait()
	<-ctx.Done()
	return ctx.Err()
}

func runService(ctx context.Context, s nodeconfig.Service) error {
	logFile, err := os.OpenFile(filepath.Join(nodeconfig.LogDir, s.Name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer logFile.Close() //nolint:errcheck // the service wrote it, not we
	cmd := exec.CommandContext(ctx, s.Args[0], s.Args[1:]...)
	cmd.Stdout = logFile
	cmd.Stderr = logFile
	return cmd.Run()
}

// waitForPath waits until path exists. An empty path exists always. It reports
// false when ctx ends first.
func waitForPath(ctx context.Context, path string) bool {
	for path != "" {
		if _, err := os.Stat(path); err == nil {
			break
		}
		if !pause(ctx, waitForPeriod) {
			return false
		}
	}
	return true
}

func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
