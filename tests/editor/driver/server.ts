/** code-servers, each with a profile, extensions and a home in a folder that goes with it. */
import { spawn, spawnSync } from 'node:child_process';
import fs from 'node:fs';
import http from 'node:http';
import net from 'node:net';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

const HERE = import.meta.dirname;
export const ROOT = path.resolve(HERE, '../../..');
export const CACHE = path.join(ROOT, '.editor');
export const PYTHON = path.join(ROOT, '.venv/bin/python');
const ENTRY = fs.globSync(path.join(CACHE, 'code-server-*/node_modules/code-server/out/node/entry.js'))[0];
const START_MS = 60_000;
/** How long programs live on when their window has gone. */
const GRACE_S = 5;

/** A vsix in .editor, by its name without version. */
export type Extension = 'tensorpoint' | 'trace' | 'python' | 'debugpy';

/** For scenarios that are about which installation starts a program: it is started by that, each time. */
export const AFRESH = { TENSORPOINT_RESIDENT: '0' };

/** What can't be changed while a server runs. */
export interface ServerOptions {
  extensions: readonly Extension[];
  environment: Record<string, string>;
}

/** One server for each set of options, from its first use on. */
export class Servers {
  private readonly started = new Map<string, Server>();

  constructor(private readonly folder: string) {}

  async get(options: ServerOptions): Promise<Server> {
    const key = JSON.stringify(options);
    let server = this.started.get(key);
    if (server === undefined) {
      server = await startServer(path.join(this.folder, String(this.started.size)), options);
      this.started.set(key, server);
    }
    return server;
  }

  async stop(): Promise<void> {
    await Promise.all([...this.started.values()].map(async (server) => server.stop()));
  }
}

export class Server {
  readonly origin: string;
  /** Where the extension keeps its private environment. */
  readonly storage: string;

  constructor(
    port: number,
    private readonly user: string,
    readonly stop: () => Promise<void>,
  ) {
    this.origin = `http://127.0.0.1:${port}`;
    this.storage = path.join(user, 'User', 'globalStorage', 'tensorpoint.tensorpoint');
  }

  url(folder: string): string {
    return `${this.origin}/?folder=${folder}`;
  }

  /** As after its installation, with these settings. */
  reset(settings: Record<string, unknown>, machineSettings: Record<string, unknown>): void {
    const common = JSON.parse(fs.readFileSync(path.join(HERE, 'settings.json'), 'utf8')) as object;
    writeJson(path.join(this.user, 'User/settings.json'), { ...common, ...settings });
    writeJson(path.join(this.user, 'Machine/settings.json'), machineSettings);
    fs.rmSync(this.storage, { recursive: true, force: true });
  }
}

async function startServer(folder: string, { extensions, environment }: ServerOptions): Promise<Server> {
  if (ENTRY === undefined) throw new Error('code-server is not installed: run tests/editor/setup.sh');
  const home = path.join(folder, 'home');
  const user = path.join(folder, 'user');
  fs.mkdirSync(home, { recursive: true });
  const env = environmentFor(home, environment);
  const where = ['--config', path.join(folder, 'config.yaml'), '--user-data-dir', user];
  const all = [...where, '--extensions-dir', path.join(folder, 'extensions')];
  const vsix = extensions.flatMap((name) => ['--install-extension', path.join(CACHE, `${name}.vsix`)]);
  const installed = spawnSync(process.execPath, [ENTRY, ...all, ...vsix], { env, encoding: 'utf8' });
  if (installed.status !== 0) throw new Error(`the extensions can't be installed: ${installed.stdout}${installed.stderr}`);

  const port = await freePort();
  const log = path.join(folder, 'server.log');
  const sink = fs.openSync(log, 'a');
  const serving = spawn(
    process.execPath,
    [
      ...[ENTRY, ...all, '--auth', 'none', '--bind-addr', `127.0.0.1:${port}`, '--disable-telemetry'],
      ...['--disable-update-check', '--disable-getting-started-override', '--disable-proxy'],
      ...['--reconnection-grace-time', String(GRACE_S)],
    ],
    // A group of its own: extension host, adapters and programs are its children.
    { env, stdio: ['ignore', sink, sink], detached: true },
  );
  await listening(port, log);
  return new Server(port, user, async () => {
    if (env.TENSORPOINT_RESIDENT !== '0') spawnSync(PYTHON, ['-m', 'tensorpoint', 'host', 'stop'], { env });
    kill(serving.pid, 'SIGTERM');
    await sleep(1000);
    kill(serving.pid, 'SIGKILL');
  });
}

function environmentFor(home: string, more: Record<string, string>): NodeJS.ProcessEnv {
  const inherited = Object.entries(process.env).filter(([name]) => !/^(VSCODE_|TENSORPOINT_|PYTEST_|VIRTUAL_ENV)/.test(name));
  return {
    ...Object.fromEntries(inherited),
    HOME: home,
    XDG_CONFIG_HOME: path.join(home, '.config'),
    XDG_DATA_HOME: path.join(home, '.local/share'),
    XDG_CACHE_HOME: path.join(home, '.cache'),
    XDG_RUNTIME_DIR: home,
    PATH: `${path.dirname(process.execPath)}:${process.env.PATH ?? ''}`,
    // It would ask the extension gallery for updates.
    EXTENSIONS_GALLERY: '{"serviceUrl":""}',
    HF_HUB_OFFLINE: '1',
    // Programs are forked, as a user's are. Their host is stopped with the server.
    TENSORPOINT_RESIDENT: 'wait',
    ...more,
  };
}

function writeJson(file: string, content: object): void {
  fs.mkdirSync(path.dirname(file), { recursive: true });
  fs.writeFileSync(file, JSON.stringify(content, null, 2));
}

/** A port on the loopback that nobody uses at the moment. */
export function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const probe = net.createServer().on('error', reject);
    probe.listen(0, '127.0.0.1', () => {
      const { port } = probe.address() as net.AddressInfo;
      probe.close(() => resolve(port));
    });
  });
}

async function listening(port: number, log: string): Promise<void> {
  const end = Date.now() + START_MS;
  while (Date.now() < end) {
    const answers = await new Promise<boolean>((resolve) => {
      http
        .get(`http://127.0.0.1:${port}/healthz`, (response) => {
          response.resume();
          resolve(true);
        })
        .on('error', () => resolve(false));
    });
    if (answers) return;
    await sleep(50);
  }
  throw new Error(`code-server does not start: ${fs.readFileSync(log, 'utf8').slice(-2000)}`);
}

function kill(pid: number | undefined, signal: NodeJS.Signals): void {
  try {
    if (pid !== undefined) process.kill(-pid, signal);
  } catch {
    // It has ended.
  }
}
