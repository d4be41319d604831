/**
 * Where Tensorpoint's own processes run: in the chosen interpreter if Tensorpoint is installed
 * there, else in the extension's private environment.
 */
import * as vscode from 'vscode';

import type { Interpreter } from '../python/interpreter';
import { probe, ProbeError, type Probed } from '../python/probe';
import { setting } from '../settings';
import type { PrivateEnvironment } from './privateEnvironment';
import { mismatchMessage, versionsMatch } from './version';

export interface Server {
  /** The interpreter that has Tensorpoint. */
  python: string;
  languageServer: boolean;
}

const INSTALL = 'Install';
const OWN = "Use the Extension's";
const CONTINUE = 'Use It Anyway';
const SELECT = 'Select Interpreter';
const SETTINGS = 'Open Settings';

export class Servers {
  /** What the user said to a version that does not match, by interpreter and version. */
  private readonly tolerated = new Set<string>();
  private readonly replaced = new Set<string>();
  private readonly installation = new vscode.EventEmitter<void>();

  /** There is a server where there was none, or another one. */
  readonly onDidInstall = this.installation.event;

  constructor(
    private readonly environment: PrivateEnvironment,
    private readonly version: string,
    private readonly log: vscode.LogOutputChannel,
  ) {}

  /** The server for programs of this interpreter, without asking the user anything. */
  async find(interpreter: Interpreter): Promise<Server | undefined> {
    try {
      const found = await probe(interpreter.command);
      return this.installed(found) ?? (await this.ownFor(found));
    } catch (error) {
      this.log.info(String(error));
      return undefined;
    }
  }

  /**
   * The same for a session that is about to start: what is missing is offered, what is wrong is
   * said. Undefined if there is none, which the user knows then.
   */
  async ensure(interpreter: Interpreter): Promise<Server | undefined> {
    let found: Probed;
    try {
      found = await probe(interpreter.command);
    } catch (error) {
      await this.sayNoInterpreter(interpreter, error);
      return undefined;
    }
    if (found.tensorpoint !== undefined && !(await this.acceptVersion(found, found.tensorpoint)))
      return undefined;
    return this.installed(found) ?? (await this.ownFor(found)) ?? (await this.offer(interpreter, found));
  }

  /** Make the private environment, as the command says. */
  async install(interpreter: Interpreter): Promise<void> {
    let found: Probed;
    try {
      found = await probe(interpreter.command);
    } catch (error) {
      await this.sayNoInterpreter(interpreter, error);
      return;
    }
    const python = await this.makeOwn(found);
    if (python !== undefined) void vscode.window.showInformationMessage('Tensorpoint: the debugger is installed.');
  }

  /** How `tensorpoint COMMAND` is started. */
  command(server: Server, ...args: string[]): { command: string; args: string[] } {
    const logDir = setting('logDir').trim();
    const logs = logDir === '' ? [] : ['--log-dir', logDir];
    return { command: server.python, args: ['-m', 'tensorpoint', ...args, ...logs] };
  }

  private installed(found: Probed): Server | undefined {
    if (found.tensorpoint === undefined || this.replaced.has(key(found))) return undefined;
    this.log.debug(`Tensorpoint ${found.tensorpoint} in ${found.executable}`);
    return { python: found.executable, languageServer: found.languageServer };
  }

  private async ownFor(found: Probed): Promise<Server | undefined> {
    const python = await this.environment.find(found);
    if (python === undefined) return undefined;
    const own = await probe(python);
    return own.tensorpoint === undefined ? undefined : { python, languageServer: own.languageServer };
  }

  private async acceptVersion(found: Probed, version: string): Promise<boolean> {
    if (versionsMatch(this.version, version) || this.tolerated.has(key(found)) || this.replaced.has(key(found)))
      return true;
    const chosen = await vscode.window.showWarningMessage(
      'The installed Tensorpoint does not match this extension.',
      { modal: true, detail: mismatchMessage(this.version, version, found.executable) },
      OWN,
      CONTINUE,
    );
    if (chosen === OWN) this.replaced.add(key(found));
    if (chosen === CONTINUE) this.tolerated.add(key(found));
    return chosen !== undefined;
  }

  private async offer(interpreter: Interpreter, found: Probed): Promise<Server | undefined> {
    // Modal: the session waits for the answer, and a notification would be gone after some seconds.
    const chosen = await vscode.window.showInformationMessage(
      `Tensorpoint is not installed for ${interpreter.command}.`,
      {
        modal: true,
        detail:
          'Install it into a private environment of this extension? Nothing is added to your own. ' +
          'It takes about a minute; what it depends on comes from your package index.',
      },
      INSTALL,
    );
    if (chosen !== INSTALL) return undefined;
    const python = await this.makeOwn(found);
    return python === undefined ? undefined : this.ownFor(found);
  }

  private async makeOwn(base: Probed): Promise<string | undefined> {
    if (this.environment.canBeMadeWith(base)) {
      const python = await this.environment.install(base);
      if (python !== undefined) this.installation.fire();
      return python;
    }
    void vscode.window.showErrorMessage(
      `Tensorpoint needs Python 3.10 or newer; ${base.executable} is ${base.python.join('.')}.`,
    );
    return undefined;
  }

  private async sayNoInterpreter(interpreter: Interpreter, error: unknown): Promise<void> {
    const reason = error instanceof ProbeError ? error.message : String(error);
    const from = interpreter.source === 'default' ? 'It is what runs without a setting' : `It comes from the ${interpreter.source}`;
    const action = interpreter.source === 'Python extension' ? SELECT : SETTINGS;
    const chosen = await vscode.window.showErrorMessage(`Tensorpoint: ${reason} ${from}.`, action);
    if (chosen === SELECT) await vscode.commands.executeCommand('python.setInterpreter');
    if (chosen === SETTINGS) await vscode.commands.executeCommand('workbench.action.openSettings', 'tensorpoint.python');
  }
}

function key(found: Probed): string {
  return `${found.executable} ${found.tensorpoint ?? ''}`;
}
