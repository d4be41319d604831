/** Puts the parts together. Each is described in its own file. */
import * as vscode from 'vscode';

import { currentFile, TYPE } from './configuration/complete';
import { registerDebugTest } from './configuration/debugTest';
import { registerConfigurations } from './configuration/providers';
import { AdapterFactory } from './debug/adapter';
import { Sessions } from './debug/sessions';
import { LanguageServer } from './language/languageServer';
import { registerLayerSteps } from './layers/steps';
import { LayersView } from './layers/view';
import { registerInlineValues } from './inlineValues';
import { registerPickers } from './processes';
import { selectedInterpreter } from './python/interpreter';
import { openSample } from './sample';
import { PrivateEnvironment } from './server/privateEnvironment';
import { Servers } from './server/servers';
import { StatusBar } from './statusBar';
import { registerTensorHover } from './tensorView/hover';
import { registerTensorView } from './tensorView/panel';
import { Checker } from './tensorpoints/checker';
import { registerTensorpointCommands } from './tensorpoints/commands';

export function activate(context: vscode.ExtensionContext): void {
  const log = vscode.window.createOutputChannel('Tensorpoint', { log: true });
  const { version } = context.extension.packageJSON as { version: string };
  const folder = context.extensionUri.fsPath;
  const environment = new PrivateEnvironment(context.globalStorageUri.fsPath, folder, version, log);
  const servers = new Servers(environment, version, log);
  const sessions = new Sessions(log);
  context.subscriptions.push(
    log,
    sessions,
    registerConfigurations(servers, log),
    registerDebugTest(),
    registerPickers(context.workspaceState),
    vscode.debug.registerDebugAdapterDescriptorFactory(TYPE, new AdapterFactory(servers, folder, log)),
    registerTensorpointCommands(sessions, new Checker(sessions, servers, folder, log)),
    new LayersView(sessions, log),
    registerTensorView(context, sessions, log),
    registerTensorHover(sessions, log),
    registerInlineValues(log),
    registerLayerSteps(sessions),
    new StatusBar(sessions),
    new LanguageServer(servers, folder, log),
    vscode.commands.registerCommand('tensorpoint.showLog', () => log.show()),
    vscode.commands.registerCommand('tensorpoint.openSample', () => openSample(context)),
    vscode.commands.registerCommand('tensorpoint.debugFile', debugFile),
    vscode.commands.registerCommand('tensorpoint.installServer', async () =>
      servers.install(await selectedInterpreter(activeFile(), log)),
    ),
  );
}

async function debugFile(uri = activeFile()): Promise<void> {
  if (uri === undefined) {
    void vscode.window.showInformationMessage('Tensorpoint: open a Python file to debug it.');
    return;
  }
  await vscode.debug.startDebugging(vscode.workspace.getWorkspaceFolder(uri), currentFile(uri.fsPath));
}

function activeFile(): vscode.Uri | undefined {
  return vscode.window.activeTextEditor?.document.uri;
}
