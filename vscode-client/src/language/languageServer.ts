/** The language client, where the installed Tensorpoint has a language server. */
import * as vscode from 'vscode';
import { LanguageClient, TransportKind } from 'vscode-languageclient/node';

import { selectedInterpreter } from '../python/interpreter';
import type { Servers } from '../server/servers';
import { onDidChangeSetting, setting } from '../settings';

export class LanguageServer implements vscode.Disposable {
  private client: LanguageClient | undefined;
  private readonly subscriptions: vscode.Disposable[];

  constructor(
    private readonly servers: Servers,
    private readonly folder: string,
    private readonly log: vscode.LogOutputChannel,
  ) {
    const restart = () => this.restart().catch((error: unknown) => log.error(`the language server: ${String(error)}`));
    this.subscriptions = [
      vscode.commands.registerCommand('tensorpoint.restartLanguageServer', restart),
      onDidChangeSetting('languageServer.enable', () => void restart()),
      onDidChangeSetting('python', () => void restart()),
    ];
    void restart();
  }

  dispose(): void {
    for (const subscription of this.subscriptions) subscription.dispose();
    void this.client?.dispose();
  }

  /** Start it anew; quietly nothing where there is none. */
  private async restart(): Promise<void> {
    await this.client?.dispose();
    this.client = undefined;
    const scope = vscode.workspace.workspaceFolders?.[0]?.uri;
    if (!setting('languageServer.enable', scope)) return;
    const server = await this.servers.find(await selectedInterpreter(scope, this.log));
    if (server?.languageServer !== true) {
      this.log.info('no language server: the installed Tensorpoint has none');
      return;
    }
    const { command, args } = this.servers.command(server, 'lsp');
    this.client = new LanguageClient(
      'tensorpoint',
      'Tensorpoint Language Server',
      { command, args, transport: TransportKind.stdio, options: { cwd: this.folder } },
      { documentSelector: [{ scheme: 'file', language: 'python' }] },
    );
    await this.client.start();
  }
}
