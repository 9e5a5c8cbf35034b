// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

const goTest = `{"Action":"start","Package":"weft/a"}
{"Action":"output","Package":"weft/a","Test":"TestQuick","Output":"--- PASS: TestQuick (0.10s)\n"}
{"Action":"pass","Package":"weft/a","Test":"TestQuick","Elapsed":0.1}
{"Action":"output","Package":"weft/a","Test":"TestTable","Output":"    a_test.go:3: the rows\n"}
{"Action":"output","Package":"weft/a","Test":"TestTable/row","Output":"    a_test.go:7: is 3, not 4\n"}
{"Action":"fail","Package":"weft/a","Test":"TestTable/row","Elapsed":2}
{"Action":"fail","Package":"weft/a","Test":"TestTable","Elapsed":2.5}
{"Action":"output","Package":"weft/a","Output":"FAIL\tweft/a\t2.7s\n"}
{"Action":"fail","Package":"weft/a","Elapsed":2.7}
{"Action":"output","Package":"weft/b","Output":"ok  \tweft/b\t0.1s\n"}
{"Action":"pass","Package":"weft/b","Elapsed":0.1}
{"Action":"run","Package":"weft/c","Test":"TestHangs"}
{"Action":"output","Package":"weft/c","Test":"TestHangs","Output":"panic: test timed out after 20m0s\n"}
{"Action":"output","Package":"weft/c","Output":"FAIL\tweft/c\t1200.1s\n"}
{"Action":"fail","Package":"weft/c","Elapsed":1200.1}
`

const inMachine = `=== RUN   TestPool
--- PASS: TestPool (61.50s)
    --- PASS: TestPool/full (60.00s)
    --- SKIP: TestPool/of_two_drives (0.00s)
PASS
`

func TestPartsCountTests(t *testing.T) {
	var out strings.Builder
	unit, machine := newPart("test-unit", &out), newPart("test-lab", &out)
	for p, text := range map[*part]string{unit: goTest, machine: inMachine} {
		if err := p.read(strings.NewReader(text)); err != nil {
			t.Fatal(err)
		}
	}
	unit.failed = true
	for text, want := range map[string]bool{
		"is 3, not 4": true, "the rows": true, "panic: test timed out": true, "FAIL\tweft/a\t2.7s\n": true, "ok  \tweft/b": true, "=== RUN   TestPool\n": true,
		"TestQuick": false, "Action": false,
	} {
		if strings.Contains(out.String(), text) != want {
			t.Errorf("%q is shown: %t\n%s", text, !want, out.String())
		}
	}
	out.Reset()
	if err := summarize(&out, []*part{unit, machine}, 0); err != nil {
		t.Fatal(err)
	}
	words := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{
		"test-unit 0.0 1 2 0 FAILED test-lab 0.0 1 0 1 together 0.0 2 2 1",
		"slowest tests 60.0s test-lab TestPool/full 2.0s test-unit weft/a.TestTable/row 0.1s test-unit weft/a.TestQuick 0.0s",
		"FAILED test-unit weft/a.TestTable/row", "FAILED test-unit weft/c.TestHangs",
	} {
		if !strings.Contains(words, want) {
			t.Errorf("%q is not in:\n%s", want, out.String())
		}
	}
}

func TestPartFailsWithItsTarget(t *testing.T) {
	dir := t.TempDir()
	makefile := "good:\n\t@echo '--- PASS: TestX (1.00s)'\nbad:\n\t@false\n"
	if err := os.WriteFile(filepath.Join(dir, "Makefile"), []byte(makefile), 0o600); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	good, bad := newPart("good", &out), newPart("bad", &out)
	if err := good.run(t.Context(), dir); err != nil || good.tests["TestX"].outcome != "PASS" {
		t.Errorf("good: %v, %v", err, good.tests)
	}
	if err := bad.run(t.Context(), dir); err == nil || !bad.failed {
		t.Errorf("bad: %v, failed %t", err, bad.failed)
	}
}

// TestPartsBesideEachOther: each of the two ends only while the other runs, and the one that passes is not ended by the
// one that fails.
func TestPartsBesideEachOther(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	makefile := "reads:\n\t@cat pipe; echo '--- PASS: TestReader (1.00s)'\nfails:\n\t@echo 'line' > pipe; false\n"
	if err := os.WriteFile(filepath.Join(dir, "Makefile"), []byte(makefile), 0o600); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	shared := &sharedWriter{to: &out}
	reads, fails := newPart("reads", shared), newPart("fails", shared)
	err := runBeside(t.Context(), []*part{fails, reads}, dir)
	if err == nil || !fails.failed || reads.failed || reads.tests["TestReader"].outcome != "PASS" {
		t.Errorf("%v; fails: %t; reads: %t, %v; said %q", err, fails.failed, reads.failed, reads.tests, out.String())
	}
}
