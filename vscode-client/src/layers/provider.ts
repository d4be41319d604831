/** The Layers view's tree: items as VS Code shows them. */
import * as vscode from 'vscode';

import { layerBreakpoint } from './breakpoints';
import { callerOf, description, details, filterTree, forwardOf, placeOf, type LayerItem } from './model';

export const REVEAL = 'tensorpoint.layers.reveal';

export class LayersProvider implements vscode.TreeDataProvider<LayerItem>, vscode.Disposable {
  private readonly changed = new vscode.EventEmitter<void>();
  private roots: readonly LayerItem[] = [];
  private session = '';
  private fired: string | undefined;
  private current: string | undefined;
  private filter = '';
  private shown: Set<LayerItem> | undefined;

  readonly onDidChangeTreeData = this.changed.event;

  /** Show these; `session` keeps what is folded of one model apart from another's. */
  show(session: string, roots: readonly LayerItem[], fired?: LayerItem, current?: LayerItem): void {
    this.session = session;
    this.roots = roots;
    this.fired = fired?.key;
    this.current = current?.key;
    this.setFilter(this.filter);
  }

  setFilter(filter: string): void {
    this.filter = filter;
    this.shown = filter.trim() === '' ? undefined : filterTree(this.roots, filter);
    this.changed.fire();
  }

  /** Breakpoints have changed: the check boxes are read again. */
  update(): void {
    this.changed.fire();
  }

  getChildren(item?: LayerItem): LayerItem[] {
    const all = item === undefined ? this.roots : item.children;
    return all.filter((child) => this.shown?.has(child) ?? true);
  }

  getParent(item: LayerItem): LayerItem | undefined {
    return item.parent;
  }

  getTreeItem(item: LayerItem): vscode.TreeItem {
    const { None, Collapsed, Expanded } = vscode.TreeItemCollapsibleState;
    const isOpen = this.shown !== undefined || item.parent === undefined;
    const state = item.children.length === 0 ? None : isOpen ? Expanded : Collapsed;
    const shown = new vscode.TreeItem(item.name, state);
    // With a filter the whole tree is open; what was folded without it is kept apart.
    shown.id = `${this.session} ${this.shown === undefined ? '' : 'filtered '}${item.key}`;
    shown.description = description(item);
    shown.contextValue = [forwardOf(item) && 'forward', callerOf(item) && 'caller'].filter(Boolean).join(' ');
    shown.checkboxState = {
      state: layerBreakpoint(item.node.path)?.enabled
        ? vscode.TreeItemCheckboxState.Checked
        : vscode.TreeItemCheckboxState.Unchecked,
      tooltip: 'Stop when this layer is entered',
    };
    // A root has no path that a layer breakpoint could name.
    if (item.node.path === '') delete shown.checkboxState;
    if (item.key === this.fired)
      shown.iconPath = new vscode.ThemeIcon('flame', new vscode.ThemeColor('debugIcon.breakpointForeground'));
    if (item.key === this.current)
      shown.iconPath = new vscode.ThemeIcon('debug-stackframe', new vscode.ThemeColor('debugIcon.breakpointCurrentStackframeForeground'));
    if (placeOf(item) !== undefined) shown.command = { command: REVEAL, title: 'Go to Source', arguments: [item] };
    return shown;
  }

  resolveTreeItem(shown: vscode.TreeItem, item: LayerItem): vscode.TreeItem {
    const fired = item.key === this.fired ? '\n\nA tensorpoint fired here.' : '';
    const current = item.key === this.current ? '\n\nThe program stands here.' : '';
    shown.tooltip = new vscode.MarkdownString(details(item) + fired + current);
    return shown;
  }

  dispose(): void {
    this.changed.dispose();
  }
}
