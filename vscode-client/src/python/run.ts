/** Runs a command to its end and keeps what it says. */
import { spawn } from 'node:child_process';

export interface Finished {
  /** The exit status; null if a signal ended it, undefined if it could not be started. */
  status: number | null | undefined;
  stdout: string;
  /** Standard error; the reason if it could not be started. */
  stderr: string;
}

export interface RunOptions {
  cwd?: string;
  timeoutMs?: number;
  signal?: AbortSignal;
  /** Hears of both streams as they come. */
  onOutput?: (text: string) => void;
}

export function run(command: string, args: readonly string[], options: RunOptions = {}): Promise<Finished> {
  return new Promise((resolve) => {
    let stdout = '';
    let stderr = '';
    const child = spawn(command, args, {
      ...(options.cwd === undefined ? {} : { cwd: options.cwd }),
      ...(options.timeoutMs === undefined ? {} : { timeout: options.timeoutMs }),
      ...(options.signal === undefined ? {} : { signal: options.signal }),
      stdio: ['ignore', 'pipe', 'pipe'],
      windowsHide: true,
    });
    child.stdout.setEncoding('utf8').on('data', (text: string) => {
      stdout += text;
      options.onOutput?.(text);
    });
    child.stderr.setEncoding('utf8').on('data', (text: string) => {
      stderr += text;
      options.onOutput?.(text);
    });
    child.on('error', (error) => resolve({ status: undefined, stdout, stderr: error.message }));
    child.on('close', (status) => resolve({ status, stdout, stderr }));
  });
}
