// SPDX-License-Identifier: Apache-2.0

// Package chart packs weft's chart. A release and the lab do it with this.
package chart

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Pack packs the chart of a checkout with a version into dir, with all files of the same time, and returns the
// archive's path.
func Pack(ctx context.Context, helm, repo, version, dir string, at time.Time) (archive string, err error) {
	tmp, err := os.MkdirTemp("", "weft-chart-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp) //nolint:errcheck // what is left in a temporary folder does no harm
	chart := filepath.Join(tmp, "weft")
	if err := os.CopyFS(chart, os.DirFS(filepath.Join(repo, "charts", "weft"))); err != nil {
		return "", fmt.Errorf("copy the chart: %w", err)
	}
	err = filepath.WalkDir(chart, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Chtimes(path, at, at) //nolint:gosec // the folder was made above, for nobody else
	})
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, helm, "package", chart, "--version", version, "--app-version", version, "--destination", dir)
	if words, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("helm package: %w: %s", err, strings.TrimSpace(string(words)))
	}
	return filepath.Join(dir, "weft-"+version+".tgz"), nil
}
