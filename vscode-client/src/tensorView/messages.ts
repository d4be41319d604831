/** What the tensor view's page and the extension say to each other, and the server's answer. Pure. */

/** Arguments of `tensorpoint/tensor`, but for the value itself. */
export interface Wanted {
  parts: readonly Part[];
  dims?: number[];
  index?: number[];
  dim?: number;
}

export type Part = 'figures' | 'slice' | 'image' | 'rows' | 'history' | 'attention';

export const EVERYTHING: readonly Part[] = ['figures', 'slice', 'image', 'rows', 'history', 'attention'];

/** Why there is no such picture. */
export interface Note {
  note: string;
}

export interface Figures {
  elements: number;
  looked_at: number;
  finite: number;
  mean: number | null;
  std: number | null;
  low: number | null;
  high: number | null;
  zeros: number;
  nan: number;
  posinf: number;
  neginf: number;
  of: string;
  quantiles: number[];
  shares: number[];
  histogram: number[];
}

/** A 2-D slice made small: `values` are `cells` float32 in base64, with NaN and infinities. */
export interface Slice {
  dims: number[];
  index: number[];
  size: [number, number];
  cells: [number, number];
  /** Elements that a cell stands for. */
  step: [number, number];
  values: string;
}

/** The attention weights of one head of a module's newest call, from queries to keys. */
export interface AttentionMap extends Slice {
  heads: number;
}

/** `rgba` are `pixels` of four bytes in base64; what is not finite is magenta. */
export interface Picture {
  index: number[];
  size: [number, number];
  pixels: [number, number];
  rgba: string;
}

export type Column = (number | null)[];

export interface Rows {
  dim: number;
  rows: number;
  mean: Column;
  std: Column;
  min: Column;
  max: Column;
  nonfinite: Column;
}

/** Numbers of the last steps, by name; `step` is one of them. */
export type History = Record<string, Column>;

/** Answer of `tensorpoint/tensor`. */
export interface TensorBody {
  line: string;
  shape?: (number | string)[] | null;
  dtype?: string;
  device?: string;
  elements?: number;
  figures?: Figures | Note;
  slice?: Slice | Note;
  image?: Picture | Note;
  rows?: Rows | Note;
  history?: History | null;
  /** Of a module that attends. */
  attention?: AttentionMap | Note;
}

export type ToPage =
  | { type: 'tensor'; body: TensorBody }
  | { type: 'waiting'; text: string }
  | { type: 'failed'; text: string };

export interface ToExtension {
  type: 'ask';
  wanted: Wanted;
}

export function isNote(part: object | null | undefined): part is Note {
  return part !== null && part !== undefined && 'note' in part;
}
