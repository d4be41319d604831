/** A DAP client of a few lines, to ask an adapter something while no session runs. */
import type { DebugProtocol } from '@vscode/debugprotocol';
import { spawn, type ChildProcessByStdio } from 'node:child_process';
import type { Readable, Writable } from 'node:stream';

type Answer = (response: DebugProtocol.Response) => void;

export class DapClient {
  private readonly process: ChildProcessByStdio<Writable, Readable, null>;
  private readonly waiting = new Map<number, Answer>();
  private readonly framing = new Framing();
  private sequence = 0;

  constructor(command: string, args: readonly string[], cwd: string) {
    this.process = spawn(command, args, { cwd, stdio: ['pipe', 'pipe', 'ignore'], windowsHide: true });
    this.process.stdout.on('data', (bytes: Buffer) => {
      for (const message of this.framing.take(bytes)) this.hear(message);
    });
    this.process.on('error', (error) => this.giveUp(error.message));
    this.process.on('close', () => this.giveUp('the adapter has ended'));
    // A request to one that has ended is answered by `giveUp`.
    this.process.stdin.on('error', () => undefined);
  }

  initialize(): Promise<unknown> {
    return this.request('initialize', { adapterID: 'tensorpoint', clientID: 'vscode' });
  }

  /** The body of the answer; rejects with the reason if it is refused. */
  request(command: string, args: object): Promise<unknown> {
    const seq = ++this.sequence;
    return new Promise((resolve, reject) => {
      this.waiting.set(seq, (response) => {
        if (response.success) resolve(response.body);
        else reject(new Error(response.message ?? `${command} failed`));
      });
      this.process.stdin.write(frame({ seq, type: 'request', command, arguments: args }));
    });
  }

  dispose(): void {
    this.process.stdin.end();
    this.process.kill();
  }

  private hear(message: DebugProtocol.ProtocolMessage): void {
    if (message.type !== 'response') return;
    const response = message as DebugProtocol.Response;
    this.waiting.get(response.request_seq)?.(response);
    this.waiting.delete(response.request_seq);
  }

  private giveUp(reason: string): void {
    for (const [request_seq, answer] of this.waiting)
      answer({ seq: 0, type: 'response', request_seq, success: false, command: '', message: reason });
    this.waiting.clear();
  }
}

export function frame(message: object): string {
  const body = JSON.stringify(message);
  return `Content-Length: ${Buffer.byteLength(body)}\r\n\r\n${body}`;
}

/** Cuts a stream of bytes into messages. */
export class Framing {
  private rest = Buffer.alloc(0);

  take(bytes: Buffer): DebugProtocol.ProtocolMessage[] {
    this.rest = Buffer.concat([this.rest, bytes]);
    const messages: DebugProtocol.ProtocolMessage[] = [];
    for (;;) {
      const end = this.rest.indexOf('\r\n\r\n');
      if (end < 0) return messages;
      const length = Number(/Content-Length: *(\d+)/i.exec(this.rest.toString('latin1', 0, end))?.[1]);
      if (!(this.rest.length >= end + 4 + length)) return messages;
      const body = this.rest.toString('utf8', end + 4, end + 4 + length);
      messages.push(JSON.parse(body) as DebugProtocol.ProtocolMessage);
      this.rest = this.rest.subarray(end + 4 + length);
    }
  }
}
