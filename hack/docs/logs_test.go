// SPDX-License-Identifier: Apache-2.0

package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// logLine is a line of the log, as the code writes it.
type logLine struct {
	at, message string
	keys        []string
}

// linesOf the log that the Go files of a folder write.
func linesOf(t *testing.T, folder string) []logLine {
	t.Helper()
	var lines []logLine
	err := filepath.WalkDir(filepath.Join("..", "..", folder), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				if l, ok := lineOf(call); ok {
					l.at = set.Position(call.Pos()).String()
					lines = append(lines, l)
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

// lineOf a call of a logr.Logger: the message is the first argument of Info, and the second one of Error.
func lineOf(call *ast.CallExpr) (logLine, bool) {
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return logLine{}, false
	}
	at, ok := map[string]int{"Info": 0, "Error": 1}[method.Sel.Name]
	if !ok || len(call.Args) <= at {
		return logLine{}, false
	}
	message, ok := textOf(call.Args[at])
	l := logLine{message: message}
	for i := at + 1; i < len(call.Args); i += 2 {
		if key, is := textOf(call.Args[i]); is {
			l.keys = append(l.keys, key)
		}
	}
	return l, ok
}

func textOf(e ast.Expr) (string, bool) {
	literal, ok := e.(*ast.BasicLit)
	if !ok || literal.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(literal.Value)
	return text, err == nil
}

// One thing has one name in all logs: who searches for a volume searches for one key.
func TestLogsNameThingsAlike(t *testing.T) {
	instead := map[string]string{
		"volumeID": "volume", "volume_id": "volume", "vol": "volume", "pv": "volume", "replicaName": "replica", "nodeName": "node", "nodeID": "node",
		"subsystem": "nqn", "snapshotID": "snapshot", "err": "reason", "why": "reason", "cause": "reason", "traceID": "trace",
	}
	found := 0
	for _, folder := range []string{"csi-driver", "dataplane", "operator", "internal"} {
		for _, l := range linesOf(t, folder) {
			for _, key := range l.keys {
				found++
				if name := instead[key]; name != "" {
					t.Errorf("%s: the key %q is named %q", l.at, key, name)
				}
			}
		}
	}
	if found < 100 {
		t.Errorf("only %d keys were found: this test does not see the log any more", found)
	}
}

// What the CSI controller logs is about a volume, but for loops over all volumes, whose errors name them. The node
// plugin's calls run with a logger that has the volume, and the agent's operations name theirs.
func TestTheControllerLogsTheVolume(t *testing.T) {
	all := []string{
		"Cannot seal new keys", "Cannot rotate the keys of hosts", "Cannot revoke attachments without a VolumeAttachment", "Cannot tell the states of a node's volumes",
	}
	lines := linesOf(t, filepath.Join("csi-driver", "controller"))
	for _, l := range lines {
		if !slices.Contains(l.keys, "volume") && !slices.Contains(all, l.message) {
			t.Errorf("%s: %q does not name the volume", l.at, l.message)
		}
	}
	if len(lines) < 30 {
		t.Errorf("only %d lines were found: this test does not see the log any more", len(lines))
	}
}
