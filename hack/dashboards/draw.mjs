// SPDX-License-Identifier: Apache-2.0
//
// Draws Grafana dashboards from what a Prometheus has collected, each into a PNG:
//
//	node draw.mjs [--range 15m] [--end TIME] [--theme light] [--var NAME=VALUE]... PROMETHEUS_URL DASHBOARD.json=OUT.png...
//
// It asks what Grafana would ask, and page.jsx draws the answers in a headless chromium (CHROMIUM names its program).

import {execFileSync} from 'node:child_process';
import {readFile, mkdtemp, rm, writeFile} from 'node:fs/promises';
import {tmpdir} from 'node:os';
import path from 'node:path';
import {parseArgs} from 'node:util';
import {build} from 'esbuild';
import puppeteer from 'puppeteer-core';
import UPNG from 'upng-js';

const here = import.meta.dirname;
const width = 1600;

const {values: flags, positionals} = parseArgs({
  allowPositionals: true,
  options: {
    range: {type: 'string', default: '15m'},
    end: {type: 'string'}, // as date reads it; the default is now
    theme: {type: 'string', default: 'light'},
    var: {type: 'string', multiple: true, default: []},
    scrape: {type: 'string', default: '15s'}, // the scrape interval of the data source, as Grafana calls it
  },
});
const [prometheus, ...pictures] = positionals;
if (!pictures.length || !pictures.every((p) => p.includes('='))) {
  throw new Error('usage: draw.mjs [--range 15m] [--var NAME=VALUE]... PROMETHEUS_URL DASHBOARD.json=OUT.png...');
}

const seconds = (duration) => {
  const match = /^(\d+)([smh])$/.exec(duration);
  if (!match) throw new Error(`${duration} is no duration, such as 15m`);
  return Number(match[1]) * {s: 1, m: 60, h: 3600}[match[2]];
};

async function ask(api, parameters) {
  const response = await fetch(`${prometheus}/api/v1/${api}?${new URLSearchParams(parameters)}`);
  const body = await response.json();
  if (body.status !== 'success') throw new Error(`${api} ${JSON.stringify(parameters)}: ${body.error}`);
  return body.data;
}

// Whole steps, as Grafana asks.
const scrape = seconds(flags.scrape);
const range = seconds(flags.range);
const end = Math.floor((flags.end ? Date.parse(flags.end) : Date.now()) / 1000 / scrape) * scrape;
const start = end - range;

// stepOf a panel: a point for every pixel, but none more often than the data is scraped.
const stepOf = (panel) => Math.max(scrape, Math.ceil((range / ((panel.gridPos.w / 24) * width)) / scrape) * scrape);

// variablesOf a dashboard, in its order, as later ones may depend on earlier ones: what is written for each name, and shown.
async function variablesOf(dashboard) {
  const given = Object.fromEntries(flags.var.map((v) => v.split(/=(.*)/s).slice(0, 2)));
  const values = {};
  for (const variable of dashboard.templating.list) {
    if (variable.type !== 'query') continue;
    const [, series, label] = /^label_values\((.*), *(\w+)\)$/.exec(variable.query);
    const known = await ask(`label/${label}/values`, {'match[]': replaced(series, values), start, end});
    const value = given[variable.name];
    if (value && !known.includes(value)) throw new Error(`${variable.name} ${value} is none of: ${known.join(', ')}`);
    values[variable.name] = {label: variable.label, shown: value ?? 'All', written: value ?? variable.allValue};
  }
  return values;
}

const replaced = (text, values) =>
  Object.entries(values).reduce((all, [name, value]) => all.replaceAll(`$${name}`, value.written), text);

// seriesOf a panel: the legend of each, and a number or null for each time.
async function seriesOf(panel, variables) {
  const step = stepOf(panel);
  const times = Array.from({length: Math.floor(range / step) + 1}, (_, i) => start + i * step);
  const rate = {written: `${Math.max(step + scrape, 4 * scrape)}s`};
  const series = [];
  for (const target of panel.targets) {
    const query = replaced(target.expr, {__rate_interval: rate, ...variables});
    const {result} = await ask('query_range', {query, start, end, step});
    for (const {metric, values} of result) {
      const at = new Map(values.map(([time, value]) => [time, Number(value)]));
      series.push({
        name: target.legendFormat.replaceAll(/{{\s*(\w+)\s*}}/g, (_, label) => metric[label] ?? '') || 'Value',
        values: times.map((time) => at.get(time) ?? null),
      });
    }
  }
  return {times: times.map((time) => time * 1000), series};
}

// draw a dashboard in a new page of the browser, into a file.
async function draw(browser, work, dashboard, panels, variables, out) {
  const page = await browser.newPage();
  page.on('pageerror', (error) => console.error(`page: ${error.message}`));
  // Higher than any dashboard: what is outside would be drawn only when it comes into view.
  await page.setViewport({width, height: 4000});
  // Icons are files of @grafana/ui. Nothing comes from the network.
  const icons = path.join(here, 'node_modules/@grafana/ui/dist/public');
  await page.setRequestInterception(true);
  page.on('request', async (request) => {
    if (request.url().startsWith('data:')) return request.continue();
    const {pathname} = new URL(request.url());
    if (pathname === '/') return request.respond({contentType: 'text/html', body: '<!doctype html><meta charset="utf-8"><body style="margin: 0">'});
    const icon = /^\/public\/build\/(img\/icons\/[\w/-]+\.svg)$/.exec(pathname);
    if (!icon) return request.abort();
    return request.respond({contentType: 'image/svg+xml', body: await readFile(path.join(icons, icon[1]))});
  });
  await page.goto('http://dashboards.invalid/');
  await page.addStyleTag({path: path.join(work, 'page.css')});
  await page.addScriptTag({path: path.join(work, 'page.js')});
  await page.evaluate((what) => window.draw(what), {title: dashboard.title, panels, variables: Object.values(variables), theme: flags.theme, start: start * 1000, end: end * 1000});
  await page.waitForNetworkIdle({idleTime: 2000});
  const drawn = await page.$('#dashboard');
  const picture = UPNG.decode(await drawn.screenshot());
  // With a palette, the file is half as large.
  await writeFile(out, Buffer.from(UPNG.encode(UPNG.toRGBA8(picture), picture.width, picture.height, 256)));
  await page.close();
}

const work = await mkdtemp(path.join(tmpdir(), 'weft-dashboards-'));
let browser;
try {
  await build({
    entryPoints: [path.join(here, 'page.jsx')],
    outfile: path.join(work, 'page.js'),
    bundle: true,
    minify: true,
    jsx: 'automatic',
    loader: {'.woff2': 'dataurl', '.ttf': 'empty'},
    define: {'process.env.NODE_ENV': '"production"', global: 'window'},
    logLevel: 'error',
  });
  const executablePath = execFileSync('sh', ['-c', 'command -v "$0"', process.env.CHROMIUM || 'chromium'], {encoding: 'utf8'}).trim();
  // As root, chromium has no sandbox.
  const args = ['--force-color-profile=srgb', ...(process.getuid() ? [] : ['--no-sandbox'])];
  browser = await puppeteer.launch({executablePath, args});
  for (const picture of pictures) {
    const [, file, out] = /^(.*)=(.*)$/s.exec(picture);
    const dashboard = JSON.parse(await readFile(file, 'utf8'));
    const variables = await variablesOf(dashboard);
    const panels = [];
    for (const panel of dashboard.panels) panels.push({...panel, data: await seriesOf(panel, variables)});
    await draw(browser, work, dashboard, panels, variables, out);
    const empty = panels.filter((panel) => !panel.data.series.length).map((panel) => panel.title);
    console.log(`wrote ${out}${empty.length ? `; no data: ${empty.join(', ')}` : ''}`);
  }
} finally {
  await browser?.close();
  await rm(work, {recursive: true});
}
