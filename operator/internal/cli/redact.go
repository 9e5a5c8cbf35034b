// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// leftOut stands where something was that is, or looks like, a secret.
const leftOut = "(redacted)"

// secretWord is part of the names of things that are secret.
//
//nolint:gosec // G101: it finds credentials, and is none
const secretWord = `(?:pass(?:word|wd|phrase)|token|credential|api[-_]?key|private[-_]?key|access[-_]?key|secret[-_]?key|dhchap|psk)`

var (
	// secretField is a field whose text is secret, whatever it is.
	secretField = regexp.MustCompile(`(?i)^(?:.*` + secretWord + `.*|sealed-?keys|keys|secret|data|string-?data|binary-?data)$`)
	// notSecret is the name of a field that only says where a secret is, or how long it lasts.
	notSecret = regexp.MustCompile(`(?i)(?:name|namespace|ref|file|path|seconds)$`)
	// secretFlag is a flag of a program that takes a secret.
	secretFlag = regexp.MustCompile(`(?i)^--?[a-z0-9-]*(?:` + secretWord + `|secret)$`)
	// secretTexts are secret wherever they are, and what stands for them.
	secretTexts = []struct {
		is   *regexp.Regexp
		with string
	}{
		// A block that was cut off at its end goes on to the end of the text.
		{regexp.MustCompile(`(?s)-----BEGIN [A-Z0-9 ]+-----.*?(?:-----END [A-Z0-9 ]+-----|\z)`), leftOut},
		// Keys of hosts and targets, as nvme-cli writes them: DH-HMAC-CHAP and TLS.
		{regexp.MustCompile(`(?i)\b(?:DHHC|NVMeTLSkey)-1:[^\s"',]*`), leftOut},
		{regexp.MustCompile(`(?i)\bAGE-SECRET-KEY-1[0-9A-Z]*`), leftOut},
		{regexp.MustCompile(`\beyJ[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)+`), leftOut}, // JSON Web Token
		{regexp.MustCompile(`(?i)(authorization\\*["']?\s*[:=]\s*)[^\n]*`), "${1}" + leftOut},
		{regexp.MustCompile(`(?i)\b(bearer\s+)[A-Za-z0-9._~+/=-]{8,}`), "${1}" + leftOut},
		{regexp.MustCompile(`(://)[^/\s"'@]+:[^/\s"'@]+@`), "${1}" + leftOut + "@"},
		{regexp.MustCompile(`(?i)((?:` + secretWord + `|sealed-?keys|secret)\\*["']?\s*[:=]\s*)(?:\\*"[^"]*"|'[^']*'|[^\s"',;&]+)`), "${1}" + leftOut},
	}
	// base64Text is long enough for a key of 30 bytes.
	base64Text = regexp.MustCompile(`[A-Za-z0-9+/]{40,}={0,2}`)
	// hexText is long enough for a key of 32 bytes. UUIDs and NGUIDs are shorter; digests and IDs of containers say
	// what they are.
	hexText = regexp.MustCompile(`((?:sha256:|://)?)\b[0-9A-Fa-f]{64,}\b`)
)

// redactText leaves out what is, or looks like, a secret. It leaves out too much rather than too little.
func redactText(s string) string {
	for _, secret := range secretTexts {
		s = secret.is.ReplaceAllString(s, secret.with)
	}
	s = hexText.ReplaceAllStringFunc(s, func(found string) string {
		if hexText.FindStringSubmatch(found)[1] != "" {
			return found
		}
		return leftOut
	})
	return base64Text.ReplaceAllStringFunc(s, func(found string) string {
		if random(found) {
			return leftOut
		}
		return found
	})
}

// random text has upper and lower case and digits. Paths and names lack one of them.
func random(s string) bool {
	return strings.ContainsFunc(s, unicode.IsUpper) && strings.ContainsFunc(s, unicode.IsLower) && strings.ContainsFunc(s, unicode.IsDigit)
}

// toldAnnotations begin so; all others are left out, because anybody may keep anything in them.
var toldAnnotations = []string{"weft.storage/", "pv.kubernetes.io/", "volume.kubernetes.io/", "volume.beta.kubernetes.io/", "storageclass.kubernetes.io/", "deployment.kubernetes.io/",
	"snapshot.storage.kubernetes.io/", "csi.volume.kubernetes.io/", "meta.helm.sh/"}

// redactObject leaves out of an object, in place, what redactText does, texts of secret fields, values of environment
// variables, managedFields, and annotations of others.
func redactObject(o map[string]any) {
	if m, ok := o["metadata"].(map[string]any); ok {
		delete(m, "managedFields")
		if annotations, ok := m["annotations"].(map[string]any); ok {
			for key := range annotations {
				if !slices.ContainsFunc(toldAnnotations, func(prefix string) bool { return strings.HasPrefix(key, prefix) }) {
					delete(annotations, key)
				}
			}
		}
	}
	redactValue("", o)
}

// isSecret tells whether what a field contains is secret.
func isSecret(field string) bool {
	return secretField.MatchString(field) && !notSecret.MatchString(field)
}

// redactValue of a field; the value that is told.
func redactValue(field string, v any) any {
	switch v := v.(type) {
	case string:
		if isSecret(field) {
			return leftOut
		}
		return redactText(v)
	case map[string]any:
		for key, value := range v {
			if _, parts := value.(map[string]any); parts && isSecret(key) {
				v[key] = leftOut
				continue
			}
			v[key] = redactValue(key, value)
		}
	case []any:
		redactList(field, v)
	}
	return v
}

// redactList: environment variables keep their names and references, and what follows a flag that takes a secret is
// left out.
func redactList(field string, list []any) {
	follows := false
	for i, item := range list {
		if variable, ok := item.(map[string]any); ok && field == "env" && variable["value"] != nil {
			variable["value"] = leftOut
		}
		text, _ := item.(string)
		if follows {
			list[i] = leftOut
		} else {
			list[i] = redactValue(field, item)
		}
		follows = secretFlag.MatchString(text)
	}
}
