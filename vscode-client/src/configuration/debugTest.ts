/** "Debug Test": a pytest function in the debugger, by a lens above it or from the palette. */
import * as path from 'node:path';
import * as vscode from 'vscode';

import { onDidChangeSetting, setting } from '../settings';
import { TYPE, type Configuration } from './complete';
import { isTestFile, testAt, testsIn } from './testTarget';

export const DEBUG_TEST = 'tensorpoint.debugTest';

export function registerDebugTest(): vscode.Disposable {
  const lenses = new Lenses();
  return vscode.Disposable.from(
    lenses,
    vscode.commands.registerCommand(DEBUG_TEST, debugTest),
    vscode.languages.registerCodeLensProvider({ language: 'python', scheme: 'file' }, lenses),
  );
}

class Lenses implements vscode.CodeLensProvider, vscode.Disposable {
  private readonly changed = new vscode.EventEmitter<void>();
  private readonly listening = onDidChangeSetting('debugTestCodeLens', () => this.changed.fire());
  readonly onDidChangeCodeLenses = this.changed.event;

  provideCodeLenses(document: vscode.TextDocument): vscode.CodeLens[] {
    if (!setting('debugTestCodeLens', document.uri) || !isTestFile(document.uri.path)) return [];
    return testsIn(document.getText()).map(
      ({ line, id }) =>
        new vscode.CodeLens(document.lineAt(line).range, {
          title: 'Debug Test with Tensorpoint',
          command: DEBUG_TEST,
          arguments: [document.uri, id],
        }),
    );
  }

  dispose(): void {
    this.listening.dispose();
    this.changed.dispose();
  }
}

/** Debug a test; without arguments the one at the cursor. */
async function debugTest(uri?: vscode.Uri, id?: string): Promise<void> {
  const editor = vscode.window.activeTextEditor;
  const file = uri ?? editor?.document.uri;
  const test = id ?? (editor && testAt(testsIn(editor.document.getText()), editor.selection.active.line)?.id);
  if (file === undefined || test === undefined) {
    void vscode.window.showInformationMessage('Tensorpoint: put the cursor into a pytest function.');
    return;
  }
  const folder = vscode.workspace.getWorkspaceFolder(file);
  await vscode.debug.startDebugging(folder, testConfiguration(folder, `${file.fsPath}::${test}`));
}

/** A configuration whose purpose is debug-test, if launch.json has one, else our own. */
function testConfiguration(folder: vscode.WorkspaceFolder | undefined, test: string): Configuration {
  const all = vscode.workspace.getConfiguration('launch', folder?.uri ?? null).get<Configuration[]>('configurations', []);
  const base = all.find(
    (config) => config.type === TYPE && Array.isArray(config.purpose) && config.purpose.includes('debug-test'),
  );
  const args = Array.isArray(base?.args) ? (base.args as string[]) : [];
  return {
    console: 'internalConsole',
    ...base,
    type: TYPE,
    request: 'launch',
    name: `Tensorpoint: ${test.split('::').slice(1).join('::')}`,
    module: 'pytest',
    cwd: base?.cwd ?? folder?.uri.fsPath ?? path.dirname(test.split('::', 1)[0] ?? ''),
    // What a test prints is shown as it comes.
    args: ['-s', ...args, test],
  };
}
