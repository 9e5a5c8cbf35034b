// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"text/template"
	"time"
)

// pluginArchive is kubectl-weft for one platform.
type pluginArchive struct{ OS, Arch, File, SHA256 string }

// program is where make put it.
func (p pluginArchive) program(programs string) string {
	folder := p.Arch
	if p.OS != "linux" {
		folder = p.OS + "-" + p.Arch
	}
	return filepath.Join(programs, folder, "kubectl-weft")
}

func pluginPlatforms() []pluginArchive {
	return []pluginArchive{{OS: "darwin", Arch: "amd64"}, {OS: "darwin", Arch: "arm64"}, {OS: "linux", Arch: "amd64"}, {OS: "linux", Arch: "arm64"}}
}

// completionScript is what kubectl runs to complete arguments of kubectl weft.
const completionScript = "kubectl_complete-weft"

// packPlugin writes kubectl-weft, its script for completion and the licence for each platform to dir.
func packPlugin(repo, programs, dir string, at time.Time) ([]pluginArchive, error) {
	platforms := pluginPlatforms()
	for i, p := range platforms {
		data, err := tarGzip(at, []packed{
			{"LICENSE", filepath.Join(repo, "LICENSE"), 0o644},
			{"kubectl-weft", p.program(programs), 0o755},
			{completionScript, filepath.Join(repo, "operator/cmd/kubectl-weft", completionScript), 0o755},
		})
		if err != nil {
			return nil, fmt.Errorf("pack kubectl-weft for %s/%s: %w; make release builds it", p.OS, p.Arch, err)
		}
		sum := sha256.Sum256(data)
		platforms[i].File, platforms[i].SHA256 = "kubectl-weft-"+p.OS+"-"+p.Arch+".tar.gz", hex.EncodeToString(sum[:])
		if err := os.WriteFile(filepath.Join(dir, platforms[i].File), data, 0o644); err != nil {
			return nil, err
		}
	}
	return platforms, nil
}

// packed is a file of an archive.
type packed struct {
	name, from string
	mode       int64
}

// tarGzip packs files in their order, all of the same time.
func tarGzip(at time.Time, files []packed) ([]byte, error) {
	var out bytes.Buffer
	zipped := gzip.NewWriter(&out)
	w := tar.NewWriter(zipped)
	for _, f := range files {
		data, err := os.ReadFile(f.from)
		if err != nil {
			return nil, err
		}
		if err := w.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(data)), ModTime: at, Typeflag: tar.TypeReg}); err != nil {
			return nil, err
		}
		if _, err := w.Write(data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	if err := zipped.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

//go:embed krew.yaml.tmpl
var krewTemplate string

// krewManifest says where krew, kubectl's plugin manager, finds the archives.
func krewManifest(version string, archives []pluginArchive) ([]byte, error) {
	parsed, err := template.New("krew.yaml").Option("missingkey=error").Parse(krewTemplate)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = parsed.Execute(&out, map[string]any{"Version": version, "Archives": archives})
	return out.Bytes(), err
}
