/**
 * The tensor view: pictures of a value, in a panel of its own beside the editor.
 *
 * It shows the value that was chosen, and at later stops what its expression is there. The pictures
 * are made small in the program; the page draws them.
 */
import type { DebugProtocol } from '@vscode/debugprotocol';
import * as vscode from 'vscode';

import type { SessionState, Sessions } from '../debug/sessions';
import { EVERYTHING, type TensorBody, type ToExtension, type ToPage, type Wanted } from './messages';
import { pageOf } from './page';

/** What VS Code gives a command in the context menu of a variable. */
export interface ChosenVariable {
  sessionId?: string;
  container?: { variablesReference?: number };
  variable: DebugProtocol.Variable;
}

export function registerTensorView(
  context: vscode.ExtensionContext,
  sessions: Sessions,
  log: vscode.LogOutputChannel,
): vscode.Disposable {
  const panels = new Map<string, TensorPanel>();
  const show = (state: SessionState, name: string, reference: number | undefined): void => {
    const key = `${state.session.id} ${name}`;
    const known = panels.get(key);
    if (known !== undefined) {
      known.reveal(reference);
      return;
    }
    const panel = new TensorPanel(context.extensionUri, state, name, reference, log);
    panels.set(key, panel);
    panel.onDidDispose(() => panels.delete(key));
  };
  return vscode.Disposable.from(
    vscode.commands.registerCommand('tensorpoint.viewTensor', async (chosen?: ChosenVariable) => {
      const state = sessions.all.find(({ session }) => session.id === chosen?.sessionId) ?? sessions.active;
      if (state?.stopped !== true) {
        void vscode.window.showInformationMessage('Tensorpoint: a tensor can be viewed while a program is paused.');
        return;
      }
      const variable = chosen?.variable;
      const name = variable?.evaluateName ?? variable?.name ?? (await askExpression());
      if (name !== undefined) show(state, name, variable?.variablesReference);
    }),
    sessions.onDidChange((state) => {
      for (const panel of panels.values()) panel.follow(state);
    }),
  );
}

/** What is selected in the editor, or what the user writes. */
async function askExpression(): Promise<string | undefined> {
  const editor = vscode.window.activeTextEditor;
  const selected = editor?.document.getText(editor.selection).trim();
  return await vscode.window.showInputBox({
    title: 'View Tensor',
    prompt: 'An expression in the paused frame',
    value: selected ?? '',
    validateInput: (text) => (text.trim() === '' ? 'Write an expression, such as self.fc1.weight' : undefined),
  });
}

class TensorPanel {
  private readonly panel: vscode.WebviewPanel;
  private wanted: Wanted = { parts: EVERYTHING };
  /** What was shown last; a page that was hidden begins anew. */
  private shown: TensorBody | undefined;
  readonly onDidDispose: vscode.Event<void>;

  constructor(
    root: vscode.Uri,
    private readonly state: SessionState,
    private readonly name: string,
    /** Of this stop; the expression counts at the next one. */
    private reference: number | undefined,
    private readonly log: vscode.LogOutputChannel,
  ) {
    const assets = vscode.Uri.joinPath(root, 'dist', 'web');
    this.panel = vscode.window.createWebviewPanel(
      'tensorpoint.tensor',
      name,
      { viewColumn: vscode.ViewColumn.Beside, preserveFocus: false },
      { enableScripts: true, localResourceRoots: [assets] },
    );
    this.panel.webview.html = pageOf(this.panel.webview, assets, name);
    this.onDidDispose = this.panel.onDidDispose;
    this.panel.webview.onDidReceiveMessage((message: ToExtension) => {
      this.wanted = message.wanted;
      if (this.state.stopped) void this.send();
      else this.showLast();
    });
  }

  reveal(reference: number | undefined): void {
    this.reference = reference;
    this.panel.reveal();
    void this.send();
  }

  /** The session went on, stopped again or ended. */
  follow(state: SessionState): void {
    if (state !== this.state) return;
    if (!state.stopped) {
      this.reference = undefined;
      this.wait();
    } else if (this.reference === undefined) {
      void this.send();
    }
  }

  /** The page asks while the program runs: it gets what it had. */
  private showLast(): void {
    if (this.shown !== undefined) this.post({ type: 'tensor', body: this.shown });
    this.wait();
  }

  private wait(): void {
    this.post({ type: 'waiting', text: this.state.running ? 'The program runs.' : 'The program has ended.' });
  }

  private async send(): Promise<void> {
    if (!this.state.stopped) return;
    try {
      const body = (await this.state.session.customRequest('tensorpoint/tensor', {
        ...this.value(),
        ...this.wanted,
      })) as TensorBody;
      this.shown = body;
      this.post({ type: 'tensor', body });
    } catch (error) {
      this.log.debug(`the tensor ${this.name}: ${String(error)}`);
      this.post({ type: 'failed', text: error instanceof Error ? error.message : String(error) });
    }
  }

  private value(): { variablesReference: number } | { expression: string; frameId: number } {
    if (this.reference !== undefined && this.reference > 0) return { variablesReference: this.reference };
    const item = vscode.debug.activeStackItem;
    const frame = item instanceof vscode.DebugStackFrame && item.session.id === this.state.session.id ? item.frameId : 0;
    return { expression: this.name, frameId: frame };
  }

  private post(message: ToPage): void {
    void this.panel.webview.postMessage(message);
  }
}
