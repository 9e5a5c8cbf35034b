// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

const (
	alertsFile     = "charts/weft/files/prometheus/alerts.yaml"
	dashboardFiles = "charts/weft/files/dashboards/*.json"
)

// alertGroups is a rules file of Prometheus.
type alertGroups struct {
	Groups []ruleGroup `yaml:"groups"`
}

type ruleGroup struct {
	Name  string `yaml:"name"`
	Rules []rule `yaml:"rules"`
}

type rule struct {
	Record      string            `yaml:"record,omitempty"`
	Alert       string            `yaml:"alert,omitempty"`
	Expr        string            `yaml:"expr"`
	For         string            `yaml:"for,omitempty"`
	Labels      map[string]string `yaml:"labels,omitempty"`
	Annotations map[string]string `yaml:"annotations,omitempty"`
}

// readAlerts of the chart below root.
func readAlerts(root string) ([]rule, error) {
	data, err := os.ReadFile(filepath.Join(root, alertsFile))
	if err != nil {
		return nil, err
	}
	var file alertGroups
	if err := yaml.Unmarshal(data, &file); err != nil {
		return nil, fmt.Errorf("%s: %w", alertsFile, err)
	}
	var all []rule
	for _, group := range file.Groups {
		all = append(all, group.Rules...)
	}
	return all, nil
}

// dashboard is what is needed of a dashboard of Grafana.
type dashboard struct {
	UID        string  `json:"uid"`
	Title      string  `json:"title"`
	Panels     []panel `json:"panels"`
	Templating struct {
		List []dashboardVariable `json:"list"`
	} `json:"templating"`
}

type dashboardVariable struct {
	Name  string `json:"name"`
	Query string `json:"query"`
}

type panel struct {
	Title   string `json:"title"`
	GridPos struct {
		X, Y, W, H int
	} `json:"gridPos"`
	FieldConfig struct {
		Defaults struct {
			Unit string `json:"unit"`
		} `json:"defaults"`
	} `json:"fieldConfig"`
	Datasource struct {
		UID string `json:"uid"`
	} `json:"datasource"`
	Targets []panelTarget `json:"targets"`
}

type panelTarget struct {
	Expr         string `json:"expr"`
	LegendFormat string `json:"legendFormat"`
}

// readDashboards of the chart below root, by their paths.
func readDashboards(root string) (map[string]dashboard, error) {
	paths, err := filepath.Glob(filepath.Join(root, dashboardFiles))
	if err != nil {
		return nil, err
	}
	all := map[string]dashboard{}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		var d dashboard
		if err := json.Unmarshal(data, &d); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		all[path] = d
	}
	return all, nil
}

// promQuery is an expression in PromQL, without variables of Grafana, and where it is written.
type promQuery struct{ from, expr, legend string }

var (
	labelValues = regexp.MustCompile(`^label_values\((.*), *([a-z_]+)\)$`)
	grafana     = strings.NewReplacer("$__rate_interval", "5m", "$__range", "1h", "$__interval", "1m")
	chosen      = regexp.MustCompile(`"\$[a-z]+"`)
)

// queries of all dashboards and alerts below root, in a fixed order. Whatever a reader of a dashboard can choose is
// chosen.
func queries(root string) ([]promQuery, error) {
	var all []promQuery
	alerts, err := readAlerts(root)
	if err != nil {
		return nil, err
	}
	for _, a := range alerts {
		all = append(all, promQuery{from: "alert " + a.Alert, expr: a.Expr})
	}
	dashboards, err := readDashboards(root)
	if err != nil {
		return nil, err
	}
	for _, d := range dashboards {
		for _, v := range d.Templating.List {
			if m := labelValues.FindStringSubmatch(v.Query); m != nil {
				from := fmt.Sprintf("dashboard %s, variable %s", d.Title, v.Name)
				all = append(all, promQuery{from: from, expr: withoutVariables(m[1]), legend: "{{" + m[2] + "}}"})
			}
		}
		for _, p := range d.Panels {
			for i, t := range p.Targets {
				from := fmt.Sprintf("dashboard %s, panel %s, query %d", d.Title, p.Title, i+1)
				all = append(all, promQuery{from: from, expr: withoutVariables(t.Expr), legend: t.LegendFormat})
			}
		}
	}
	slices.SortFunc(all, func(a, b promQuery) int { return strings.Compare(a.from, b.from) })
	return all, nil
}

func withoutVariables(expr string) string {
	return chosen.ReplaceAllString(grafana.Replace(expr), `".*"`)
}

// queryRules are recording rules with all queries, for promtool, and for whoever evaluates them: the label from says
// where a query is written.
func queryRules(root string) ([]byte, error) {
	all, err := queries(root)
	if err != nil {
		return nil, err
	}
	group := ruleGroup{Name: "queries"}
	for i, q := range all {
		group.Rules = append(group.Rules, rule{Record: fmt.Sprintf("query:%d", i+1), Expr: q.expr, Labels: map[string]string{"from": q.from}})
	}
	return yaml.Marshal(alertGroups{Groups: []ruleGroup{group}})
}
