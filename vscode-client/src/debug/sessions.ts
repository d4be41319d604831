/**
 * The Tensorpoint sessions that are alive, children included, and what happens in them. It listens to
 * their messages; whoever shows something of a session subscribes here.
 */
import type { DebugProtocol } from '@vscode/debugprotocol';
import * as vscode from 'vscode';

import { TYPE } from '../configuration/complete';
import type { LayerPosition, Status, Stop } from './protocol';

export interface SessionState {
  readonly session: vscode.DebugSession;
  /** Whether the program can be asked: it is configured and has not ended. */
  running: boolean;
  /** Whether a thread is suspended. */
  stopped: boolean;
  /** The last stop at a tensorpoint; undefined once the program runs again. */
  stop: Stop | undefined;
  /** Where a step by layers has ended; undefined once the program runs again. */
  layer: LayerPosition | undefined;
}

type StoppedBody = DebugProtocol.StoppedEvent['body'] & { tensorpoint?: Stop; layer?: LayerPosition };

const RESUMING = new Set(['continue', 'next', 'stepIn', 'stepOut', 'stepBack', 'reverseContinue', 'goto']);
const RUNNING = { stopped: false, stop: undefined, layer: undefined };

export class Sessions implements vscode.DebugAdapterTrackerFactory, vscode.Disposable {
  private readonly states = new Map<string, SessionState>();
  private readonly changed = new vscode.EventEmitter<SessionState>();
  private readonly armed = new vscode.EventEmitter<SessionState>();
  private readonly subscriptions: vscode.Disposable[];

  /** A session began, stopped, went on or ended. */
  readonly onDidChange = this.changed.event;
  /** Tensorpoints were set or taken out. */
  readonly onDidArm = this.armed.event;

  constructor(private readonly log: vscode.LogOutputChannel) {
    this.subscriptions = [
      this.changed,
      this.armed,
      vscode.debug.registerDebugAdapterTrackerFactory(TYPE, this),
      vscode.debug.onDidTerminateDebugSession((session) => this.end(session)),
      this.onDidChange(() => {
        void vscode.commands.executeCommand('setContext', 'tensorpoint.session', this.states.size > 0);
      }),
    ];
  }

  /** The one that the debug views show. */
  get active(): SessionState | undefined {
    return this.of(vscode.debug.activeDebugSession) ?? [...this.states.values()].at(-1);
  }

  get all(): readonly SessionState[] {
    return [...this.states.values()];
  }

  of(session: vscode.DebugSession | undefined): SessionState | undefined {
    return session && this.states.get(session.id);
  }

  createDebugAdapterTracker(session: vscode.DebugSession): vscode.DebugAdapterTracker {
    const state: SessionState = { session, running: false, ...RUNNING };
    this.states.set(session.id, state);
    /** The requests under way that change tensorpoints. */
    const arming = new Set<number>();
    return {
      onWillReceiveMessage: (message: DebugProtocol.Request) => {
        if (changesTensorpoints(message)) arming.add(message.seq);
      },
      onDidSendMessage: (message: DebugProtocol.ProtocolMessage) => {
        this.hear(state, message);
        if (arming.delete((message as DebugProtocol.Response).request_seq)) this.armed.fire(state);
      },
      onError: (error) => this.log.error(`the debug adapter: ${error.message}`),
      onExit: (code) => this.onExit(code),
    };
  }

  dispose(): void {
    for (const subscription of this.subscriptions) subscription.dispose();
  }

  private hear(state: SessionState, message: DebugProtocol.ProtocolMessage): void {
    if (message.type === 'event') this.hearEvent(state, message as DebugProtocol.Event);
    else if (message.type === 'response') this.hearResponse(state, message as DebugProtocol.Response);
  }

  private hearEvent(state: SessionState, event: DebugProtocol.Event): void {
    switch (event.event) {
      case 'stopped': {
        const body = event.body as StoppedBody;
        this.set(state, { running: true, stopped: true, stop: body.tensorpoint, layer: body.layer });
        break;
      }
      case 'continued':
        this.set(state, RUNNING);
        break;
      case 'terminated':
        this.set(state, { running: false, ...RUNNING });
        break;
    }
  }

  private hearResponse(state: SessionState, response: DebugProtocol.Response): void {
    if (!response.success) return;
    if (response.command === 'configurationDone') this.set(state, { running: true });
    else if (RESUMING.has(response.command)) this.set(state, RUNNING);
  }

  private set(state: SessionState, change: Partial<SessionState>): void {
    Object.assign(state, change);
    this.changed.fire(state);
  }

  private end(session: vscode.DebugSession): void {
    const state = this.of(session);
    if (state === undefined) return;
    this.states.delete(session.id);
    this.set(state, { running: false, ...RUNNING });
  }

  /** VS Code says nothing when an adapter dies. */
  private onExit(code: number | undefined): void {
    if (code === undefined || code === 0) return;
    const show = 'Show Log';
    void vscode.window
      .showErrorMessage(
        `Tensorpoint's debug adapter ended with status ${code}. The setting tensorpoint.logDir makes it write logs.`,
        show,
      )
      .then((chosen) => {
        if (chosen === show) this.log.show();
      });
  }
}

/** What is set, and how far the program is; undefined without debugging (Ctrl+F5), or where it is ending. */
export async function statusOf({ session }: Pick<SessionState, 'session'>): Promise<Status | undefined> {
  try {
    return (await session.customRequest('tensorpoint/status')) as Status;
  } catch {
    return undefined;
  }
}

function changesTensorpoints({ command, arguments: args }: DebugProtocol.Request): boolean {
  if (command === 'setExceptionBreakpoints' || command === 'setFunctionBreakpoints') return true;
  return command === 'evaluate' && (args as DebugProtocol.EvaluateArguments).expression.startsWith('tp ');
}
