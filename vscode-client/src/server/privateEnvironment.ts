/**
 * An environment of the extension's own, for Tensorpoint where the chosen interpreter lacks it.
 *
 * The wheel comes with the extension, what it depends on from the user's package index. One for
 * each version of the extension and of Python: debugpy is fastest where both sides have the same.
 */
import * as fs from 'node:fs/promises';
import * as path from 'node:path';
import * as vscode from 'vscode';

import type { Probed } from '../python/probe';
import { run } from '../python/run';
import { reasonOf } from './reason';

const OLDEST_PYTHON: [number, number] = [3, 10];
/** Written last: an environment without it was not finished. */
const COMPLETE = '.complete';

export class PrivateEnvironment {
  constructor(
    private readonly storage: string,
    private readonly extensionFolder: string,
    private readonly version: string,
    private readonly log: vscode.LogOutputChannel,
  ) {}

  /** Its interpreter, if it has been made for this version of Python. */
  async find(base: Probed): Promise<string | undefined> {
    const folder = this.folder(base);
    try {
      await fs.access(path.join(folder, COMPLETE));
      await fs.access(interpreterIn(folder));
      return interpreterIn(folder);
    } catch {
      return undefined;
    }
  }

  canBeMadeWith(base: Probed): boolean {
    const [major, minor] = base.python;
    return major > OLDEST_PYTHON[0] || (major === OLDEST_PYTHON[0] && minor >= OLDEST_PYTHON[1]);
  }

  /** Make it, with progress that can be cancelled. Returns its interpreter; undefined if not made. */
  async install(base: Probed): Promise<string | undefined> {
    return vscode.window.withProgress(
      { location: vscode.ProgressLocation.Notification, title: 'Tensorpoint', cancellable: true },
      async (progress, token) => {
        const folder = this.folder(base);
        try {
          await this.make(folder, base.executable, progress, token);
          return interpreterIn(folder);
        } catch (error) {
          await fs.rm(folder, { recursive: true, force: true });
          if (!token.isCancellationRequested) void this.tell(error);
          return undefined;
        }
      },
    );
  }

  private async make(
    folder: string,
    base: string,
    progress: vscode.Progress<{ message: string }>,
    token: vscode.CancellationToken,
  ): Promise<void> {
    const aborting = new AbortController();
    token.onCancellationRequested(() => aborting.abort());
    const step = async (message: string, command: string, ...args: string[]): Promise<void> => {
      progress.report({ message });
      this.log.info(`${command} ${args.join(' ')}`);
      const done = await run(command, args, {
        cwd: this.extensionFolder,
        signal: aborting.signal,
        onOutput: (text) => this.log.info(text.trimEnd()),
      });
      if (done.status !== 0) throw new Error(reasonOf(done) || `${message} failed`);
    };
    await fs.rm(folder, { recursive: true, force: true });
    await fs.mkdir(path.dirname(folder), { recursive: true });
    await step('making an environment', base, '-m', 'venv', folder);
    await step(
      'installing the debugger and what it needs',
      interpreterIn(folder),
      ...['-m', 'pip', 'install', '--disable-pip-version-check', '--no-input', await this.wheel()],
    );
    await fs.writeFile(path.join(folder, COMPLETE), '');
  }

  private async wheel(): Promise<string> {
    const folder = path.join(this.extensionFolder, 'dist', 'wheel');
    const name = (await fs.readdir(folder)).find((file) => file.endsWith('.whl'));
    if (name === undefined) throw new Error(`there is no wheel in ${folder}`);
    return path.join(folder, name);
  }

  private folder(base: Probed): string {
    return path.join(this.storage, `server-${this.version}-python${base.python.join('.')}`);
  }

  private async tell(error: unknown): Promise<void> {
    const reason = error instanceof Error ? error.message : String(error);
    const show = 'Show Log';
    const chosen = await vscode.window.showErrorMessage(`Tensorpoint could not be installed: ${reason}`, show);
    if (chosen === show) this.log.show();
  }
}

function interpreterIn(folder: string): string {
  return process.platform === 'win32'
    ? path.join(folder, 'Scripts', 'python.exe')
    : path.join(folder, 'bin', 'python');
}
