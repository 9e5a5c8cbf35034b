// SPDX-License-Identifier: Apache-2.0

package chart_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

const (
	alertsFile     = chart + "/files/prometheus/alerts.yaml"
	dashboardFiles = chart + "/files/dashboards/*.json"
)

// promtool runs the promtool that PROMTOOL names, else the one that the Makefile builds. The test fails when promtool
// finds a fault.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	bin := os.Getenv("PROMTOOL")
	if bin == "" {
		bin = filepath.Join("..", "..", "bin", "promtool")
	}
	if _, err := exec.LookPath(bin); err != nil {
		t.Fatalf("this test needs promtool: run `make $PWD/bin/promtool`, or set PROMTOOL to its path (%v)", err)
	}
	if out, err := exec.CommandContext(t.Context(), bin, args...).CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// alerts of the chart: the texts of each, by its name.
func alerts(t *testing.T) map[string]string {
	t.Helper()
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert       string            `json:"alert"`
				Annotations map[string]string `json:"annotations"`
			} `json:"rules"`
		} `json:"groups"`
	}
	load(t, alertsFile, &file)
	texts := map[string]string{}
	for _, group := range file.Groups {
		for _, r := range group.Rules {
			texts[r.Alert] = r.Annotations["summary"] + r.Annotations["description"]
		}
	}
	if len(texts) == 0 {
		t.Fatalf("%s has no alerts", alertsFile)
	}
	return texts
}

func load(t *testing.T, path string, into any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err == nil {
		err = yaml.Unmarshal(data, into)
	}
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

func TestAlerts(t *testing.T) {
	const cases = "testdata/alerts.yaml"
	dir := t.TempDir() // promtool looks for rules beside the cases
	for _, from := range []string{alertsFile, cases} {
		data, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		to := map[string]string{alertsFile: "alerts.yaml", cases: "cases.yaml"}[from]
		if err := os.WriteFile(filepath.Join(dir, to), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	promtool(t, "check", "rules", "--lint=all", "--lint-fatal", filepath.Join(dir, "alerts.yaml"))
	promtool(t, "test", "rules", filepath.Join(dir, "cases.yaml"))

	var file struct {
		Tests []struct {
			Expressions []struct {
				Expr    string `json:"expr"`
				Samples []struct {
					Labels string `json:"labels"`
				} `json:"exp_samples"`
			} `json:"promql_expr_test"`
		} `json:"tests"`
	}
	load(t, cases, &file)
	firing, quiet := map[string]string{}, map[string]bool{}
	for _, test := range file.Tests {
		for _, e := range test.Expressions {
			m := regexp.MustCompile(`^ALERTS\{alertname="(\w+)", alertstate="firing"\}$`).FindStringSubmatch(e.Expr)
			if m == nil {
				t.Errorf("%s: %s does not say whether one alert fires", cases, e.Expr)
				continue
			}
			if len(e.Samples) == 0 {
				quiet[m[1]] = true
				continue
			}
			firing[m[1]] = e.Samples[0].Labels
		}
	}
	for name, texts := range alerts(t) {
		if firing[name] == "" || !quiet[name] {
			t.Errorf("%s has no case in which %s fires, or none in which it does not", cases, name)
		}
		for _, m := range regexp.MustCompile(`\$labels\.(\w+)`).FindAllStringSubmatch(texts, -1) {
			if !regexp.MustCompile(`\b` + m[1] + `="`).MatchString(firing[name]) {
				t.Errorf("the texts of %s name the label %s, which it has not when it fires: %s", name, m[1], firing[name])
			}
		}
	}
}

func TestQueriesCanBeParsed(t *testing.T) {
	list := exec.CommandContext(t.Context(), "go", "run", "./hack/docs", "queries")
	list.Dir, list.Stderr = filepath.Join("..", ".."), os.Stderr
	rules, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "queries.yaml")
	if err := os.WriteFile(path, rules, 0o644); err != nil {
		t.Fatal(err)
	}
	promtool(t, "check", "rules", path)
}

// What the chart makes of alerts and dashboards is what its files have, and nothing unless it is asked.
func TestAlertsAndDashboardsAreInstalledAsTheyAre(t *testing.T) {
	dashboards, err := filepath.Glob(dashboardFiles)
	if err != nil || len(dashboards) == 0 {
		t.Fatalf("there are no dashboards: %v", err)
	}
	for name, set := range map[string][]string{"neither": nil, "both": {
		"--set", "metrics.prometheusRule.enabled=true,metrics.prometheusRule.labels.release=prometheus",
		"--set", "metrics.dashboards.enabled=true,metrics.dashboards.namespace=grafana",
	}} {
		objects := render(t, set...)
		found := 0
		for _, o := range of[*unstructured.Unstructured](objects) {
			if o.GetKind() != "PrometheusRule" {
				continue
			}
			found++
			var want map[string]any
			load(t, alertsFile, &want)
			if !reflect.DeepEqual(o.Object["spec"], want) || o.GetLabels()["release"] != "prometheus" {
				t.Errorf("%s: the PrometheusRule is not %s with the labels of the values: %v", name, alertsFile, o.GetLabels())
			}
		}
		for _, m := range of[*corev1.ConfigMap](objects) {
			if m.Labels["grafana_dashboard"] != "1" {
				continue
			}
			found++
			for file, content := range m.Data {
				var have, want any
				load(t, chart+"/files/dashboards/"+strings.TrimPrefix(file, "weft-"), &want)
				if err := json.Unmarshal([]byte(content), &have); err != nil || !reflect.DeepEqual(have, want) || m.Namespace != "grafana" {
					t.Errorf("ConfigMap %s/%s is not the dashboard of the files: %v", m.Namespace, m.Name, err)
				}
			}
		}
		if want := map[string]int{"neither": 0, "both": 1 + len(dashboards)}[name]; found != want {
			t.Errorf("%s: %d PrometheusRules and dashboards, not %d", name, found, want)
		}
	}
}
