/** What of a tensor is shown. Pure. */
import { EVERYTHING, type Wanted } from '../src/tensorView/messages';

export interface Choice {
  dims: number[];
  index: number[];
  dim: number;
}

/** What is shown first: the last two dimensions, at the first index of the others. */
export function firstChoice(shape: readonly number[]): Choice {
  const count = shape.length;
  const dims = count > 1 ? [count - 2, count - 1] : count === 1 ? [0] : [];
  return { dims, index: Array.from({ length: Math.max(0, count - 2) }, () => 0), dim: Math.max(0, count - 2) };
}

/** Whether a choice is one of a tensor of this shape: its expression may be another one at the next stop. */
export function fits({ dims, index, dim }: Choice, shape: readonly number[]): boolean {
  const count = shape.length;
  if (dims.length !== Math.min(count, 2) || dim >= Math.max(count, 1) || dims.some((one) => one >= count)) return false;
  const others = shape.filter((_, one) => !dims.includes(one));
  return index.length === others.length && index.every((place, at) => place < (others[at] ?? 0));
}

export function wantedOf({ dims, index, dim }: Choice): Wanted {
  return { parts: EVERYTHING, ...(dims.length > 0 && { dims }), index, dim };
}
