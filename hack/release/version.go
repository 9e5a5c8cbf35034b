// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// commit is what git says of the checkout.
type commit struct {
	id   string
	time time.Time
	tags []string
}

// headOf reads the commit that is checked out in repo.
func headOf(ctx context.Context, repo string) (commit, error) {
	git := func(args ...string) (string, error) {
		cmd := exec.CommandContext(ctx, "git", append([]string{"-C", repo}, args...)...)
		out, err := cmd.Output()
		if err != nil {
			return "", fmt.Errorf("git %s: %w; run this in a checkout", strings.Join(args, " "), err)
		}
		return strings.TrimSpace(string(out)), nil
	}
	var head commit
	var err error
	if head.id, err = git("rev-parse", "HEAD"); err != nil {
		return head, err
	}
	seconds, err := git("log", "-1", "--format=%ct")
	if err != nil {
		return head, err
	}
	at, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return head, fmt.Errorf("time of the commit: %w", err)
	}
	head.time = time.Unix(at, 0).UTC()
	tags, err := git("tag", "--points-at", "HEAD")
	head.tags = strings.Fields(tags)
	return head, err
}

// releaseTime is the time of everything in a release: SOURCE_DATE_EPOCH, or else that of the commit.
func (c commit) releaseTime() (time.Time, error) {
	epoch := os.Getenv("SOURCE_DATE_EPOCH")
	if epoch == "" {
		return c.time, nil
	}
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH: %w; want seconds since 1970", err)
	}
	return time.Unix(seconds, 0).UTC(), nil
}

// version of a release from this commit: that of its tag, such as v1.2.3, or else of a development build. A tag has to
// be the chart's version, which is what the chart names its image by.
func (c commit) version(chart string) (string, error) {
	var tags []string
	for _, tag := range c.tags {
		if strings.HasPrefix(tag, "v") {
			tags = append(tags, tag)
		}
	}
	switch {
	case len(tags) == 0:
		return chart + "-dev.g" + c.id[:min(8, len(c.id))], nil
	case slices.Contains(tags, "v"+chart) && len(tags) == 1:
		return chart, nil
	default:
		return "", fmt.Errorf("the commit's tags are %s, and charts/weft/Chart.yaml has version %s; a release has one tag, v%s",
			strings.Join(tags, " "), chart, chart)
	}
}

// chartVersions are the versions that the chart has in the checkout.
type chartVersions struct {
	// weft is the version of the chart and of the image weft, target that of the image weft-target.
	weft, target string
}

func versionsOf(repo string) (chartVersions, error) {
	var chart struct {
		Version    string `json:"version"`
		AppVersion string `json:"appVersion"`
	}
	var values struct {
		Target struct {
			Image struct {
				Tag string `json:"tag"`
			} `json:"image"`
		} `json:"target"`
	}
	for name, into := range map[string]any{"Chart.yaml": &chart, "values.yaml": &values} {
		data, err := os.ReadFile(filepath.Join(repo, "charts", "weft", name))
		if err != nil {
			return chartVersions{}, err
		}
		if err := yaml.Unmarshal(data, into); err != nil {
			return chartVersions{}, fmt.Errorf("charts/weft/%s: %w", name, err)
		}
	}
	out := chartVersions{weft: chart.Version, target: values.Target.Image.Tag}
	if out.weft == "" || out.weft != chart.AppVersion || out.target == "" {
		return out, fmt.Errorf("charts/weft has version %q, appVersion %q and target.image.tag %q; the first two must be the same, and none empty",
			chart.Version, chart.AppVersion, values.Target.Image.Tag)
	}
	return out, nil
}
