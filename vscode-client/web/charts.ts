/** Histogram and lines, drawn by uPlot in the colours of the theme. */
import uPlot from 'uplot';

import type { Figures, Rows } from '../src/tensorView/messages';
import { bandOf, type Lines } from './decode';

const HEIGHT = 180;

function colour(name: string): string {
  return getComputedStyle(document.body).getPropertyValue(name).trim() || '#888';
}

function draw(into: HTMLElement, label: string, series: uPlot.Series[], data: uPlot.AlignedData, more: Partial<uPlot.Options> = {}): void {
  const text = colour('--vscode-foreground');
  const grid = { stroke: colour('--vscode-panel-border'), width: 1 };
  const chart = new uPlot(
    {
      width: Math.max(280, into.clientWidth),
      height: HEIGHT,
      axes: [
        { stroke: text, grid, ticks: grid },
        { stroke: text, grid, ticks: grid, size: 64 },
      ],
      scales: { x: { time: false } },
      cursor: { drag: { x: true, y: false } },
      series: [{}, ...series],
      ...more,
    },
    data,
    into,
  );
  const canvas = chart.root.querySelector('canvas');
  canvas?.setAttribute('role', 'img');
  canvas?.setAttribute('aria-label', label);
}

export function histogram(into: HTMLElement, figures: Figures): void {
  const { low, high } = figures;
  if (low === null || high === null) return;
  const width = (high - low) / figures.histogram.length || 1;
  const centres = figures.histogram.map((_, bin) => low + (bin + 0.5) * width);
  const total = Math.max(1, figures.histogram.reduce((sum, count) => sum + count, 0));
  const blue = colour('--vscode-charts-blue');
  const bars = uPlot.paths.bars?.({ size: [0.9, 64] });
  draw(
    into,
    `Histogram from ${low} to ${high}`,
    [{ label: 'share', stroke: blue, fill: blue, ...(bars && { paths: bars }), points: { show: false } }],
    [centres, figures.histogram.map((count) => count / total)],
  );
}

export function rowsChart(into: HTMLElement, rows: Rows): void {
  const { low, high } = bandOf(rows);
  const line = (label: string, name: string, dash?: number[]): uPlot.Series => ({ label, stroke: colour(name), ...(dash && { dash }), points: { show: false } });
  draw(
    into,
    `Statistics of each index of dimension ${rows.dim}`,
    [
      line('mean', '--vscode-charts-blue'),
      line('mean - std', '--vscode-charts-purple', [4, 4]),
      line('mean + std', '--vscode-charts-purple', [4, 4]),
      line('min', '--vscode-charts-green'),
      line('max', '--vscode-charts-orange'),
      line('not finite', '--vscode-charts-red'),
    ],
    [rows.mean.map((_, row) => row), rows.mean, low, high, rows.min, rows.max, rows.nonfinite],
  );
}

const COLOURS = ['blue', 'orange', 'green', 'red', 'purple', 'yellow'];

export function historyChart(into: HTMLElement, { steps, lines }: Lines): void {
  draw(
    into,
    `Recorded ${lines.map(({ name }) => name).join(', ')} over the last ${steps.length} steps`,
    lines.map(({ name }, place) => ({ label: name, stroke: colour(`--vscode-charts-${COLOURS[place % COLOURS.length] ?? 'blue'}`) })),
    [steps, ...lines.map(({ values }) => values)],
  );
}
