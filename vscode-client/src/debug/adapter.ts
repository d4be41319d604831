/** How VS Code reaches the debug adapter of a session. */
import * as vscode from 'vscode';

import { isChild } from '../configuration/complete';
import { configuredInterpreter, selectedInterpreter } from '../python/interpreter';
import type { Servers } from '../server/servers';

export class AdapterFactory implements vscode.DebugAdapterDescriptorFactory {
  constructor(
    private readonly servers: Servers,
    /** The adapter runs there: no module of the user's may be taken for one of ours. */
    private readonly folder: string,
    private readonly log: vscode.LogOutputChannel,
  ) {}

  async createDebugAdapterDescriptor(session: vscode.DebugSession): Promise<vscode.DebugAdapterDescriptor> {
    const config = session.configuration;
    if (isChild(config)) {
      const { host, port } = config.connect as { host: string; port: number };
      return new vscode.DebugAdapterServer(port, host);
    }
    const interpreter =
      configuredInterpreter(config) ?? (await selectedInterpreter(session.workspaceFolder?.uri, this.log));
    const server = await this.servers.find(interpreter);
    if (server === undefined) throw new Error(`Tensorpoint is not installed for ${interpreter.command}`);
    const { command, args } = this.servers.command(server, 'dap');
    this.log.info(`${command} ${args.join(' ')}`);
    return new vscode.DebugAdapterExecutable(command, args, { cwd: this.folder });
  }
}
