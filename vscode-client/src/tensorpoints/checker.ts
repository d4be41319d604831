/**
 * Has conditions checked by the server before they are set: a running session answers, else an
 * adapter that is started for it and kept until the input is done with.
 */
import * as vscode from 'vscode';

import { DapClient } from '../debug/dapClient';
import type { CheckAnswer, CheckRequest } from '../debug/protocol';
import type { Sessions } from '../debug/sessions';
import { selectedInterpreter } from '../python/interpreter';
import type { Servers } from '../server/servers';

export interface Check extends vscode.Disposable {
  check(request: CheckRequest): Promise<CheckAnswer>;
}

export class Checker {
  constructor(
    private readonly sessions: Sessions,
    private readonly servers: Servers,
    private readonly folder: string,
    private readonly log: vscode.LogOutputChannel,
  ) {}

  /** Undefined if there is no server that could answer, which the user knows then. */
  async open(): Promise<Check | undefined> {
    const active = this.sessions.all[0]?.session;
    if (active !== undefined)
      return {
        check: async (request) => (await active.customRequest('tensorpoint/check', request)) as CheckAnswer,
        dispose: () => undefined,
      };
    const scope = vscode.window.activeTextEditor?.document.uri;
    const server = await this.servers.ensure(await selectedInterpreter(scope, this.log));
    if (server === undefined) return undefined;
    const { command, args } = this.servers.command(server, 'dap');
    const client = new DapClient(command, args, this.folder);
    const ready = client.initialize();
    return {
      check: async (request) => {
        await ready;
        return (await client.request('tensorpoint/check', request)) as CheckAnswer;
      },
      dispose: () => client.dispose(),
    };
  }
}
