// SPDX-License-Identifier: Apache-2.0

package main

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

func alertsOfChart(t *testing.T) []rule {
	t.Helper()
	alerts, err := readAlerts("../..")
	if err != nil || len(alerts) == 0 {
		t.Fatalf("the chart has %d alerts: %v", len(alerts), err)
	}
	return alerts
}

// Whoever is woken by an alert reads what is affected, what to do now, and where more is said.
func TestAlertsSayWhatToDo(t *testing.T) {
	names := map[string]bool{}
	for _, a := range alertsOfChart(t) {
		if names[a.Alert] || !regexp.MustCompile(`^Weft[A-Z][A-Za-z]+$`).MatchString(a.Alert) {
			t.Errorf("alert %q: names begin with Weft, and each is used once", a.Alert)
		}
		names[a.Alert] = true
		if !slices.Contains([]string{"warning", "critical"}, a.Labels["severity"]) {
			t.Errorf("%s: the severity is warning or critical, not %q", a.Alert, a.Labels["severity"])
		}
		if s := a.Annotations["summary"]; s == "" || strings.HasSuffix(s, ".") || strings.Contains(s, "\n") {
			t.Errorf("%s: the summary is a line without a period, not %q", a.Alert, s)
		}
		if d := a.Annotations["description"]; !strings.HasSuffix(d, ".") && !strings.HasSuffix(d, `".`) {
			t.Errorf("%s: the description is sentences, not %q", a.Alert, d)
		}
		// TestLinksToTheSiteLeadSomewhere looks for the page and the heading.
		if runbook := a.Annotations["runbook_url"]; !strings.HasPrefix(linkToSite.FindString(runbook), site+"blob/main/docs/") {
			t.Errorf("%s: the runbook is a page below %sblob/main/docs, not %q", a.Alert, site, runbook)
		}
	}
	for _, a := range regexp.MustCompile("`(Weft[A-Z][A-Za-z]+)`").FindAllStringSubmatch(allPages(t), -1) {
		if strings.HasPrefix(a[1], "Weft") && !names[a[1]] && !slices.Contains(constants(t, "Condition"), a[1]) {
			t.Errorf("the documents name an alert %s, which the chart does not have", a[1])
		}
	}
}

func allPages(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, page := range pages(t) {
		all.WriteString(read(t, page))
	}
	return all.String()
}

// scraped labels come from how components are scraped. Others of Prometheus, such as pod, differ from cluster to
// cluster.
var scraped = []string{"node", "job", "instance"}

var (
	quoted   = regexp.MustCompile(`"[^"]*"`)
	selector = regexp.MustCompile(`\b(weft_[a-z0-9_]+|up)\b(?:\{([^}]*)\})?`)
	matcher  = regexp.MustCompile(`([a-z_]+) *(?:=~|!~|!=|=)`)
	grouping = regexp.MustCompile(`\b(?:by|without|on|ignoring|group_left|group_right) *\(([^)]*)\)`)
	referred = regexp.MustCompile(`\$labels\.([a-z_]+)|\{\{ *([a-z_]+) *\}\}`)
	series   = regexp.MustCompile(`_(?:bucket|count|sum)$`)
)

// labelsOf a metric that docs/reference/metrics.md lists.
func labelsOf(listed map[string]metric, name string) (labels []string, ok bool) {
	if name == "up" {
		return nil, true
	}
	if m, is := listed[name]; is {
		return m.labels, true
	}
	m, is := listed[series.ReplaceAllString(name, "")]
	return append(slices.Clone(m.labels), "le"), is
}

// Every query of the chart uses metrics and labels of docs/reference/metrics.md, which another test holds to the code.
// promtool says whether it can be parsed, see TestQueriesCanBeParsed of test/chart.
func TestQueriesUseWhatIsListed(t *testing.T) {
	listed := listedMetrics(t)
	all, err := queries("../..")
	if err != nil {
		t.Fatal(err)
	}
	shown := map[string]string{}
	for _, a := range alertsOfChart(t) {
		shown["alert "+a.Alert] = a.Annotations["summary"] + a.Annotations["description"]
	}
	for _, q := range all {
		expr := quoted.ReplaceAllString(q.expr, `""`)
		if strings.Contains(expr, "$") {
			t.Errorf("%s: %s has a variable that is not known", q.from, q.expr)
		}
		known := slices.Clone(scraped)
		selected := selector.FindAllStringSubmatch(expr, -1)
		if len(selected) == 0 {
			t.Errorf("%s: %q has no metric of weft", q.from, q.expr)
		}
		for _, s := range selected {
			labels, ok := labelsOf(listed, s[1])
			if !ok {
				t.Errorf("%s: %s is not listed", q.from, s[1])
			}
			known = append(known, labels...)
			for _, m := range matcher.FindAllStringSubmatch(s[2], -1) {
				if !slices.Contains(labels, m[1]) && !slices.Contains(scraped, m[1]) {
					t.Errorf("%s: %s has no label %s", q.from, s[1], m[1])
				}
			}
		}
		for _, label := range usedLabels(expr, q.legend+shown[q.from]) {
			if !slices.Contains(known, label) {
				t.Errorf("%s: no metric of %q has a label %s", q.from, q.expr, label)
			}
		}
	}
}

// usedLabels are those that an expression groups by, and that a text refers to.
func usedLabels(expr, text string) []string {
	var all []string
	for _, m := range grouping.FindAllStringSubmatch(expr, -1) {
		for label := range strings.SplitSeq(m[1], ",") {
			if label = strings.TrimSpace(label); label != "" {
				all = append(all, label)
			}
		}
	}
	for _, m := range referred.FindAllStringSubmatch(text, -1) {
		all = append(all, m[1]+m[2])
	}
	return all
}

// Dashboards ask the chosen data source, use variables that they have, say in what unit they show something, and their
// panels lie beside each other.
func TestDashboardsAreWhole(t *testing.T) {
	dashboards, err := readDashboards("../..")
	if err != nil || len(dashboards) == 0 {
		t.Fatalf("the chart has %d dashboards: %v", len(dashboards), err)
	}
	uids := map[string]string{}
	for path, d := range dashboards {
		if other, twice := uids[d.UID]; twice || d.UID == "" || d.Title == "" {
			t.Errorf("%s: uid %q, title %q; a dashboard has both, and %q has the same uid", path, d.UID, d.Title, other)
		}
		uids[d.UID] = path
		variables := []string{"__rate_interval", "__range"}
		for _, v := range d.Templating.List {
			variables = append(variables, v.Name)
		}
		titles := map[string]bool{}
		for i, p := range d.Panels {
			if titles[p.Title] || p.Title == "" {
				t.Errorf("%s: the title %q is used twice, or empty", path, p.Title)
			}
			titles[p.Title] = true
			if p.Datasource.UID != "${datasource}" || p.FieldConfig.Defaults.Unit == "" || len(p.Targets) == 0 {
				t.Errorf("%s: panel %s lacks the chosen data source, a unit, or queries", path, p.Title)
			}
			for _, target := range p.Targets {
				for _, m := range regexp.MustCompile(`\$([a-z_]+)`).FindAllStringSubmatch(target.Expr, -1) {
					if !slices.Contains(variables, m[1]) {
						t.Errorf("%s: panel %s uses $%s, which the dashboard does not have", path, p.Title, m[1])
					}
				}
			}
			if a := p.GridPos; a.W < 1 || a.H < 1 || a.X+a.W > 24 {
				t.Errorf("%s: panel %s is not on the page: %+v", path, p.Title, a)
			}
			for _, o := range d.Panels[:i] {
				a, b := p.GridPos, o.GridPos
				if a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
					t.Errorf("%s: panel %s lies over %s", path, p.Title, o.Title)
				}
			}
		}
	}
}
