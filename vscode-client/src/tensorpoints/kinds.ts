/** The tensorpoints that have a command of their own. */

export interface Kind {
  command: string;
  title: string;
  prompt: string;
  placeholder: string;
  /** The exception filter for whose condition box the input stands; "" for a whole condition. */
  filter: string;
  /** What an input box begins with. */
  value: string;
  /** What the user wrote, as the condition box takes it. */
  read: (text: string) => string;
}

const asIs = (text: string): string => text.trim();

/** A threshold may be a number alone: 10 is > 10. */
export function asThreshold(text: string): string {
  const trimmed = text.trim();
  return /^[\d.]/.test(trimmed) ? `> ${trimmed}` : trimmed;
}

export const KINDS: readonly Kind[] = [
  {
    command: 'tensorpoint.breakOnNonfinite',
    title: 'Break on NaN/Inf',
    prompt: 'Where: a module glob such as model.layers.*, or a condition',
    placeholder: '* (everywhere)',
    filter: 'nonfinite',
    value: '*',
    read: asIs,
  },
  {
    command: 'tensorpoint.breakOnGradientNorm',
    title: 'Break on Gradient Norm Above',
    prompt: 'A threshold, or one for some modules: "*.mlp.*" > 5',
    placeholder: '10',
    filter: 'grad_norm',
    value: '',
    read: asThreshold,
  },
  {
    command: 'tensorpoint.breakOnEntropyShift',
    title: 'Break on Attention Entropy Shift',
    prompt: 'How many standard deviations from the running mean, or for some modules: "*.attn" > 8',
    placeholder: '6',
    filter: 'entropy_shift',
    value: '6',
    read: asThreshold,
  },
  {
    command: 'tensorpoint.breakOnCondition',
    title: 'Break on Tensor Condition',
    prompt: 'A condition on tensors, or layer:PATH',
    placeholder: 'nonfinite("model.layers.*") and step > 100',
    filter: '',
    value: '',
    read: asIs,
  },
];
