// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// packagesOf lists the packages of an image's distribution, by what dpkg or apk wrote down in it. An image without
// either has none that is known.
func packagesOf(img v1.Image, arch string) ([]component, error) {
	layers, err := img.Layers()
	if err != nil {
		return nil, err
	}
	found := map[string][]map[string]string{} // package manager: paragraphs
	distribution := map[string]string{}
	for _, layer := range layers {
		if err := scan(layer, found, distribution); err != nil {
			return nil, fmt.Errorf("packages of the image: %w", err)
		}
	}
	distro := distribution["ID"] + "-" + distribution["VERSION_ID"]
	var out []component
	for _, p := range found["deb"] {
		out = append(out, component{name: p["Package"], version: p["Version"],
			url: fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s&distro=%s", p["Package"], url.PathEscape(p["Version"]), p["Architecture"], distro)})
	}
	for _, p := range found["apk"] {
		out = append(out, component{name: p["P"], version: p["V"],
			url: fmt.Sprintf("pkg:apk/alpine/%s@%s?arch=%s&distro=%s", p["P"], url.PathEscape(p["V"]), arch, distro)})
	}
	return out, nil
}

// scan reads a layer. A file of a later layer replaces that of an earlier one.
func scan(layer v1.Layer, found map[string][]map[string]string, distribution map[string]string) error {
	content, err := layer.Uncompressed()
	if err != nil {
		return err
	}
	defer content.Close() //nolint:errcheck // only read
	files := tar.NewReader(content)
	for {
		head, err := files.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if head.Typeflag != tar.TypeReg {
			continue
		}
		switch name := path.Clean(head.Name); {
		case name == "var/lib/dpkg/status":
			found["deb"], err = paragraphs(files, "Package")
		case path.Dir(name) == "var/lib/dpkg/status.d":
			var one []map[string]string
			one, err = paragraphs(files, "Package")
			found["deb"] = append(found["deb"], one...)
		case name == "lib/apk/db/installed", name == "usr/lib/apk/db/installed":
			found["apk"], err = paragraphs(files, "P")
		case name == "usr/lib/os-release", name == "etc/os-release":
			err = osRelease(files, distribution)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", head.Name, err)
		}
	}
}

// paragraphs reads blocks of "Key: value" or "K:value" that empty lines separate. Only those with a key must count.
func paragraphs(from io.Reader, must string) ([]map[string]string, error) {
	var out []map[string]string
	current := map[string]string{}
	end := func() {
		if current[must] != "" {
			out = append(out, current)
		}
		current = map[string]string{}
	}
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		key, value, ok := strings.Cut(lines.Text(), ":")
		switch {
		case lines.Text() == "":
			end()
		case ok && !strings.HasPrefix(key, " "):
			current[key] = strings.TrimSpace(value)
		}
	}
	end()
	return out, lines.Err()
}

func osRelease(from io.Reader, into map[string]string) error {
	lines := bufio.NewScanner(from)
	for lines.Scan() {
		if key, value, ok := strings.Cut(lines.Text(), "="); ok {
			into[key] = strings.Trim(value, `"`)
		}
	}
	return lines.Err()
}
