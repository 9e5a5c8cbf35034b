// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// anySecret is what all keys of hosts, all private keys of nodes, and all passphrases of the specs have.
var anySecret = regexp.MustCompile(`DHHC-1:0[0-3]:|AGE-SECRET-KEY-1|planted-passphrase`)

// filesWith are those below dir whose content a function accepts, relative to it, and how many files there are.
func filesWith(dir string, accept func(content []byte) bool) (found []string, files int, err error) {
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		files++
		content, err := os.ReadFile(path)
		if err == nil && accept(content) {
			path, err = filepath.Rel(dir, path)
			found = append(found, path)
		}
		return err
	})
	return found, files, err
}

func TestSecretsAreFound(t *testing.T) {
	for name, content := range map[string]string{
		"a key of a host": "line\nconnect: DHHC-1:00:3tL0:", "a private key": "AGE-SECRET-KEY-1Q", "a passphrase": "\x00" + firstPassphrase, "another": secondPassphrase,
	} {
		dir := t.TempDir()
		below := filepath.Join(dir, "node1", "var", "log")
		err := errors.Join(os.MkdirAll(below, 0o755), os.WriteFile(filepath.Join(dir, "other"), []byte("DHHC-1:04: age1public planted"), 0o600),
			os.WriteFile(filepath.Join(below, "0.log"), []byte(content), 0o600))
		if err != nil {
			t.Fatal(err)
		}
		found, files, err := filesWith(dir, anySecret.Match)
		if err != nil || files != 2 || !slices.Equal(found, []string{"node1/var/log/0.log"}) {
			t.Errorf("%s: found in %v of %d files: %v", name, found, files, err)
		}
	}
}

// filesOfAll that every component says: logs, objects with their descriptions, Events. It answers those that a function
// accepts. What is looked for in vain would be found: names that have to be there are.
func filesOfAll(ctx context.Context, accept func(content []byte) bool) []string {
	GinkgoHelper()
	dir, err := os.MkdirTemp("", "weft-secrets-")
	Expect(err).NotTo(HaveOccurred())
	defer func() { _ = os.RemoveAll(dir) }()
	Expect(machines.CollectLogs(ctx, dir)).To(Succeed())
	named, files, err := filesWith(dir, func(content []byte) bool { return bytes.Contains(content, []byte("weft")) })
	Expect(err).NotTo(HaveOccurred())
	Expect(files).To(BeNumerically(">", 10))
	for _, file := range []string{"events.txt", "objects.yaml", "weft.yaml", "describe-more.txt", "describe-weft.txt"} {
		Expect(named).To(ContainElement(file))
	}
	for _, node := range nodes {
		Expect(named).To(ContainElement(HavePrefix(node+"/var/log/pods/")), "logs of weft's pods")
	}
	found, _, err := filesWith(dir, accept)
	Expect(err).NotTo(HaveOccurred())
	return found
}

// nowhere is a text found in logs, objects and Events.
func nowhere(ctx context.Context, texts ...string) {
	GinkgoHelper()
	Expect(filesOfAll(ctx, func(content []byte) bool {
		return slices.ContainsFunc(texts, func(text string) bool { return bytes.Contains(content, []byte(text)) })
	})).To(BeEmpty(), "files with a key")
}

// noSecrets in anything that all specs produced.
func noSecrets(ctx context.Context) {
	GinkgoHelper()
	Expect(filesOfAll(ctx, anySecret.Match)).To(BeEmpty(), "files with a key")
}
