/** From the server's answer to what is drawn. Pure. */
import type { Column, History, Rows, Slice } from '../src/tensorView/messages';

export function bytesOf(base64: string): Uint8ClampedArray<ArrayBuffer> {
  const text = atob(base64);
  const bytes = new Uint8ClampedArray(text.length);
  for (let place = 0; place < text.length; place++) bytes[place] = text.charCodeAt(place);
  return bytes;
}

export function cellsOf(slice: Slice): Float32Array {
  return new Float32Array(bytesOf(slice.values).buffer);
}

/** The smallest and the largest finite number; both are 0 where there is none. */
export function spanOf(values: Iterable<number>): [number, number] {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (!Number.isFinite(value)) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  return low <= high ? [low, high] : [0, 0];
}

/** Viridis, at nine places. */
const SCALE: readonly (readonly [number, number, number])[] = [
  [68, 1, 84],
  [71, 44, 122],
  [59, 81, 139],
  [44, 113, 142],
  [33, 144, 141],
  [39, 173, 129],
  [92, 200, 99],
  [170, 220, 50],
  [253, 231, 37],
];
const NAN = [255, 0, 255] as const;
const ABOVE = [255, 60, 0] as const;
const BELOW = [0, 160, 255] as const;

/** The colour of a value between the extremes. NaN and infinities have colours of their own. */
export function colourOf(value: number, low: number, high: number): readonly [number, number, number] {
  if (Number.isNaN(value)) return NAN;
  if (value === Infinity) return ABOVE;
  if (value === -Infinity) return BELOW;
  const share = high > low ? (value - low) / (high - low) : 0.5;
  const place = Math.min(Math.max(share, 0), 1) * (SCALE.length - 1);
  const [one, other] = [SCALE[Math.floor(place)] ?? NAN, SCALE[Math.ceil(place)] ?? NAN];
  const rest = place - Math.floor(place);
  const mix = (at: 0 | 1 | 2): number => Math.round(one[at] + (other[at] - one[at]) * rest);
  return [mix(0), mix(1), mix(2)];
}

/** The pixels of a slice, one for each cell. */
export function heatmapOf(slice: Slice): Uint8ClampedArray<ArrayBuffer> {
  const cells = cellsOf(slice);
  const [low, high] = spanOf(cells);
  const pixels = new Uint8ClampedArray(4 * cells.length);
  cells.forEach((value, place) => {
    pixels.set([...colourOf(value, low, high), 255], 4 * place);
  });
  return pixels;
}

export function number(value: number | null | undefined): string {
  if (value === null || value === undefined) return '–';
  if (!Number.isFinite(value)) return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return String(value);
  return value.toPrecision(4).replace(/\.?0+(?=e|$)/, '');
}

/** The band of a deviation around the mean, for each row. */
export function bandOf(rows: Rows): { low: (number | null)[]; high: (number | null)[] } {
  const around = (sign: 1 | -1) =>
    rows.mean.map((mean, row) => {
      const std = rows.std[row];
      return mean === null || std === null || std === undefined ? null : mean + sign * std;
    });
  return { low: around(-1), high: around(1) };
}

/** Recorded numbers over steps, without those of which there is none. */
export interface Lines {
  steps: number[];
  lines: { name: string; values: Column }[];
}

/** None where nothing is recorded, or nothing so far. Where steps are unknown they are counted. */
export function linesOf(history: History | null | undefined): Lines | undefined {
  const { step = [], ...rest } = history ?? {};
  const lines = Object.entries(rest)
    .filter(([name, values]) => name !== 'optimizer_step' && values.some((value) => value !== null))
    .map(([name, values]) => ({ name: name.replaceAll('_', ' '), values }));
  return lines.length > 0 ? { steps: step.map((value, place) => value ?? place), lines } : undefined;
}
