import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';

import { AFRESH, expect, lineOf, PYTHON, test } from '../driver/scenario.ts';

/** The interpreter that .venv was made with: nothing is installed there. */
const BARE = spawnSync(PYTHON, ['-c', 'import sys; print(sys._base_executable)'], { encoding: 'utf8' }).stdout.trim();

test('an error of the program is shown at its line', async ({ vscode, workspace, page, shot }) => {
  await vscode.openFile('missing.py');
  await page.keyboard.press('F5');
  await vscode.stopped('missing.py', lineOf(`${workspace}/missing.py`, 'import not_installed'));
  await expect(vscode.exceptionBox).toContainText("No module named 'not_installed_anywhere'");
  await shot('program-error');
});

test.describe('a configuration with an interpreter that is not there', () => {
  test.use({
    configurations: [{ name: 'Wrong', type: 'tensorpoint', request: 'launch', program: '${file}', python: '/nowhere/bin/python' }],
  });

  test('is told so, and nothing is started', async ({ vscode, dap, page, shot }) => {
    await vscode.openFile('plain.py');
    await page.keyboard.press('F5');
    await expect(vscode.notification('There is no interpreter "/nowhere/bin/python". It comes from the configuration.')).toBeVisible();
    await shot('missing-interpreter');
    expect(dap.started()).toEqual([]);
  });
});

test.describe('an interpreter without Tensorpoint', () => {
  test.use({ environment: AFRESH, machineSettings: { 'tensorpoint.python': BARE } });

  test('leads to one message with Install, after which the program runs', async ({ vscode, dap, page, server, shot }) => {
    test.setTimeout(400_000);
    await vscode.openFile('plain.py');
    await page.keyboard.press('F5');
    await expect(vscode.dialog).toContainText('Tensorpoint is not installed for');
    await shot('install');
    await vscode.dialog.locator('.monaco-button', { hasText: 'Install' }).click();
    await expect(vscode.notification(/Tensorpoint.*(environment|installing)/s)).toBeVisible();
    await expect.poll(() => dap.received('exited').length, { timeout: 300_000 }).toBe(1);
    const [launch] = dap.requests('launch');
    expect(launch?.arguments?.python).toEqual([BARE]);
    // Tensorpoint runs in the extension's environment; the program's own has got nothing.
    const [environment] = fs.readdirSync(server.storage).filter((name) => name.startsWith('server-'));
    expect(fs.existsSync(path.join(server.storage, environment ?? '', 'bin/tensorpoint'))).toBe(true);
    expect(spawnSync(BARE, ['-c', 'import tensorpoint']).status).not.toBe(0);

    // The second time nobody is asked.
    await vscode.ended();
    await vscode.openFile('plain.py');
    await page.keyboard.press('F5');
    await expect.poll(() => dap.received('exited').length, { timeout: 60_000 }).toBe(2);
    await expect(vscode.dialog).toBeHidden();
  });

  test('is left as it was if installing is cancelled', async ({ vscode, dap, page, server }) => {
    await vscode.openFile('plain.py');
    await page.keyboard.press('F5');
    await vscode.dialog.locator('.monaco-button', { hasText: 'Install' }).click();
    const progress = vscode.notification(/Tensorpoint.*(environment|installing)/s);
    await progress.locator('.monaco-button', { hasText: 'Cancel' }).click();
    await expect(vscode.notifications).toHaveCount(0);
    const environments = () => fs.readdirSync(server.storage).filter((name) => name.startsWith('server-'));
    await expect.poll(environments).toEqual([]);
    expect(dap.started()).toEqual([]);
  });

  test('starts nothing if the message is dismissed', async ({ vscode, dap, page }) => {
    await vscode.openFile('plain.py');
    await page.keyboard.press('F5');
    await vscode.dialog.locator('.monaco-button', { hasText: 'Cancel' }).click();
    await expect(vscode.dialog).toBeHidden();
    expect(dap.started()).toEqual([]);
  });
});

test.describe('an installed version that does not fit', () => {
  test.use({ environment: { ...AFRESH, PYTHONPATH: path.resolve(import.meta.dirname, '../other-version') } });

  test('is said plainly, with the choice', async ({ vscode, dap, page }) => {
    await vscode.openFile('plain.py');
    await page.keyboard.press('F5');
    await expect(vscode.dialog).toContainText('The installed Tensorpoint does not match this extension.');
    await expect(vscode.dialog).toContainText(/It is 9\.9\.0, in .*; the extension is 0\.1\.0/);
    await expect(vscode.dialog.locator('.monaco-button', { hasText: "Use the Extension's" })).toBeVisible();
    await vscode.dialog.locator('.monaco-button', { hasText: 'Use It Anyway' }).click();
    await dap.body('exited');
  });
});

test.describe('Ctrl+F5', () => {
  test.use({
    configurations: [{ name: 'Plain', type: 'tensorpoint', request: 'launch', program: '${workspaceFolder}/plain.py', console: 'internalConsole' }],
  });

  test('runs the program without a debugger in it', async ({ vscode, dap, page }) => {
    await vscode.openFile('plain.py');
    await page.keyboard.press('Control+F5');
    await expect(vscode.console.filter({ hasText: 'end of plain.py' }).first()).toBeVisible();
    await expect(vscode.console.filter({ hasText: 'debugged False' }).first()).toBeVisible();
    await expect(vscode.console.filter({ hasText: 'from .env yes' }).first()).toBeVisible();
    await vscode.ended();
    expect(dap.requests('launch')[0]?.arguments).toMatchObject({ noDebug: true });
    await expect(vscode.notifications).toHaveCount(0);
  });
});

test.describe('a workspace that is not trusted', () => {
  test.use({ settings: { 'security.workspace.trust.enabled': true, 'security.workspace.trust.startupPrompt': 'never' } });

  test('runs nothing', async ({ vscode, dap, page }) => {
    await vscode.openFile('plain.py');
    await page.keyboard.press('F5');
    await expect(page.locator('.part.sidebar')).toContainText('All debug extensions are disabled');
    expect(dap.started()).toEqual([]);
    // The extension is not there at all: its commands are not offered.
    await page.keyboard.press('F1');
    await vscode.quickInput.locator('input.input').fill('>Tensorpoint: Show Log');
    await expect(vscode.quickInput.locator('.monaco-list-row', { hasText: 'Tensorpoint: Show Log' })).toHaveCount(0);
  });
});
