import { describe, expect, it } from 'vitest';

import type { Facts, LayerFacts, LayerNode, LayerTree, ParameterFacts } from '../src/debug/protocol';
import {
  buildTree,
  callerOf,
  count,
  description,
  details,
  filterTree,
  findItem,
  placeOf,
  type LayerItem,
} from '../src/layers/model';

const node = (path: string, type: string, rest: Partial<LayerNode> = {}): LayerNode => ({
  root: 0,
  path,
  type,
  parameters: 0,
  trainable: 0,
  file: null,
  line: null,
  ...rest,
});
const tree = (layers: LayerNode[], types = ['Net']): LayerTree => ({
  version: 1,
  pid: 1,
  step: 3,
  optimizer_step: 3,
  roots: types.map((type) => ({ type, step: 3 })),
  layers,
  left_out: 0,
  note: null,
});
const NET = tree([
  node('', 'Net', { parameters: 1500, trainable: 1000, file: '/p/net.py', line: 7 }),
  node('layers', 'ModuleList', { parameters: 1500, trainable: 1000 }),
  node('layers.0', 'Block', { parameters: 500, file: '/p/net.py', line: 30 }),
  node('layers.0.fc', 'Linear', { parameters: 500 }),
  node('layers.1', 'Block', { parameters: 1000, trainable: 1000 }),
  node('head', 'Linear'),
]);
const layerFacts = (module: string, rest: Partial<LayerFacts> = {}): LayerFacts => ({
  module,
  module_type: '?',
  root: 0,
  step: 3,
  file: '/p/net.py',
  line: 31,
  outputs: [{ name: 'output', dtype: 'float32', shape: [2, 8], device: 'cpu' }],
  statistics: { mean: 0.5, std: 1, min: null, max: 2, zero_fraction: 0.25, nonfinite_fraction: 0 },
  ...rest,
});
const parameterFacts = (parameter: string, rest: Partial<ParameterFacts> = {}): ParameterFacts => ({
  parameter,
  root: 0,
  dtype: 'float32',
  shape: [8, 8],
  gradient_norm: 3,
  gradient_finite: true,
  age: 0,
  norm: 5,
  ...rest,
});
const FACTS: Facts = {
  step: 3,
  roots: [{ module_type: 'Net', step: 3, gone: false }],
  layers: [layerFacts('layers.0.fc')],
  parameters: [parameterFacts('layers.0.fc.weight'), parameterFacts('layers.0.fc.bias', { gradient_norm: 4 })],
};

function names(items: readonly LayerItem[]): unknown[] {
  return items.map((item) => (item.children.length === 0 ? item.name : [item.name, ...names(item.children)]));
}

function find(roots: LayerItem[], path: string, type: string): LayerItem {
  const found = findItem(roots, path, type);
  if (found === undefined) throw new Error(`no ${path}`);
  return found;
}

describe('the tree', () => {
  it('is that of the paths', () => {
    expect(names(buildTree(NET, undefined))).toEqual([['Net', ['layers', ['0', 'fc'], '1'], 'head']]);
  });

  it('puts a module below the nearest that is listed', () => {
    const roots = buildTree(tree([node('', 'Net'), node('a.b.c', 'Linear')]), undefined);
    expect(names(roots)).toEqual([['Net', 'a.b.c']]);
  });

  it('keeps roots apart', () => {
    const two = tree([node('', 'Net'), node('a', 'X'), node('', 'Critic', { root: 1 }), node('a', 'Y', { root: 1 })], ['Net', 'Critic']);
    const roots = buildTree(two, undefined);
    expect(names(roots)).toEqual([['Net', 'a'], ['Critic', 'a']]);
    expect(findItem(roots, 'a', 'Y')?.parent?.name).toBe('Critic');
  });

  it('takes 20,000 modules in less than a second', () => {
    const many = [node('', 'Net')];
    for (let i = 0; i < 200; i++) {
      many.push(node(`l.${i}`, 'Block'));
      for (let j = 0; j < 100; j++) many.push(node(`l.${i}.m.${j}`, 'Linear'));
    }
    const began = performance.now();
    const roots = buildTree(tree(many), FACTS);
    filterTree(roots, 'l.77.m.3');
    expect(performance.now() - began).toBeLessThan(1000);
  });
});

describe('facts', () => {
  const fc = find(buildTree(NET, FACTS), 'layers.0.fc', 'Linear');

  it('are shown beside the name', () => {
    expect(description(fc)).toBe('Linear · float32[2, 8] · 500 · ∇ 5');
  });

  it('say when a gradient is not finite', () => {
    const parameters = [parameterFacts('head.weight', { gradient_norm: null, gradient_finite: false })];
    const head = find(buildTree(NET, { ...FACTS, parameters }), 'head', 'Linear');
    expect(description(head)).toBe('Linear · ∇ not finite');
  });

  it('are all in the details', () => {
    const text = details(fc);
    expect(text).toContain('**layers.0.fc** Linear');
    expect(text).toContain('mean 0.5, std 1, from ? to 2, 25.0 % zero, 0.0 % not finite');
    expect(text).toContain('weight: `float32[8, 8]`, norm 5, gradient norm 3');
  });

  it('of another order of roots find theirs, those of a root that is gone find none', () => {
    const two = tree([node('', 'Net'), node('', 'Critic', { root: 1 })], ['Net', 'Critic']);
    const facts = {
      ...FACTS,
      roots: [
        { module_type: 'Critic', step: 1, gone: false },
        { module_type: 'Net', step: 1, gone: true },
      ],
      layers: [layerFacts(''), layerFacts('', { root: 1 })],
      parameters: [],
    };
    const roots = buildTree(two, facts);
    expect(roots.map((root) => root.facts?.root)).toEqual([undefined, 0]);
  });

  it('are not needed', () => {
    const roots = buildTree(NET, undefined);
    expect(description(find(roots, 'layers.0', 'Block'))).toBe('Block · 500');
    expect(details(find(roots, 'layers.0', 'Block'))).toContain('500 parameters, 500 frozen');
    expect(description(find(roots, '', 'Net'))).toBe('1.5K');
  });
});

describe('a click leads to', () => {
  const roots = buildTree(NET, FACTS);

  it('the forward of a class of your own', () => {
    expect(placeOf(find(roots, 'layers.0', 'Block'))).toEqual({ file: '/p/net.py', line: 30 });
  });

  it("the line that calls a layer of torch's", () => {
    const fc = find(roots, 'layers.0.fc', 'Linear');
    expect(placeOf(fc)).toEqual({ file: '/p/net.py', line: 31 });
    expect(placeOf(fc)).toEqual(callerOf(fc));
  });

  it('nowhere if nothing is known', () => {
    expect(placeOf(find(roots, 'head', 'Linear'))).toBeUndefined();
  });
});

describe('the filter', () => {
  const roots = buildTree(NET, FACTS);
  const shown = (filter: string) => [...filterTree(roots, filter)].map((item) => item.node.path).sort();

  it('keeps what matches by path or class, and what is around and below it', () => {
    expect(shown('layers.0')).toEqual(['', 'layers', 'layers.0', 'layers.0.fc']);
    expect(shown('LINEAR')).toEqual(['', 'head', 'layers', 'layers.0', 'layers.0.fc']);
  });

  it('keeps nothing if nothing matches', () => {
    expect(shown('attention')).toEqual([]);
  });

  it('does not take the class of the root for all that is in it', () => {
    expect(shown('net')).toEqual(['']);
  });
});

it.each([
  [0, '0'],
  [999, '999'],
  [1234, '1.2K'],
  [124_439_808, '124M'],
  [8_030_261_248, '8.0B'],
])('%i is shown as %s', (value, expected) => {
  expect(count(value)).toBe(expected);
});
