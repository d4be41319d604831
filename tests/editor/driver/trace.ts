/** What VS Code and the debug adapters have said to each other so far. */
import { expect } from '@playwright/test';
import fs from 'node:fs';

export interface Message {
  type: 'request' | 'response' | 'event';
  command?: string;
  event?: string;
  success?: boolean;
  message?: string;
  arguments?: Record<string, unknown>;
  body?: Record<string, unknown>;
}

export interface Entry {
  session?: string;
  ready?: true;
  started?: { name: string; type: string; configuration: Record<string, unknown> };
  sent?: Message;
  received?: Message;
  exited?: number | null;
}

export class Trace {
  constructor(private readonly file: string) {}

  entries(): Entry[] {
    // The last line may be half written.
    const lines = this.text().split('\n').slice(0, -1);
    return lines.map((line) => JSON.parse(line) as Entry);
  }

  text(): string {
    return fs.existsSync(this.file) ? fs.readFileSync(this.file, 'utf8') : '';
  }

  /** Keys that reach VS Code before its extensions are there do nothing. */
  async ready(): Promise<void> {
    await expect.poll(() => this.entries().some((entry) => entry.ready)).toBe(true);
  }

  /** The messages from an adapter, of one event or answers to one request. */
  received(name: string): Message[] {
    const messages = this.entries().flatMap(({ received }) => received ?? []);
    return messages.filter(
      (message) => message.event === name || (message.type === 'response' && message.command === name),
    );
  }

  requests(command: string): Message[] {
    const messages = this.entries().flatMap(({ sent }) => sent ?? []);
    return messages.filter((message) => message.type === 'request' && message.command === command);
  }

  started(): NonNullable<Entry['started']>[] {
    return this.entries().flatMap(({ started }) => started ?? []);
  }

  /** The body of the last event or answer of this name for which `holds` is true, once there is one. */
  async body(name: string, holds: (body: Record<string, unknown>) => boolean = () => true): Promise<Record<string, unknown>> {
    const find = () => this.received(name).map((message) => message.body ?? {}).findLast(holds);
    await expect.poll(find, { message: `${name} in ${this.file}` }).toBeDefined();
    return find() ?? {};
  }
}
