/** The tree of layers that the view shows, made from the server's answers. Pure. */
import type { Facts, LayerFacts, LayerNode, LayerTree, ParameterFacts } from '../debug/protocol';

export interface LayerItem {
  /** Unique among the items of a tree, and the same in the next one. */
  key: string;
  /** Below the parent; the class of a root. */
  name: string;
  node: LayerNode;
  parent: LayerItem | undefined;
  children: LayerItem[];
  facts: LayerFacts | undefined;
  /** Its own, not those below it. */
  parameters: ParameterFacts[];
}

export interface Place {
  file: string;
  line: number;
}

/** The items of the roots, with all others below them. */
export function buildTree(tree: LayerTree, facts: Facts | undefined): LayerItem[] {
  const items = new Map<string, LayerItem>();
  const roots: LayerItem[] = [];
  const { layerOf, parametersOf } = indexFacts(tree, facts);
  for (const node of tree.layers) {
    const key = keyOf(node.root, node.path);
    const parent = node.path === '' ? undefined : nearest(items, node);
    const below = parent === undefined || parent.node.path === '' ? 0 : parent.node.path.length + 1;
    const item: LayerItem = {
      key,
      name: node.path === '' ? node.type : node.path.slice(below),
      node,
      parent,
      children: [],
      facts: layerOf.get(key),
      parameters: parametersOf.get(key) ?? [],
    };
    items.set(key, item);
    (parent?.children ?? roots).push(item);
  }
  return roots;
}

/** The items to show for a filter: those whose path or class has it, with all around and below them. */
export function filterTree(roots: readonly LayerItem[], filter: string): Set<LayerItem> {
  const wanted = filter.trim().toLowerCase();
  const shown = new Set<LayerItem>();
  const visit = (item: LayerItem, isInside: boolean): boolean => {
    const matches = isInside || `${item.node.path} ${item.node.type}`.toLowerCase().includes(wanted);
    const below = item.children.map((child) => visit(child, matches && item.node.path !== ''));
    if (!matches && !below.includes(true)) return false;
    shown.add(item);
    return true;
  };
  for (const root of roots) visit(root, false);
  return shown;
}

/** The item of a module, for marks: in the root that it was found in first. */
export function findItem(roots: readonly LayerItem[], path: string, type: string): LayerItem | undefined {
  for (const root of roots) {
    const pending = [root];
    for (let item = pending.pop(); item !== undefined; item = pending.pop()) {
      if (item.node.path === path && item.node.type === type) return item;
      pending.push(...item.children);
    }
  }
  return undefined;
}

/** Where a click leads: its own forward; a layer of torch's to the line that calls it. */
export function placeOf(item: LayerItem): Place | undefined {
  return forwardOf(item) ?? callerOf(item);
}

export function forwardOf({ node }: LayerItem): Place | undefined {
  return node.file === null || node.line === null ? undefined : { file: node.file, line: node.line };
}

export function callerOf({ facts }: LayerItem): Place | undefined {
  return facts === undefined || facts.file === null || facts.line === null
    ? undefined
    : { file: facts.file, line: facts.line };
}

/** What stands beside the name: class, output, size, gradient. */
export function description(item: LayerItem): string {
  const output = item.facts?.outputs[0];
  const parts = [
    item.node.path === '' ? undefined : item.node.type,
    output && shape(output),
    item.node.parameters > 0 ? count(item.node.parameters) : undefined,
    gradient(item),
  ];
  return parts.filter((part) => part !== undefined).join(' · ');
}

/** All that is known of it, as lines of Markdown. */
export function details(item: LayerItem): string {
  const { node, facts } = item;
  const lines = [`**${node.path || '(root)'}** ${node.type}`, '', sizes(node)];
  if (facts !== undefined) {
    lines.push(...facts.outputs.map((output) => `${output.name}: \`${shape(output)}\` on ${output.device}`));
    const numbers = facts.statistics;
    if (numbers !== null)
      lines.push(
        `mean ${number(numbers.mean)}, std ${number(numbers.std)}, ` +
          `from ${number(numbers.min)} to ${number(numbers.max)}, ` +
          `${percent(numbers.zero_fraction)} zero, ${percent(numbers.nonfinite_fraction)} not finite`,
      );
    if (facts.step !== null) lines.push(`last called in step ${facts.step}`);
  }
  for (const parameter of item.parameters) {
    const name = parameter.parameter.split('.').at(-1) ?? parameter.parameter;
    const norm = parameter.gradient_finite === false ? 'not finite' : number(parameter.gradient_norm);
    lines.push(`${name}: \`${shape(parameter)}\`, norm ${number(parameter.norm)}, gradient norm ${norm}`);
  }
  return lines.join('  \n');
}

function indexFacts(
  tree: LayerTree,
  facts: Facts | undefined,
): { layerOf: Map<string, LayerFacts>; parametersOf: Map<string, ParameterFacts[]> } {
  const layerOf = new Map<string, LayerFacts>();
  const parametersOf = new Map<string, ParameterFacts[]>();
  if (facts === undefined) return { layerOf, parametersOf };
  // Both lists of roots leave out some that the other has; classes are in the same order in both.
  const rootOf = matchRoots(tree, facts);
  for (const layer of facts.layers) {
    const root = rootOf[layer.root];
    if (root !== undefined) layerOf.set(keyOf(root, layer.module), layer);
  }
  for (const parameter of facts.parameters) {
    const root = parameter.root === null ? undefined : rootOf[parameter.root];
    if (root === undefined) continue;
    const key = keyOf(root, parameter.parameter.split('.').slice(0, -1).join('.'));
    parametersOf.set(key, [...(parametersOf.get(key) ?? []), parameter]);
  }
  return { layerOf, parametersOf };
}

/** For each root of the facts its position in the tree's roots. */
function matchRoots(tree: LayerTree, facts: Facts): (number | undefined)[] {
  const taken = new Set<number>();
  return facts.roots.map((root) => {
    if (root.gone) return undefined;
    const found = tree.roots.findIndex(
      (candidate, position) => candidate.type === root.module_type && !taken.has(position),
    );
    if (found < 0) return undefined;
    taken.add(found);
    return found;
  });
}

function nearest(items: ReadonlyMap<string, LayerItem>, node: LayerNode): LayerItem | undefined {
  const parts = node.path.split('.');
  for (let length = parts.length - 1; length >= 0; length--) {
    const found = items.get(keyOf(node.root, parts.slice(0, length).join('.')));
    if (found !== undefined) return found;
  }
  return undefined;
}

function keyOf(root: number, path: string): string {
  return `${root}:${path}`;
}

function gradient(item: LayerItem): string | undefined {
  if (item.parameters.some((parameter) => parameter.gradient_finite === false)) return '∇ not finite';
  const norms = item.parameters.flatMap(({ gradient_norm }) => (gradient_norm === null ? [] : [gradient_norm]));
  return norms.length === 0 ? undefined : `∇ ${number(Math.hypot(...norms))}`;
}

function sizes(node: LayerNode): string {
  if (node.parameters === 0) return 'no parameters';
  const frozen = node.parameters - node.trainable;
  return `${node.parameters.toLocaleString('en')} parameters${frozen === 0 ? '' : `, ${frozen.toLocaleString('en')} frozen`}`;
}

function shape(tensor: { dtype: string; shape: number[] }): string {
  return `${tensor.dtype}[${tensor.shape.join(', ')}]`;
}

/** 1,234,567 as 1.2M. */
export function count(value: number): string {
  const units = ['', 'K', 'M', 'B', 'T'];
  const power = Math.min(Math.floor(Math.log10(Math.max(value, 1)) / 3), units.length - 1);
  const scaled = value / 1000 ** power;
  return `${power > 0 && scaled < 100 ? scaled.toFixed(1) : Math.round(scaled)}${units[power] ?? ''}`;
}

function number(value: number | null): string {
  return value === null ? '?' : String(Number(value.toPrecision(4)));
}

function percent(value: number): string {
  return `${(100 * value).toFixed(1)} %`;
}
