// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"sigs.k8s.io/yaml"

	"github.com/weft-storage/weft/hack/release/image"
)

// Media types of charts in a registry: helm.sh/docs/topics/registries.
const (
	chartConfigType  = "application/vnd.cncf.helm.config.v1+json"
	chartContentType = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
)

// chartArtifact is a packed chart as Helm finds it in a registry.
func chartArtifact(repo, archive, version string, at time.Time, annotations map[string]string) (v1.Image, error) {
	data, err := os.ReadFile(filepath.Join(repo, "charts", "weft", "Chart.yaml"))
	if err != nil {
		return nil, err
	}
	var metadata map[string]any
	if err := yaml.Unmarshal(data, &metadata); err != nil {
		return nil, fmt.Errorf("parse Chart.yaml: %w", err)
	}
	metadata["version"], metadata["appVersion"] = version, version
	config, err := json.Marshal(metadata)
	if err != nil {
		return nil, err
	}
	content, err := os.ReadFile(archive)
	if err != nil {
		return nil, err
	}
	annotations["org.opencontainers.image.title"] = "weft"
	annotations["org.opencontainers.image.description"] = fmt.Sprint(metadata["description"])
	annotations["org.opencontainers.image.created"] = at.UTC().Format(time.RFC3339)
	return image.Artifact{
		Config: config, ConfigType: chartConfigType, Content: content, ContentType: chartContentType, Annotations: annotations,
	}.Image()
}
