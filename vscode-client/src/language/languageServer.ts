/** The language client, where the installed Tensorpoint has a language server. */
import * as vscode from 'vscode';
import {
  type ConfigurationParams,
  type ConfigurationRequest,
  ExecuteCommandRequest,
  LanguageClient,
  type LSPAny,
  type LSPObject,
  type ResponseError,
  TransportKind,
} from 'vscode-languageclient/node';

import { onDidSelectInterpreter, selectedInterpreter } from '../python/interpreter';
import type { Servers } from '../server/servers';
import { onDidChangeSetting, SECTION, setting } from '../settings';

export class LanguageServer implements vscode.Disposable {
  private client: LanguageClient | undefined;
  /** One start at a time: two that overlap would leave a server that nobody ends. */
  private started: Promise<void> = Promise.resolve();
  private disposed = false;
  private readonly subscriptions: vscode.Disposable[];

  constructor(
    private readonly servers: Servers,
    private readonly folder: string,
    private readonly log: vscode.LogOutputChannel,
  ) {
    const restart = () =>
      (this.started = this.started
        .then(() => this.restart())
        .catch((error: unknown) => log.error(`the language server: ${String(error)}`)));
    this.subscriptions = [
      vscode.commands.registerCommand('tensorpoint.restartLanguageServer', restart),
      vscode.commands.registerCommand('tensorpoint.showGraphBreaks', () => this.showGraphBreaks()),
      onDidChangeSetting('languageServer.enable', () => void restart()),
      onDidChangeSetting('python', () => void restart()),
      servers.onDidInstall(() => void restart()),
      onDidSelectInterpreter(() => void restart(), log),
    ];
    void restart();
  }

  dispose(): void {
    this.disposed = true;
    for (const subscription of this.subscriptions) subscription.dispose();
    void this.started.then(() => this.client?.dispose());
  }

  /** The server says what it has found, and shows it in the file. */
  private async showGraphBreaks(): Promise<void> {
    const file = vscode.window.activeTextEditor?.document.uri;
    if (file === undefined || this.client?.isRunning() !== true) {
      void vscode.window.showInformationMessage('Tensorpoint: this needs a Python file, and the language server.');
      return;
    }
    const asked = { command: 'tensorpoint.graphBreaks', arguments: [file.toString()] };
    const title = 'Tensorpoint: asking torch.compile for graph breaks';
    const progress = { location: vscode.ProgressLocation.Notification, title, cancellable: true };
    await vscode.window.withProgress(progress, async (_, token) => {
      try {
        await this.client?.sendRequest(ExecuteCommandRequest.type, asked, token);
      } catch (error) {
        if (!token.isCancellationRequested) throw error;
      }
    });
  }

  /** Start it anew; quietly nothing where there is none. */
  private async restart(): Promise<void> {
    await this.client?.dispose();
    this.client = undefined;
    if (this.disposed) return;
    const scope = vscode.workspace.workspaceFolders?.[0]?.uri;
    if (!setting('languageServer.enable', scope)) return;
    const server = await this.servers.find(await selectedInterpreter(scope, this.log));
    if (server?.languageServer !== true) {
      const why = server === undefined ? 'Tensorpoint is not installed yet' : 'the installed Tensorpoint has none';
      this.log.info(`no language server: ${why}`);
      return;
    }
    const { command, args } = this.servers.command(server, 'lsp');
    this.client = new LanguageClient(
      'tensorpoint',
      'Tensorpoint Language Server',
      { command, args, transport: TransportKind.stdio, options: { cwd: this.folder } },
      {
        documentSelector: [
          { scheme: 'file', language: 'python' },
          { scheme: 'untitled', language: 'python' },
          { notebook: '*', language: 'python' },
        ],
        initializationOptions: { trusted: vscode.workspace.isTrusted },
        outputChannel: this.log,
        middleware: { workspace: { configuration: (params, token, next) => this.configuration(params, token, next) } },
      },
    );
    await this.client.start();
  }

  /** What the server asks for: our settings, and the interpreter that is selected for the folder. */
  private async configuration(
    params: ConfigurationParams,
    token: vscode.CancellationToken,
    next: ConfigurationRequest.HandlerSignature,
  ): Promise<LSPAny[] | ResponseError> {
    const answers = await next(params, token);
    if (!Array.isArray(answers)) return answers;
    return Promise.all(
      params.items.map(async ({ section, scopeUri }, index): Promise<LSPAny> => {
        const answer: unknown = answers[index];
        if (section !== SECTION) return answer as LSPAny;
        const scope = scopeUri === undefined ? undefined : vscode.Uri.parse(scopeUri);
        const { command } = await selectedInterpreter(scope, this.log);
        const { shapes } = answer as { shapes: LSPObject };
        // Inline values come from the debugger here, in one request and only for its own sessions.
        return { python: command, shapes: { ...shapes, inlineValues: false } };
      }),
    );
  }
}
