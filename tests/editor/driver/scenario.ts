/** The fixtures of a scenario: a workspace, an editor on it, and what was said to the debugger. */
import { test as base, type Page, chromium } from '@playwright/test';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';

import { CACHE, ROOT, startServer, type Extension, type Server } from './server.ts';
import { Trace } from './trace.ts';
import { Workbench } from './workbench.ts';

export { expect } from '@playwright/test';

export const PYTHON = path.join(ROOT, '.venv/bin/python');
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

export const test = base.extend<Options & Fixtures>({
  extensions: [['tensorpoint', 'trace'], { option: true }],
  settings: [{}, { option: true }],
  machineSettings: [{}, { option: true }],
  environment: [{}, { option: true }],
  configurations: [[], { option: true }],

  // eslint-disable-next-line no-empty-pattern -- Playwright reads what a fixture needs from its parameter
  folder: async ({}, use) => {
    const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'tensorpoint-editor-'));
    await use(folder);
    fs.rmSync(folder, { recursive: true, force: true });
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

  server: async ({ folder, extensions, settings, machineSettings, environment }, use) => {
    const server = await startServer({
      folder,
      extensions,
      settings: { 'security.workspace.trust.enabled': false, ...settings },
      machineSettings: { 'tensorpoint.python': PYTHON, ...machineSettings },
      environment,
    });
    await use(server);
    await server.stop();
  },

  page: async ({ folder, server }, use, info) => {
    if (BROWSER === undefined) throw new Error('there is no chromium: run tests/editor/setup.sh');
    const context = await chromium.launchPersistentContext(path.join(folder, 'browser'), {
      executablePath: BROWSER,
      headless: true,
      viewport: VIEWPORT,
      args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync', '--disable-dev-shm-usage'],
    });
    const page = context.pages()[0] ?? (await context.newPage());
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
      fs.copyFileSync(server.trace, path.join(left, 'trace.jsonl'));
      fs.writeFileSync(path.join(left, 'console.txt'), said.join('\n'));
    }
    await context.close();
  },

  vscode: async ({ page, server, workspace, dap }, use) => {
    const vscode = new Workbench(page);
    await vscode.open(server.url(workspace));
    await dap.ready();
    await use(vscode);
  },

  dap: async ({ server }, use) => use(new Trace(server.trace)),

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

function fileName(title: string): string {
  return title.replace(/\W+/g, '-').slice(0, 60);
}
