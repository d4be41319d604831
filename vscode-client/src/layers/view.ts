/**
 * The Layers view: when it asks the server, and what its commands do.
 *
 * It asks when the program stops, when it comes into sight, and now and then while the program runs;
 * never while it is out of sight. Facts are recorded only as long as it is in sight.
 */
import * as vscode from 'vscode';

import type { Facts, LayerTree } from '../debug/protocol';
import type { Sessions, SessionState } from '../debug/sessions';
import { setting } from '../settings';
import { setLayerBreakpoint } from './breakpoints';
import { buildTree, callerOf, findItem, forwardOf, placeOf, type LayerItem, type Place } from './model';
import { LayersProvider, REVEAL } from './provider';

const VIEW = 'tensorpoint.layers';
/** How often the numbers of a running program are read. */
const POLL_MS = 5000;

export class LayersView implements vscode.Disposable {
  private readonly provider = new LayersProvider();
  private readonly view = vscode.window.createTreeView<LayerItem>(VIEW, {
    treeDataProvider: this.provider,
    manageCheckboxStateManually: true,
    showCollapseAll: true,
  });
  private readonly polling: NodeJS.Timeout;
  private readonly subscriptions: vscode.Disposable[];
  /** The sessions that record facts because of us. */
  private readonly recording = new Set<SessionState>();
  private reading: Promise<void> | undefined;
  private isStale = false;
  private filter = '';

  constructor(
    private readonly sessions: Sessions,
    private readonly log: vscode.LogOutputChannel,
  ) {
    this.polling = setInterval(() => {
      if (sessions.active?.stopped === false) this.refresh();
    }, POLL_MS);
    this.subscriptions = [
      this.provider,
      this.view,
      sessions.onDidChange((state) => this.onSession(state)),
      vscode.debug.onDidChangeActiveDebugSession(() => this.refresh()),
      vscode.debug.onDidChangeBreakpoints(() => this.provider.update()),
      this.view.onDidChangeVisibility(() => (this.view.visible ? this.refresh() : void this.stopRecording())),
      this.view.onDidChangeCheckboxState(({ items }) => {
        for (const [item, state] of items)
          setLayerBreakpoint(item.node.path, state === vscode.TreeItemCheckboxState.Checked);
      }),
      command('refresh', () => this.refresh()),
      command('filter', () => this.askFilter()),
      command('clearFilter', () => this.setFilter('')),
      vscode.commands.registerCommand(REVEAL, (item: LayerItem) => reveal(placeOf(item))),
      command('revealForward', (item?: LayerItem) => reveal(item && forwardOf(item))),
      command('revealCaller', (item?: LayerItem) => reveal(item && callerOf(item))),
      command('copyPath', (item?: LayerItem) => vscode.env.clipboard.writeText(item?.node.path ?? '')),
    ];
  }

  dispose(): void {
    clearInterval(this.polling);
    for (const subscription of this.subscriptions) subscription.dispose();
  }

  private onSession(state: SessionState): void {
    if (!state.running) this.recording.delete(state);
    if (state.stopped || !state.running) this.refresh();
  }

  /** Read again; at most one reading runs, and one follows if something changed meanwhile. */
  private refresh(): void {
    if (!this.view.visible) return;
    if (this.reading !== undefined) {
      this.isStale = true;
      return;
    }
    this.reading = this.read().finally(() => {
      this.reading = undefined;
      if (!this.isStale) return;
      this.isStale = false;
      this.refresh();
    });
  }

  private async read(): Promise<void> {
    const state = this.sessions.active;
    if (state?.running !== true) {
      this.provider.show('', []);
      this.view.message = '';
      return;
    }
    try {
      const tree = (await state.session.customRequest('tensorpoint/layers')) as LayerTree;
      const roots = buildTree(tree, await this.facts(state));
      const fired = state.stop && findItem(roots, state.stop.module, state.stop.module_type);
      const current = state.layer && findItem(roots, state.layer.module, state.layer.module_type);
      this.provider.show(`${state.session.id} ${tree.pid}`, roots, fired, current);
      this.view.message = this.message(tree);
      const marked = current ?? fired;
      if (marked !== undefined) await this.view.reveal(marked, { select: true });
    } catch (error) {
      // Without debugging there is no agent to ask; or the session ends just now.
      this.log.debug(`the layers: ${String(error)}`);
      this.provider.show('', []);
    }
  }

  private async facts(state: SessionState): Promise<Facts> {
    const wants = setting('layers.recordFacts', state.session.workspaceFolder?.uri);
    if (wants) this.recording.add(state);
    // Without `record` it fails where nobody records; what there is, is shown all the same.
    const request = wants ? { record: true } : {};
    try {
      return (await state.session.customRequest('tensorpoint/facts', request)) as Facts;
    } catch (error) {
      this.log.debug(`the facts: ${String(error)}`);
      return { step: null, roots: [], layers: [], parameters: [] };
    }
  }

  private async stopRecording(): Promise<void> {
    const states = [...this.recording];
    this.recording.clear();
    for (const { session } of states)
      try {
        await session.customRequest('tensorpoint/facts', { record: false });
      } catch (error) {
        this.log.debug(`the facts: ${String(error)}`);
      }
  }

  private message(tree: LayerTree): string {
    const lines = [
      tree.note ?? undefined,
      tree.left_out > 0 ? `${tree.left_out} more modules are not shown` : undefined,
      this.filter === '' ? undefined : `Filter: ${this.filter}`,
    ];
    return lines.filter((line) => line !== undefined).join('\n');
  }

  private askFilter(): void {
    const before = this.filter;
    const box = vscode.window.createInputBox();
    box.title = 'Filter Layers';
    box.placeholder = 'Part of a path or of a class, such as mlp or Linear';
    box.value = before;
    let isAccepted = false;
    box.onDidChangeValue((value) => this.setFilter(value));
    box.onDidAccept(() => {
      isAccepted = true;
      box.hide();
    });
    box.onDidHide(() => {
      if (!isAccepted) this.setFilter(before);
      box.dispose();
    });
    box.show();
  }

  private setFilter(filter: string): void {
    this.filter = filter;
    this.provider.setFilter(filter);
    this.view.message = filter === '' ? '' : `Filter: ${filter}`;
    void vscode.commands.executeCommand('setContext', 'tensorpoint.layersFiltered', filter !== '');
  }
}

function command(name: string, act: (item?: LayerItem) => unknown): vscode.Disposable {
  return vscode.commands.registerCommand(`${VIEW}.${name}`, act);
}

async function reveal(place: Place | undefined): Promise<void> {
  if (place === undefined) return;
  const document = await vscode.workspace.openTextDocument(place.file);
  const position = new vscode.Position(place.line - 1, 0);
  await vscode.window.showTextDocument(document, { selection: new vscode.Range(position, position), preview: true });
}
