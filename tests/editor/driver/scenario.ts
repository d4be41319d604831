/**
 * The fixtures of a scenario: a workspace, an editor on it, and what was said to the debugger.
 *
 * One browser and few servers are for all scenarios: with a server and a browser of its own one that only
 * opens a window takes 22 s of CPU, else 17. What a scenario leaves behind goes with its folder, and is taken
 * out of the browser and the server before the next.
 */
import { test as base, type BrowserContext, type Page, chromium } from '@playwright/test';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';

import { CACHE, PYTHON, ROOT, Servers, type Extension, type Server } from './server.ts';
import { Trace } from './trace.ts';
import { Workbench } from './workbench.ts';

export { expect } from '@playwright/test';
export { AFRESH, PYTHON } from './server.ts';

const WORKSPACE = path.join(ROOT, 'tests/editor/workspace');
const DEMO = path.join(ROOT, 'server/tensorpoint/demo_program/train.py');
const BROWSER = ['/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome'].find(fs.existsSync);

/** Lists are virtual: rows out of sight are not there. */
const VIEWPORT = { width: 1500, height: 1200 };
const SHOTS = path.join(CACHE, 'screenshots');

interface Options {
  extensions: readonly Extension[];
  settings: Record<string, unknown>;
  /** Those of the machine that the server runs on: paths. */
  machineSettings: Record<string, unknown>;
  environment: Record<string, string>;
  /** launch.json's configurations; none: there is no launch.json. */
  configurations: readonly Record<string, unknown>[];
}

interface Shared {
  servers: Servers;
  browserProfile: BrowserContext;
}

interface Fixtures {
  /** A folder for all that the scenario leaves behind. */
  folder: string;
  workspace: string;
  server: Server;
  page: Page;
  vscode: Workbench;
  dap: Trace;
  /** A screenshot in .editor/screenshots. */
  shot: (name: string) => Promise<void>;
  /** One of the upper or lower part, for the documentation: `make images` takes it from there. */
  figure: (name: string, half: 'top' | 'bottom') => Promise<void>;
}

export const test = base.extend<Options & Fixtures, Shared>({
  extensions: [['tensorpoint', 'trace'], { option: true }],
  settings: [{}, { option: true }],
  machineSettings: [{}, { option: true }],
  environment: [{}, { option: true }],
  configurations: [[], { option: true }],

  servers: [
    // eslint-disable-next-line no-empty-pattern -- Playwright reads what a fixture needs from its parameter
    async ({}, use) => {
      const folder = temporaryFolder('servers');
      const servers = new Servers(folder);
      await use(servers);
      await servers.stop();
      remove(folder);
    },
    { scope: 'worker' },
  ],

  browserProfile: [
    // eslint-disable-next-line no-empty-pattern -- the same
    async ({}, use) => {
      if (BROWSER === undefined) throw new Error('there is no chromium: run tests/editor/setup.sh');
      const folder = temporaryFolder('browser');
      const context = await chromium.launchPersistentContext(folder, {
        executablePath: BROWSER,
        headless: true,
        viewport: VIEWPORT,
        args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync', '--disable-dev-shm-usage'],
      });
      await use(context);
      await context.close();
      remove(folder);
    },
    { scope: 'worker' },
  ],

  // eslint-disable-next-line no-empty-pattern -- the same
  folder: async ({}, use) => {
    const folder = temporaryFolder('scenario');
    await use(folder);
    remove(folder);
  },

  workspace: async ({ folder, configurations }, use) => {
    const workspace = path.join(folder, 'project');
    fs.cpSync(WORKSPACE, workspace, { recursive: true, filter: (file) => !file.includes('__pycache__') });
    fs.copyFileSync(DEMO, path.join(workspace, 'train.py'));
    if (configurations.length > 0) {
      fs.mkdirSync(path.join(workspace, '.vscode'));
      const launch = { version: '0.2.0', configurations };
      fs.writeFileSync(path.join(workspace, '.vscode/launch.json'), JSON.stringify(launch, null, 2));
    }
    await use(workspace);
  },

  server: async ({ servers, extensions, settings, machineSettings, environment }, use) => {
    const server = await servers.get({ extensions, environment });
    server.reset(
      { 'security.workspace.trust.enabled': false, ...settings },
      { 'tensorpoint.python': PYTHON, ...machineSettings },
    );
    await use(server);
  },

  page: async ({ browserProfile, server, dap }, use, info) => {
    const page = await browserProfile.newPage();
    await forget(page, server.origin);
    page.setDefaultTimeout(30_000);
    // What the extension host reports comes here.
    const said: string[] = [];
    page.on('console', (message) => said.push(message.text()));
    await use(page);
    if (info.status !== info.expectedStatus) {
      const left = path.join(CACHE, 'failed', fileName(info.title));
      fs.rmSync(left, { recursive: true, force: true });
      fs.mkdirSync(left, { recursive: true });
      await page.screenshot({ path: path.join(left, 'screen.png') });
      fs.writeFileSync(path.join(left, 'trace.jsonl'), dap.text());
      fs.writeFileSync(path.join(left, 'console.txt'), said.join('\n'));
    }
    await page.close();
  },

  vscode: async ({ page, server, workspace, dap }, use) => {
    const vscode = new Workbench(page);
    await vscode.open(server.url(workspace));
    await dap.ready();
    await use(vscode);
  },

  // The extension "trace" writes it beside the workspace.
  dap: async ({ folder }, use) => use(new Trace(path.join(folder, 'trace.jsonl'))),

  shot: async ({ page }, use) => {
    await use(async (name) => {
      await page.screenshot({ path: path.join(SHOTS, `${name}.png`) });
    });
  },

  figure: async ({ page }, use) => {
    await use(async (name, half) => {
      await page.mouse.move(VIEWPORT.width / 2, VIEWPORT.height - 5);
      await page.waitForTimeout(1000); // what was hovered is no longer
      const height = 0.62 * VIEWPORT.height;
      const y = half === 'top' ? 0 : VIEWPORT.height - height;
      await page.screenshot({
        path: path.join(SHOTS, `vscode-${name}.png`),
        clip: { x: 0, y, width: VIEWPORT.width, height },
      });
    });
  },
});

/** The number of the line of a file that contains this, from 1. */
export function lineOf(file: string, text: string): number {
  const found = fs.readFileSync(file, 'utf8').split('\n').findIndex((line) => line.includes(text));
  if (found < 0) throw new Error(`${file} has no line with ${text}`);
  return found + 1;
}

function temporaryFolder(name: string): string {
  return fs.mkdtempSync(path.join(os.tmpdir(), `tensorpoint-${name}-`));
}

/** What still ends there may write a last time. */
function remove(folder: string): void {
  fs.rmSync(folder, { recursive: true, force: true, maxRetries: 5, retryDelay: 200 });
}

/** The state that VS Code keeps in the browser: views, breakpoints, what was asked already. Its code stays cached. */
async function forget(page: Page, origin: string): Promise<void> {
  const browser = await page.context().newCDPSession(page);
  await browser.send('Storage.clearDataForOrigin', { origin, storageTypes: 'cookies,indexeddb,local_storage' });
  await browser.detach();
}

function fileName(title: string): string {
  return title.replace(/\W+/g, '-').slice(0, 60);
}
