/** Hands VS Code configurations: completes those that start, offers those that could. */
import * as fs from 'node:fs';
import * as vscode from 'vscode';

import { configuredInterpreter, selectedInterpreter } from '../python/interpreter';
import type { Servers } from '../server/servers';
import { setting } from '../settings';
import { complete, currentFile, isChild, TYPE, type Configuration } from './complete';
import { TEMPLATES } from './templates';

/** Types of other extensions whose configurations the opt-in takes. */
const OTHER_TYPES = ['debugpy', 'python'];

export function registerConfigurations(servers: Servers, log: vscode.LogOutputChannel): vscode.Disposable {
  const { Initial, Dynamic } = vscode.DebugConfigurationProviderTriggerKind;
  return vscode.Disposable.from(
    vscode.debug.registerDebugConfigurationProvider(TYPE, new Completion(servers, log)),
    vscode.debug.registerDebugConfigurationProvider(TYPE, { provideDebugConfigurations: pick }, Initial),
    vscode.debug.registerDebugConfigurationProvider(
      TYPE,
      { provideDebugConfigurations: () => TEMPLATES.map((template) => template.configuration) },
      Dynamic,
    ),
    ...OTHER_TYPES.map((type) =>
      vscode.debug.registerDebugConfigurationProvider(type, { resolveDebugConfiguration: route }),
    ),
  );
}

class Completion implements vscode.DebugConfigurationProvider {
  constructor(
    private readonly servers: Servers,
    private readonly log: vscode.LogOutputChannel,
  ) {}

  resolveDebugConfiguration(
    _folder: vscode.WorkspaceFolder | undefined,
    config: vscode.DebugConfiguration,
  ): vscode.DebugConfiguration | undefined {
    const isEmpty = !config.type && !config.request && !config.name;
    if (!isEmpty) return config;
    const document = vscode.window.activeTextEditor?.document;
    if (document?.languageId !== 'python') {
      void vscode.window.showInformationMessage('Tensorpoint: open a Python file to debug it.');
      return undefined;
    }
    // A file that was never saved has no path that could be run.
    return currentFile(document.isUntitled ? '${file}' : document.uri.fsPath);
  }

  async resolveDebugConfigurationWithSubstitutedVariables(
    folder: vscode.WorkspaceFolder | undefined,
    config: vscode.DebugConfiguration,
  ): Promise<vscode.DebugConfiguration | undefined> {
    if (isChild(config)) return config;
    const scope = folder?.uri ?? vscode.window.activeTextEditor?.document.uri;
    const root = vscode.workspace.getWorkspaceFolder(scope ?? vscode.Uri.file('/'))?.uri.fsPath ?? folder?.uri.fsPath;
    const interpreter = configuredInterpreter(config) ?? (await selectedInterpreter(scope, this.log));
    if ((await this.servers.ensure(interpreter)) === undefined) return undefined;
    const completed = complete(config, {
      folder: root,
      python: interpreter.command,
      tensorpoints: setting('tensorpoints', scope),
      preload: setting('preload', scope),
      defaultEnvFile: defaultEnvFile(scope, root),
      exists: fs.existsSync,
    });
    if (typeof config.envFile === 'string' && completed.envFile === undefined)
      this.log.info(`envFile: there is no ${config.envFile}`);
    return completed;
  }
}

/** `debugpy` configurations go through us if the setting says so; with its settings and all. */
function route(
  folder: vscode.WorkspaceFolder | undefined,
  config: vscode.DebugConfiguration,
): vscode.DebugConfiguration {
  const isOurs = OTHER_TYPES.includes(config.type) && !isChild(config);
  return isOurs && setting('debugpyConfigurations', folder?.uri) ? { ...config, type: TYPE } : config;
}

async function pick(): Promise<Configuration[]> {
  const items = TEMPLATES.map((template) => ({ ...template }));
  const chosen = await vscode.window.showQuickPick(items, { placeHolder: 'What to debug', matchOnDetail: true });
  return chosen === undefined ? [] : [chosen.configuration];
}

/** What the Python extension's setting says, which is .env in the workspace folder by default. */
function defaultEnvFile(scope: vscode.Uri | undefined, root: string | undefined): string {
  const set = vscode.workspace.getConfiguration('python', scope ?? null).get<string>('envFile');
  return (set ?? '${workspaceFolder}/.env').replace('${workspaceFolder}', root ?? '');
}
