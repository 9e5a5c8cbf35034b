// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"debug/buildinfo"
	"fmt"
	"net/url"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx/v2/common"
	spdx "github.com/spdx/tools-golang/spdx/v2/v2_3"
	"github.com/spdx/tools-golang/spdxlib"
)

// component is a package of a software bill of materials. Its URL is a package URL (purl), which is its identity.
type component struct{ name, version, url, license string }

// bill is the software bill of materials of an image or a program.
type bill struct {
	// subject is what the bill is of, digest its SHA-256.
	subject component
	digest  string
	created time.Time
	parts   []component
}

// document writes the bill as SPDX 2.3. The same bill gives the same bytes.
func (b bill) document() ([]byte, error) {
	root := spdxPackage("SPDXRef-subject", b.subject)
	root.PackageChecksums = []common.Checksum{{Algorithm: common.SHA256, Value: b.digest}}
	doc := &spdx.Document{
		SPDXVersion: spdx.Version, DataLicense: spdx.DataLicense, SPDXIdentifier: "DOCUMENT",
		DocumentName:      b.subject.name + " " + b.subject.version,
		DocumentNamespace: "https://github.com/weft-storage/weft/sbom/" + url.PathEscape(b.subject.name) + "/" + b.digest,
		CreationInfo: &spdx.CreationInfo{
			Created:  b.created.UTC().Format(time.RFC3339),
			Creators: []common.Creator{{CreatorType: "Organization", Creator: "weft"}, {CreatorType: "Tool", Creator: "weft-release"}},
		},
		Packages: []*spdx.Package{root},
		Relationships: []*spdx.Relationship{{
			RefA: common.MakeDocElementID("", "DOCUMENT"), RefB: common.MakeDocElementID("", "subject"),
			Relationship: common.TypeRelationshipDescribe,
		}},
	}
	parts := slices.Clone(b.parts)
	slices.SortFunc(parts, func(x, y component) int { return cmp.Compare(x.url, y.url) })
	for _, part := range slices.CompactFunc(parts, func(x, y component) bool { return x.url == y.url }) {
		id := "SPDXRef-" + unfitForID.ReplaceAllString(part.url, "-")
		doc.Packages = append(doc.Packages, spdxPackage(id, part))
		doc.Relationships = append(doc.Relationships, &spdx.Relationship{
			RefA: common.MakeDocElementID("", "subject"), RefB: common.MakeDocElementID("", strings.TrimPrefix(id, "SPDXRef-")),
			Relationship: common.TypeRelationshipContains,
		})
	}
	if err := spdxlib.ValidateDocument(doc); err != nil {
		return nil, fmt.Errorf("bill of %s: %w", b.subject.name, err)
	}
	var out bytes.Buffer
	if err := spdxjson.Write(doc, &out, spdxjson.Indent("  ")); err != nil {
		return nil, fmt.Errorf("bill of %s: %w", b.subject.name, err)
	}
	return out.Bytes(), nil
}

// unfitForID is what SPDX does not allow in an identifier.
var unfitForID = regexp.MustCompile(`[^A-Za-z0-9.-]+`)

func spdxPackage(id string, c component) *spdx.Package {
	return &spdx.Package{
		PackageName: c.name, PackageVersion: c.version,
		PackageSPDXIdentifier:   common.ElementID(strings.TrimPrefix(id, "SPDXRef-")),
		PackageDownloadLocation: "NOASSERTION", PackageLicenseConcluded: "NOASSERTION",
		PackageLicenseDeclared: cmp.Or(c.license, "NOASSERTION"), PackageCopyrightText: "NOASSERTION",
		PackageExternalReferences: []*spdx.PackageExternalReference{{
			Category: common.CategoryPackageManager, RefType: common.TypePackageManagerPURL, Locator: c.url,
		}},
	}
}

// modules are the Go modules that programs were built from, as the programs themselves say, and Go's standard library.
func modules(programs ...string) ([]component, error) {
	var out []component
	for _, program := range programs {
		info, err := buildinfo.ReadFile(program)
		if err != nil {
			return nil, fmt.Errorf("modules of %s: %w", program, err)
		}
		out = append(out, component{name: "stdlib", version: strings.TrimPrefix(info.GoVersion, "go"), url: "pkg:golang/stdlib@" + strings.TrimPrefix(info.GoVersion, "go")})
		for _, module := range append([]*debug.Module{&info.Main}, info.Deps...) {
			if module.Replace != nil {
				module = module.Replace
			}
			// The main module's version is a pseudo-version of the commit, or (devel).
			out = append(out, component{name: module.Path, version: module.Version, url: "pkg:golang/" + module.Path + "@" + url.PathEscape(module.Version)})
		}
	}
	return out, nil
}
