/** The status bar's item: what is armed in the session that is shown, and how far it is. */
import * as vscode from 'vscode';

import type { Status } from './debug/protocol';
import { statusOf, type Sessions, type SessionState } from './debug/sessions';
import { MANAGE } from './tensorpoints/commands';

/** How often a running program is asked: it is answered on the debugger's thread, in a millisecond. */
const POLL_MS = 2000;

export class StatusBar implements vscode.Disposable {
  private readonly item = vscode.window.createStatusBarItem('tensorpoint.status', vscode.StatusBarAlignment.Left, 10);
  private readonly polling: NodeJS.Timeout;
  private readonly subscriptions: vscode.Disposable[];

  constructor(private readonly sessions: Sessions) {
    this.item.name = 'Tensorpoint';
    this.item.command = MANAGE;
    this.polling = setInterval(() => {
      if (sessions.active?.stopped === false) void this.show();
    }, POLL_MS);
    this.subscriptions = [
      this.item,
      sessions.onDidChange(() => void this.show()),
      vscode.debug.onDidChangeActiveDebugSession(() => void this.show()),
      sessions.onDidArm(() => void this.show()),
    ];
  }

  dispose(): void {
    clearInterval(this.polling);
    for (const subscription of this.subscriptions) subscription.dispose();
  }

  private async show(): Promise<void> {
    const state = this.sessions.active;
    if (state === undefined) {
      this.item.hide();
      return;
    }
    const status = state.running ? await statusOf(state) : undefined;
    if (state !== this.sessions.active) return; // it has ended meanwhile
    this.item.text = statusText(state, status);
    this.item.tooltip = statusTooltip(status);
    this.item.show();
  }
}

export function statusText(state: Pick<SessionState, 'stopped' | 'stop'>, status: Status | undefined): string {
  const parts = [
    status && (status.tensorpoints.length === 0 ? 'none armed' : `${status.tensorpoints.length} armed`),
    typeof status?.step === 'number' ? `step ${status.step}` : undefined,
    state.stop && 'stopped',
  ];
  const icon = state.stop === undefined ? 'pulse' : 'error';
  return [`$(${icon}) Tensorpoint`, ...parts.filter((part) => part !== undefined)].join(' · ');
}

function statusTooltip(status: Status | undefined): string {
  if (status === undefined) return 'Tensorpoint';
  const lines = status.tensorpoints.map((item) => `${item.text}  (${item.source})`);
  const steps = status.optimizer_step === null ? [] : [`${status.optimizer_step} optimizer steps`];
  return [...(lines.length > 0 ? lines : ['no tensorpoint is set']), ...steps].join('\n');
}
