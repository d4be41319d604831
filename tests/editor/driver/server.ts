/** A code-server of its own for each scenario: profile, extensions and home in a folder that goes with it. */
import { spawn, spawnSync } from 'node:child_process';
import fs from 'node:fs';
import http from 'node:http';
import net from 'node:net';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

const HERE = import.meta.dirname;
export const ROOT = path.resolve(HERE, '../../..');
export const CACHE = path.join(ROOT, '.editor');
const ENTRY = fs.globSync(path.join(CACHE, 'code-server-*/node_modules/code-server/out/node/entry.js'))[0];
const START_MS = 60_000;

/** A vsix in .editor, by its name without version. */
export type Extension = 'tensorpoint' | 'trace' | 'python' | 'debugpy';

export interface ServerOptions {
  /** The folder that is thrown away. */
  folder: string;
  extensions: readonly Extension[];
  settings: Record<string, unknown>;
  machineSettings: Record<string, unknown>;
  environment: Record<string, string>;
}

export interface Server {
  url: (folder: string) => string;
  trace: string;
  /** Where the extension keeps its private environment. */
  storage: string;
  log: string;
  stop: () => Promise<void>;
}

export async function startServer(options: ServerOptions): Promise<Server> {
  if (ENTRY === undefined) throw new Error('code-server is not installed: run tests/editor/setup.sh');
  const { folder, extensions, environment } = options;
  const home = path.join(folder, 'home');
  const user = path.join(folder, 'user');
  fs.mkdirSync(home, { recursive: true });
  const common = JSON.parse(fs.readFileSync(path.join(HERE, 'settings.json'), 'utf8')) as object;
  writeJson(path.join(user, 'User/settings.json'), { ...common, ...options.settings });
  writeJson(path.join(user, 'Machine/settings.json'), options.machineSettings);
  const trace = path.join(folder, 'trace.jsonl');
  fs.writeFileSync(trace, '');
  const env = environmentFor(home, { TENSORPOINT_EDITOR_TRACE: trace, ...environment });
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
    ],
    // A group of its own: extension host, adapters and programs are its children.
    { env, stdio: ['ignore', sink, sink], detached: true },
  );
  await listening(port, log);
  return {
    url: (opened) => `http://127.0.0.1:${port}/?folder=${opened}`,
    trace,
    storage: path.join(user, 'User', 'globalStorage', 'tensorpoint.tensorpoint'),
    log,
    stop: async () => {
      kill(serving.pid, 'SIGTERM');
      await sleep(1000);
      kill(serving.pid, 'SIGKILL');
    },
  };
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
    // One that is started on demand would outlive the scenario.
    TENSORPOINT_RESIDENT: '0',
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
