/** The extension's settings, typed; package.json documents them. */
import * as vscode from 'vscode';

export const SECTION = 'tensorpoint';

interface Settings {
  python: string;
  tensorpoints: string[];
  preload: string[];
  debugpyConfigurations: boolean;
  'layers.recordFacts': boolean;
  debugTestCodeLens: boolean;
  'languageServer.enable': boolean;
  logDir: string;
}

export function setting<K extends keyof Settings>(name: K, scope?: vscode.Uri): Settings[K] {
  const value = vscode.workspace.getConfiguration(SECTION, scope ?? null).get<Settings[K]>(name);
  if (value === undefined) throw new Error(`the setting ${SECTION}.${name} is not declared`);
  return value;
}

/** Change a setting of the workspace, or of the user where no folder is open. */
export async function changeSetting<K extends keyof Settings>(name: K, value: Settings[K]): Promise<void> {
  const target =
    vscode.workspace.workspaceFolders === undefined
      ? vscode.ConfigurationTarget.Global
      : vscode.ConfigurationTarget.Workspace;
  await vscode.workspace.getConfiguration(SECTION).update(name, value, target);
}

export function onDidChangeSetting(name: keyof Settings, act: () => void): vscode.Disposable {
  return vscode.workspace.onDidChangeConfiguration((change) => {
    if (change.affectsConfiguration(`${SECTION}.${name}`)) act();
  });
}
