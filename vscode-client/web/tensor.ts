/** The page of the tensor view: asks the extension and draws what comes. */
import 'uplot/dist/uPlot.min.css';
import './tensor.css';

import { EVERYTHING, isNote, type AttentionMap, type Figures, type TensorBody, type ToExtension, type ToPage } from '../src/tensorView/messages';
import { histogram, historyChart, rowsChart } from './charts';
import { firstChoice, fits, wantedOf, type Choice } from './choice';
import { headControls, rowControls, sliceControls } from './controls';
import { linesOf, number } from './decode';
import { drawImage, drawSlice } from './heatmap';

declare function acquireVsCodeApi(): {
  postMessage: (message: ToExtension) => void;
  /** What the page keeps while it is hidden, when all else of it is dropped. */
  getState: () => Choice | undefined;
  setState: (choice: Choice | undefined) => void;
};

const vscode = acquireVsCodeApi();
const main = document.getElementById('main') ?? document.body;
let choice: Choice | undefined;
let shown: TensorBody | undefined;

function ask(next: Choice | undefined): void {
  choice = next;
  vscode.setState(next);
  vscode.postMessage({ type: 'ask', wanted: next === undefined ? { parts: EVERYTHING } : wantedOf(next) });
}

function section(title: string): HTMLElement {
  const part = document.createElement('section');
  const heading = document.createElement('h2');
  heading.textContent = title;
  part.append(heading);
  main.append(part);
  return part;
}

function say(into: HTMLElement, text: string): void {
  const line = document.createElement('p');
  line.textContent = text;
  into.append(line);
}

function render(body: TensorBody): void {
  const shape = (body.shape ?? []).filter((size) => typeof size === 'number');
  if (choice !== undefined && body.shape !== undefined && !fits(choice, shape)) {
    ask(undefined);
    return;
  }
  const focused = document.activeElement?.closest('label')?.textContent;
  shown = body;
  main.replaceChildren();
  say(main, body.line);
  const now = choice ?? firstChoice(shape);
  if (body.figures !== undefined) {
    const part = section('Distribution');
    if (isNote(body.figures)) say(part, body.figures.note);
    else drawFigures(part, body.figures);
  }
  if (body.slice !== undefined) {
    const part = section('Slice');
    if (shape.length > 1) part.append(sliceControls(shape, now, ask));
    if (isNote(body.slice)) say(part, body.slice.note);
    else drawSlice(part, body.slice);
  }
  if (body.image !== undefined && !isNote(body.image) && shape.length > 2) drawImage(section('Image'), body.image);
  if (body.rows !== undefined && shape.length > 1) {
    const part = section('Along a dimension');
    part.append(rowControls(shape, now, ask));
    if (isNote(body.rows)) say(part, body.rows.note);
    else rowsChart(part, body.rows);
  }
  if (body.attention !== undefined) {
    const part = section('Attention');
    if (isNote(body.attention)) say(part, body.attention.note);
    else drawAttention(part, body.attention, now);
  }
  const part = section('Over steps');
  const lines = linesOf(body.history);
  if (lines) historyChart(part, lines);
  else say(part, 'Not recorded: "tp record on" in the debug console records parameters and layers.');
  if (focused) [...main.querySelectorAll('label')].find((label) => label.textContent === focused)?.querySelector<HTMLElement>('select, input')?.focus();
}

function drawAttention(part: HTMLElement, map: AttentionMap, now: Choice): void {
  part.append(headControls(map.heads, now, ask));
  say(part, `Rows are queries, columns keys; of ${map.size[0]} × ${map.size[1]}, the first row of the batch, in the newest call.`);
  drawSlice(part, map);
}

function drawFigures(part: HTMLElement, figures: Figures): void {
  const rows: [string, string][] = [
    ['mean', number(figures.mean)],
    ['std', number(figures.std)],
    ['min', number(figures.low)],
    ['max', number(figures.high)],
    ['zeros', figures.zeros.toLocaleString('en')],
    ['NaN', figures.nan.toLocaleString('en')],
    ['+Inf', figures.posinf.toLocaleString('en')],
    ['-Inf', figures.neginf.toLocaleString('en')],
    ...figures.shares.map((share, place): [string, string] => [`quantile ${share}`, number(figures.quantiles[place])]),
  ];
  if (figures.looked_at < figures.elements) rows.push(['looked at', `${figures.looked_at.toLocaleString('en')} of ${figures.elements.toLocaleString('en')}`]);
  const list = document.createElement('dl');
  for (const [name, value] of rows) {
    const pair = document.createElement('div');
    const [term, meaning] = [document.createElement('dt'), document.createElement('dd')];
    term.textContent = name;
    meaning.textContent = value;
    if (['NaN', '+Inf', '-Inf'].includes(name) && value !== '0') pair.className = 'bad';
    pair.append(term, meaning);
    list.append(pair);
  }
  part.append(list);
  histogram(part, figures);
}

window.addEventListener('message', ({ data }: MessageEvent<ToPage>) => {
  switch (data.type) {
    case 'tensor':
      render(data.body);
      break;
    case 'waiting':
    case 'failed': {
      document.querySelector('.notice')?.remove();
      const notice = document.createElement('p');
      notice.className = 'notice';
      notice.setAttribute('role', 'status');
      notice.textContent = data.type === 'waiting' ? `${data.text} What is below is of the last stop.` : data.text;
      main.prepend(notice);
      break;
    }
  }
});
// The colours are those of the theme.
new MutationObserver(() => {
  if (shown !== undefined) render(shown);
}).observe(document.body, { attributes: true, attributeFilter: ['class'] });
ask(vscode.getState());
