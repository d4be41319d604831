/** Which interpreter: a configuration's, the Python extension's, the setting's, or python3. */
import { PythonExtension } from '@vscode/python-extension';
import * as os from 'node:os';
import * as path from 'node:path';
import * as vscode from 'vscode';

import { setting } from '../settings';

const FALLBACK = process.platform === 'win32' ? 'python' : 'python3';
const PYTHON_EXTENSION = 'ms-python.python';

export interface Interpreter {
  command: string;
  /** Where its name comes from, for messages. */
  source: 'configuration' | 'Python extension' | 'setting' | 'default';
}

/** For programs of this folder, where their configuration names none. */
export async function selectedInterpreter(
  scope: vscode.Uri | undefined,
  log: vscode.LogOutputChannel,
): Promise<Interpreter> {
  const selected = await ofPythonExtension(scope, log);
  if (selected !== undefined) return { command: selected, source: 'Python extension' };
  const set = setting('python', scope).trim();
  if (set !== '') return { command: expandPath(set, folderOf(scope)), source: 'setting' };
  return { command: FALLBACK, source: 'default' };
}

/** Hear of another choice in the Python extension, where there is one. */
export function onDidSelectInterpreter(act: () => void, log: vscode.LogOutputChannel): vscode.Disposable {
  const subscriptions: vscode.Disposable[] = [];
  const subscribe = async () => {
    if (vscode.extensions.getExtension(PYTHON_EXTENSION) === undefined) return;
    try {
      const { environments } = await PythonExtension.api();
      subscriptions.push(environments.onDidChangeActiveEnvironmentPath(act));
    } catch (error) {
      log.warn(`the Python extension will not say when another interpreter is selected: ${String(error)}`);
    }
  };
  const subscribed = subscribe();
  return new vscode.Disposable(() => void subscribed.then(() => subscriptions.forEach((each) => void each.dispose())));
}

/** The interpreter that a configuration names, as a path that can be started from anywhere. */
export function configuredInterpreter(config: vscode.DebugConfiguration): Interpreter | undefined {
  const given: unknown = config.python ?? config.pythonPath;
  const command: unknown = Array.isArray(given) ? given[0] : given;
  if (typeof command !== 'string' || command === '') return undefined;
  const cwd = typeof config.cwd === 'string' ? config.cwd : undefined;
  return { command: expandPath(command, cwd), source: 'configuration' };
}

/** A relative path is meant from `folder`; a bare name is left to PATH. */
export function expandPath(command: string, folder: string | undefined): string {
  if (command.startsWith('~/')) return path.join(os.homedir(), command.slice(2));
  const isPath = command.includes('/') || command.includes(path.sep);
  return isPath && folder !== undefined ? path.resolve(folder, command) : command;
}

function folderOf(scope: vscode.Uri | undefined): string | undefined {
  const folder =
    (scope && vscode.workspace.getWorkspaceFolder(scope)) ?? vscode.workspace.workspaceFolders?.[0];
  return folder?.uri.fsPath;
}

async function ofPythonExtension(
  scope: vscode.Uri | undefined,
  log: vscode.LogOutputChannel,
): Promise<string | undefined> {
  if (vscode.extensions.getExtension(PYTHON_EXTENSION) === undefined) return undefined;
  try {
    const { environments } = await PythonExtension.api();
    const environment = await environments.resolveEnvironment(environments.getActiveEnvironmentPath(scope));
    return environment?.executable.uri?.fsPath;
  } catch (error) {
    log.warn(`the Python extension does not say which interpreter is selected: ${String(error)}`);
    return undefined;
  }
}
