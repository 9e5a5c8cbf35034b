// SPDX-License-Identifier: Apache-2.0
//
// The page that draw.mjs takes a picture of: a dashboard's panels of the types stat and timeseries, drawn with Grafana's
// own components.

import '@fontsource-variable/inter';
import {ThemeContext, createTheme, dateTime, FieldType, getDisplayProcessor, getFieldDisplayValues, toDataFrame} from '@grafana/data';
import {BigValueColorMode, BigValueGraphMode, BigValueJustifyMode, BigValueTextMode} from '@grafana/ui';
import {BigValue, GlobalStyles, Icon, PanelChrome, TimeSeries, VizRepeater} from '@grafana/ui';
import {createRoot} from 'react-dom/client';

// Grafana's grid: 24 columns, rows of 30 pixels, gaps of 8.
const gap = 8;
const row = 30;
const columns = 24;

// framesOf a panel: one for each series.
function framesOf({data, fieldConfig}, theme) {
  return data.series.map(({name, values}, i) => {
    const config = {...fieldConfig.defaults, color: fieldConfig.defaults.color ?? {mode: 'palette-classic'}, displayNameFromDS: name};
    const frame = toDataFrame({
      refId: String(i),
      fields: [
        {name: 'Time', type: FieldType.time, values: data.times, config: {}},
        {name: 'Value', type: FieldType.number, values, config},
      ],
    });
    const [time, field] = frame.fields;
    time.display = getDisplayProcessor({field: time, theme, timeZone: 'utc'});
    field.state = {seriesIndex: i};
    field.display = getDisplayProcessor({field, theme, timeZone: 'utc'});
    return frame;
  });
}

function Series({panel, width, height, theme, range}) {
  return <TimeSeries frames={framesOf(panel, theme)} timeRange={range} timeZone="utc" width={width} height={height} legend={{showLegend: true, calcs: [], ...panel.options.legend}} />;
}

function Stat({panel, width, height, theme}) {
  const config = {...panel.fieldConfig.defaults, color: {mode: 'thresholds'}};
  const frames = framesOf({...panel, fieldConfig: {defaults: config}}, theme);
  const values = getFieldDisplayValues({data: frames, fieldConfig: {defaults: config, overrides: []}, reduceOptions: panel.options.reduceOptions, replaceVariables: (text) => text, theme, timeZone: 'utc'});
  const one = ({value, width, height}) => (
    <BigValue value={{...value.display, title: undefined}} width={width} height={height} theme={theme} count={values.length} colorMode={BigValueColorMode.Value} graphMode={BigValueGraphMode.None} justifyMode={BigValueJustifyMode.Auto} textMode={BigValueTextMode.Auto} />
  );
  return <VizRepeater getValues={() => values} renderValue={one} width={width} height={height} source={frames} renderCounter={0} autoGrid orientation="auto" itemSpacing={3} />;
}

const drawn = {stat: Stat, timeseries: Series};

function Panel({panel, pixels, theme, range}) {
  const {x, y, w, h} = panel.gridPos;
  const column = (pixels - gap * (columns - 1)) / columns;
  const width = w * (column + gap) - gap;
  const height = h * (row + gap) - gap;
  const Drawn = drawn[panel.type];
  if (!Drawn) throw new Error(`panel ${panel.title}: cannot draw the type ${panel.type}`);
  const content = (width, height) =>
    panel.data.series.length ? (
      <Drawn {...{panel, width, height, theme, range}} />
    ) : (
      <div style={{height: '100%', display: 'flex', alignItems: 'center', justifyContent: 'center', textAlign: 'center', color: theme.colors.text.secondary}}>
        {panel.fieldConfig.defaults.noValue ?? 'No data'}
      </div>
    );
  return (
    <div style={{position: 'absolute', left: x * (column + gap), top: y * (row + gap), width, height}}>
      <PanelChrome width={width} height={height} title={panel.title} description={panel.description}>
        {content}
      </PanelChrome>
    </div>
  );
}

function Dashboard({title, variables, panels, theme, range}) {
  const margin = 16;
  const pixels = window.innerWidth - 2 * margin;
  const chip = {display: 'inline-flex', border: `1px solid ${theme.colors.border.medium}`, borderRadius: 2, overflow: 'hidden', background: theme.colors.background.primary};
  const name = {padding: '5px 8px', fontWeight: 500, borderRight: `1px solid ${theme.colors.border.weak}`};
  const value = {padding: '5px 10px'};
  return (
    <div id="dashboard" style={{padding: margin, background: theme.colors.background.canvas}}>
      <div style={{display: 'flex', alignItems: 'center', gap, marginBottom: margin, fontSize: 12}}>
        <span style={{fontSize: 18, fontWeight: 500, marginRight: 8}}>{title}</span>
        {variables.map((v) => (
          <span key={v.label} style={chip}>
            <span style={name}>{v.label}</span>
            <span style={value}>{v.shown}</span>
          </span>
        ))}
        <span style={{...chip, ...value, marginLeft: 'auto', alignItems: 'center', gap}}>
          <Icon name="clock-nine" /> {range.from.utc().format('YYYY-MM-DD HH:mm')} to {range.to.utc().format('HH:mm')} UTC
        </span>
      </div>
      <div style={{position: 'relative', height: Math.max(...panels.map(({gridPos}) => gridPos.y + gridPos.h)) * (row + gap) - gap}}>
        {panels.map((panel) => (
          <Panel key={panel.id} {...{panel, pixels, theme, range}} />
        ))}
      </div>
    </div>
  );
}

window.draw = async ({title, panels, variables, theme: mode, start, end}) => {
  window.__grafana_public_path__ = '/public/';
  const font = '"Inter Variable"';
  const theme = createTheme({colors: {mode}, typography: {fontFamily: `${font}, sans-serif`}});
  // Graphs are drawn once, with the font that is there.
  await Promise.all([400, 500].map((weight) => document.fonts.load(`${weight} 12px ${font}`)));
  const [from, to] = [dateTime(start), dateTime(end)];
  const root = document.body.appendChild(document.createElement('div'));
  createRoot(root).render(
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <Dashboard {...{title, variables, panels, theme, range: {from, to, raw: {from, to}}}} />
    </ThemeContext.Provider>,
  );
};
