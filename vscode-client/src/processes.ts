/** What configurations ask for with `${command:pickProcess}` and `${command:pickArgs}`. */
import * as vscode from 'vscode';

import { parseProcesses } from './processList';
import { run } from './python/run';

export function registerPickers(state: vscode.Memento): vscode.Disposable {
  return vscode.Disposable.from(
    vscode.commands.registerCommand('tensorpoint.pickProcess', pickProcess),
    vscode.commands.registerCommand('tensorpoint.pickArgs', () => pickArgs(state)),
  );
}

interface ProcessItem extends vscode.QuickPickItem {
  pid: string;
}

async function pickProcess(): Promise<string | undefined> {
  const listing = await run('ps', ['-axww', '-o', 'pid=,args=']);
  if (listing.status !== 0) {
    void vscode.window.showErrorMessage(
      `Tensorpoint: the processes can't be listed by ps (${listing.stderr.trim() || 'no answer'}). Write the number into "processId".`,
    );
    return undefined;
  }
  const items: ProcessItem[] = parseProcesses(listing.stdout).map(({ pid, command }) => ({
    label: command.split(' ').slice(0, 3).join(' '),
    description: pid,
    detail: command,
    pid,
  }));
  const chosen = await vscode.window.showQuickPick(items, {
    placeHolder: 'The process to attach to',
    matchOnDescription: true,
    matchOnDetail: true,
  });
  return chosen?.pid;
}

async function pickArgs(state: vscode.Memento): Promise<string | undefined> {
  const last = state.get<string>('args', '');
  const entered = await vscode.window.showInputBox({
    title: 'Arguments of the program',
    value: last,
    ignoreFocusOut: true,
  });
  if (entered !== undefined) await state.update('args', entered);
  return entered;
}
