/** What we say to the server beside DAP's own messages; docs/vscode.md and docs/facts.md describe it. */

export interface TensorpointInfo {
  number: number;
  text: string;
  source: 'filter' | 'function' | 'data' | 'launch' | 'console';
}

/** Answer of `tensorpoint/status`. */
export interface Status {
  tensorpoints: TensorpointInfo[];
  recording: boolean;
  step: number | null;
  optimizer_step: number | null;
}

/** Arguments of `tensorpoint/check`. */
export interface CheckRequest {
  condition: string;
  filter?: string;
}

/** Answer of `tensorpoint/check`. */
export type CheckAnswer = { verified: true; condition: string } | { verified: false; message: string };

export interface LayerNode {
  root: number;
  path: string;
  type: string;
  parameters: number;
  trainable: number;
  file: string | null;
  line: number | null;
}

/** Answer of `tensorpoint/layers`. */
export interface LayerTree {
  version: number;
  pid: number;
  step: number | null;
  optimizer_step: number;
  roots: { type: string; step: number | null }[];
  layers: LayerNode[];
  left_out: number;
  note: string | null;
}

export interface Statistics {
  mean: number | null;
  std: number | null;
  min: number | null;
  max: number | null;
  zero_fraction: number;
  nonfinite_fraction: number;
}

export interface LayerFacts {
  module: string;
  module_type: string;
  root: number;
  step: number | null;
  file: string | null;
  line: number | null;
  outputs: { name: string; dtype: string; shape: number[]; device: string }[];
  statistics: Statistics | null;
}

export interface ParameterFacts {
  parameter: string;
  root: number | null;
  dtype: string;
  shape: number[];
  gradient_norm: number | null;
  gradient_finite: boolean | null;
  age: number | null;
  norm: number | null;
}

/** Answer of `tensorpoint/facts`, as far as it is shown. */
export interface Facts {
  step: number | null;
  roots: { module_type: string; step: number | null; gone: boolean }[];
  layers: LayerFacts[];
  parameters: ParameterFacts[];
}

/** What a `stopped` event carries where a step by layers has ended. */
export interface LayerPosition {
  module: string;
  module_type: string;
  phase: string;
}

/** What a `stopped` event carries where a tensorpoint fired. */
export interface Stop {
  tensorpoint: number;
  condition: string;
  event: string;
  module: string;
  module_type: string;
  step: number | null;
  description: string;
}
