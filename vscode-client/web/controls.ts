/** The boxes that choose what is shown: dimensions, and an index in each of the others. */
import type { Choice } from './choice';

/** One box for each dimension: rows, columns or an index. */
export function sliceControls(shape: readonly number[], choice: Choice, change: (choice: Choice) => void): HTMLElement {
  const form = controls('Which slice');
  if (shape.length > 1) {
    for (const [place, name] of ['rows', 'columns'].entries()) {
      form.append(
        select(name, shape.map((size, dim) => [dim, `dimension ${dim} (${size})`]), choice.dims[place] ?? 0, (dim) => {
          const dims = [...choice.dims];
          const other = dims.indexOf(dim);
          if (other >= 0) dims[other] = dims[place] ?? 0; // they change places
          dims[place] = dim;
          change({ ...choice, dims, index: choice.index.map(() => 0) });
        }),
      );
    }
  }
  const others = shape.flatMap((size, dim) => (choice.dims.includes(dim) ? [] : [{ size, dim }]));
  for (const [place, { size, dim }] of others.entries()) {
    form.append(
      box(`index in dimension ${dim}, 0 to ${size - 1}`, choice.index[place] ?? 0, size - 1, (value) => {
        const index = [...choice.index];
        index[place] = value;
        change({ ...choice, index });
      }),
    );
  }
  return form;
}

/** The box for the head of an attention. */
export function headControls(heads: number, choice: Choice, change: (choice: Choice) => void): HTMLElement {
  const form = controls('Which head');
  form.append(box(`head, 0 to ${heads - 1}`, choice.index[0] ?? 0, heads - 1, (head) => change({ ...choice, index: [head] })));
  return form;
}

export function rowControls(shape: readonly number[], choice: Choice, change: (choice: Choice) => void): HTMLElement {
  const form = controls('Which dimension');
  form.append(select('dimension', shape.map((size, dim) => [dim, `${dim} (${size})`]), choice.dim, (dim) => change({ ...choice, dim })));
  return form;
}

function controls(label: string): HTMLElement {
  const form = document.createElement('form');
  form.className = 'controls';
  form.setAttribute('aria-label', label);
  form.addEventListener('submit', (event) => event.preventDefault()); // Enter in its only box would leave the page
  return form;
}

function select(name: string, options: [number, string][], chosen: number, change: (value: number) => void): HTMLElement {
  const label = document.createElement('label');
  const input = document.createElement('select');
  for (const [value, text] of options) input.add(new Option(text, String(value), false, value === chosen));
  input.addEventListener('change', () => change(Number(input.value)));
  label.append(`${name} `, input);
  return label;
}

function box(name: string, value: number, max: number, change: (value: number) => void): HTMLElement {
  const label = document.createElement('label');
  const input = document.createElement('input');
  Object.assign(input, { type: 'number', min: '0', max: String(max), value: String(value) });
  input.addEventListener('change', () => {
    const wanted = Math.min(Math.max(Math.round(Number(input.value) || 0), 0), max);
    input.value = String(wanted);
    change(wanted);
  });
  label.append(`${name} `, input);
  return label;
}
