/** What the tensor view's page makes of the server's answers, and where inline values stand. */
import { expect, it } from 'vitest';

import { inlineTexts } from '../src/inlineTexts';
import { expressionAt } from '../src/tensorView/expression';
import { isNote, type Slice } from '../src/tensorView/messages';
import { firstChoice, fits, wantedOf } from '../web/choice';
import { bandOf, bytesOf, cellsOf, colourOf, heatmapOf, linesOf, number, spanOf } from '../web/decode';

function slice(values: number[], rows: number): Slice {
  const bytes = new Uint8Array(new Float32Array(values).buffer);
  const cells: [number, number] = [rows, values.length / rows];
  return { dims: [0, 1], index: [], size: cells, cells, step: [1, 1], values: btoa(String.fromCharCode(...bytes)) };
}

it('a slice comes as it was sent, NaN and infinities included', () => {
  const sent = [1.5, NaN, Infinity, -Infinity, 0, -2];
  expect([...cellsOf(slice(sent, 2))]).toEqual(sent);
  expect(spanOf(sent)).toEqual([-2, 1.5]);
  expect(spanOf([NaN])).toEqual([0, 0]);
  expect([...bytesOf(btoa('\u0001\u00ff'))]).toEqual([1, 255]);
});

it('what is not finite has a colour of its own', () => {
  const pixels = heatmapOf(slice([0, 1, NaN, Infinity], 2));
  const colours = [0, 1, 2, 3].map((cell) => [...pixels.slice(4 * cell, 4 * cell + 4)].join());
  expect(new Set(colours).size).toBe(4);
  expect(colours[2]).toBe('255,0,255,255');
  expect(colourOf(3, 3, 3)).toEqual(colourOf(0.5, 0, 1)); // of one value only: the middle
});

it('rows have a band of one deviation', () => {
  const rows = { dim: 0, rows: 2, mean: [1, null], std: [0.5, null], min: [], max: [], nonfinite: [] };
  expect(bandOf(rows)).toEqual({ low: [0.5, null], high: [1.5, null] });
});

it('recorded numbers are lines over steps', () => {
  const history = { step: [7, 8, null], optimizer_step: [6, 7, 8], gradient_norm: [0.5, null, 2], norm: [null, null, null], update_ratio: [null, 0.25, null] };
  expect(linesOf(history)).toEqual({
    steps: [7, 8, 2],
    lines: [
      { name: 'gradient norm', values: [0.5, null, 2] },
      { name: 'update ratio', values: [null, 0.25, null] },
    ],
  });
  const before = { step: [], mean: [], std: [] }; // recorded, but not called so far
  expect([null, undefined, {}, before].map(linesOf)).toEqual([undefined, undefined, undefined, undefined]);
});

it('numbers are short', () => {
  expect([1, 0.25, 1234567.8, NaN, null, 1e-9, 100000].map(number)).toEqual(['1', '0.25', '1.235e+6', 'NaN', '–', '1e-9', '100000']);
});

it('the last two dimensions are shown first', () => {
  expect(firstChoice([8, 3, 32, 32])).toEqual({ dims: [2, 3], index: [0, 0], dim: 2 });
  expect(wantedOf(firstChoice([5]))).toMatchObject({ dims: [0], index: [] });
  expect(wantedOf(firstChoice([]))).not.toHaveProperty('dims');
});

it('a choice that is none of the next tensor is given up', () => {
  const choice = { dims: [0, 2], index: [5], dim: 1 };
  expect(fits(choice, [4, 6, 8])).toBe(true);
  expect(fits(choice, [4, 5, 8])).toBe(false); // no index 5 any more
  expect(fits(choice, [6, 8])).toBe(false); // another rank
  expect(fits(choice, [])).toBe(false);
  for (const shape of [[], [5], [2, 3], [8, 3, 32, 32]]) expect(fits(firstChoice(shape), shape)).toBe(true);
});

it('a part that could not be made says why', () => {
  expect([{ note: 'it is empty' }, null, undefined, {}].map(isNote)).toEqual([true, false, false, false]);
});

it('a hover is about the name up to the part that is pointed at', () => {
  const line = 'h = self.fc(x).view("a.b") + x  # x.y';
  const at = (text: string) => expressionAt(line, line.indexOf(text))?.text;
  expect([at('h ='), at('self'), at('fc'), at('x)'), at('x  #')]).toEqual(['h', 'self', 'self.fc', 'x', 'x']);
  expect([at('view'), at('a.b'), at('x.y'), at('=')]).toEqual([undefined, undefined, undefined, undefined]);
  expect(expressionAt(line, line.indexOf('.fc'))?.text).toBe('self');
});

it('inline values stand at names, not at attributes, strings or comments', () => {
  const lines = [
    { line: 3, text: 'h = self.fc(x) + h  # x' },
    { line: 4, text: 'print("x", other.x, xs)' },
  ];
  const values = [
    { name: 'x', text: 'f32[2]' },
    { name: 'h', text: 'f32[3]' },
  ];
  expect(inlineTexts(lines, values)).toEqual([
    { line: 3, start: 0, end: 1, text: 'h = f32[3]' },
    { line: 3, start: 12, end: 13, text: 'x = f32[2]' },
  ]);
});
