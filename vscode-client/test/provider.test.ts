import * as vscode from 'vscode';
import { beforeEach, describe, expect, it } from 'vitest';

import type { LayerNode } from '../src/debug/protocol';
import { setLayerBreakpoint } from '../src/layers/breakpoints';
import { buildTree, findItem, type LayerItem } from '../src/layers/model';
import { LayersProvider, REVEAL } from '../src/layers/provider';
import { editor } from './editor/vscode';

const node = (path: string, type: string, file: string | null = null): LayerNode => ({
  ...{ root: 0, path, type, parameters: 0, trainable: 0 },
  ...{ file, line: file === null ? null : 7 },
});
const layers = [node('', 'Net', '/p/net.py'), node('layers', 'ModuleList'), node('layers.0', 'Block', '/p/net.py'), node('head', 'Linear')];
const roots = buildTree(
  { version: 1, pid: 1, step: 3, optimizer_step: 3, roots: [{ type: 'Net', step: 3 }], layers, left_out: 0, note: null },
  undefined,
);
const item = (path: string): LayerItem => {
  const found = findItem(roots, path, layers.find((each) => each.path === path)?.type ?? '');
  if (found === undefined) throw new Error(`no ${path}`);
  return found;
};

let provider: LayersProvider;
beforeEach(() => {
  editor.reset();
  provider = new LayersProvider();
});

const shown = (of?: LayerItem): string[] => provider.getChildren(of).map((child) => child.name);
const checkbox = (path: string): unknown => (provider.getTreeItem(item(path)).checkboxState as { state: number } | undefined)?.state;

describe('the tree of layers', () => {
  it('has the roots, and below them what they have', () => {
    provider.show('s', roots);
    const root = item('');
    expect(provider.getChildren()).toEqual([root]);
    expect(provider.getTreeItem(root).collapsibleState).toBe(vscode.TreeItemCollapsibleState.Expanded);
    expect(shown(root)).toEqual(['layers', 'head']);
    expect(provider.getTreeItem(item('layers')).collapsibleState).toBe(vscode.TreeItemCollapsibleState.Collapsed);
    expect(provider.getTreeItem(item('head')).collapsibleState).toBe(vscode.TreeItemCollapsibleState.None);
    expect(provider.getParent(item('layers.0'))).toBe(item('layers'));
  });

  it('leaves with a filter what matches and what is around it, opened', () => {
    let changes = 0;
    provider.onDidChangeTreeData(() => changes++);
    provider.show('s', roots);
    const before = provider.getTreeItem(item('layers')).id;
    provider.setFilter('block');
    expect(changes).toBe(2);
    expect(shown(item(''))).toEqual(['layers']);
    const layers = provider.getTreeItem(item('layers'));
    expect(layers.collapsibleState).toBe(vscode.TreeItemCollapsibleState.Expanded);
    expect(layers.id).not.toBe(before);
    provider.setFilter('  ');
    expect(shown(item(''))).toEqual(['layers', 'head']);
  });

  it('marks where a tensorpoint fired and where the program stands, and says so', () => {
    provider.show('s', roots, item('head'), item('layers.0'));
    expect(provider.getTreeItem(item('head')).iconPath).toMatchObject({ id: 'flame' });
    expect(provider.getTreeItem(item('layers.0')).iconPath).toMatchObject({ id: 'debug-stackframe' });
    expect(provider.getTreeItem(item('layers')).iconPath).toBeUndefined();
    const tooltip = (path: string) => (provider.resolveTreeItem(provider.getTreeItem(item(path)), item(path)).tooltip as vscode.MarkdownString).value;
    expect(tooltip('head')).toContain('A tensorpoint fired here.');
    expect(tooltip('layers.0')).toContain('The program stands here.');
    expect(tooltip('layers')).not.toContain('here');
  });

  it('has boxes that are layer breakpoints, but for the root, which has no path', () => {
    provider.show('s', roots);
    const { Checked, Unchecked } = vscode.TreeItemCheckboxState;
    expect([checkbox(''), checkbox('head')]).toEqual([undefined, Unchecked]);
    setLayerBreakpoint('head', true);
    expect([checkbox('head'), checkbox('layers.0')]).toEqual([Checked, Unchecked]);
    setLayerBreakpoint('head', false);
    expect([checkbox('head'), editor.breakpoints]).toEqual([Unchecked, []]);
  });

  it('sets a breakpoint that was off with the condition that it had', () => {
    vscode.debug.addBreakpoints([new vscode.FunctionBreakpoint('layer:head', false, 'absmax() > 1')]);
    expect(checkbox('head')).toBe(vscode.TreeItemCheckboxState.Unchecked);
    setLayerBreakpoint('head', true);
    expect(editor.breakpoints).toEqual([new vscode.FunctionBreakpoint('layer:head', true, 'absmax() > 1')]);
  });

  it('goes to the source where there is one', () => {
    provider.show('s', roots);
    expect(provider.getTreeItem(item('layers.0')).command).toMatchObject({ command: REVEAL, arguments: [item('layers.0')] });
    expect(provider.getTreeItem(item('head')).command).toBeUndefined();
  });
});
