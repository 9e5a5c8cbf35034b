// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

const site = "https://github.com/weft-storage/weft/"

var (
	// linkToSite is a link to a file or folder of this repository on its site, for readers who have no checkout.
	linkToSite = regexp.MustCompile(regexp.QuoteMeta(site) + `(?:blob|tree)/main/([A-Za-z0-9_./-]+[A-Za-z0-9_/-])(?:#([a-z0-9_-]+))?`)
	// pageOfMessage is a page that a message of weft names.
	pageOfMessage = regexp.MustCompile(`\b(docs/[a-z0-9/-]+\.md)(?:#([a-z0-9_-]+))?`)
)

// leads reports whether there is such a path, with such a heading.
func leads(t *testing.T, from, path, heading string) {
	t.Helper()
	switch _, err := os.Stat(path); {
	case err != nil:
		t.Errorf("%s: %s leads nowhere", from, path)
	case heading != "" && !slices.Contains(anchors(read(t, path)), heading):
		t.Errorf("%s: %s has no heading %s", from, path, heading)
	}
}

// documents are all texts in Markdown that people read, for users and for contributors.
func documents(t *testing.T) []string {
	t.Helper()
	return append(pages(t), glob(t, "../../*.md", "../../.github/*.md", "../../docs/design/*.md", "../../api/testdata/releases/*.md",
		"../../charts/weft/README.md", "../../test/*.md", "../../test/e2e/*.md", "../../test/e2e/*/*.md")...)
}

func TestLinksLeadSomewhere(t *testing.T) {
	for _, document := range documents(t) {
		for _, m := range link.FindAllStringSubmatch(read(t, document), -1) {
			path := document
			if m[1] != "" {
				path = filepath.Join(filepath.Dir(document), m[1])
			}
			leads(t, document, path, m[2])
		}
	}
}

func TestLinksToTheSiteLeadSomewhere(t *testing.T) {
	found := 0
	for _, file := range append(documents(t), glob(t, "../../.github/ISSUE_TEMPLATE/*.yml", "../../charts/weft/*.yaml", "../../charts/weft/templates/NOTES.txt",
		"../../charts/weft/files/*/*")...) {
		for _, m := range linkToSite.FindAllStringSubmatch(read(t, file), -1) {
			found++
			leads(t, file, filepath.Join("../..", m[1]), m[2])
		}
	}
	if found == 0 {
		t.Error("no file links to the site")
	}
}

func TestMessagesNamePagesThatExist(t *testing.T) {
	named := pageOfMessage.FindAllStringSubmatch(literals(t), -1)
	if len(named) == 0 {
		t.Error("no message names a page")
	}
	for _, m := range named {
		leads(t, "a message of weft", filepath.Join("../..", m[1]), m[2])
	}
}
