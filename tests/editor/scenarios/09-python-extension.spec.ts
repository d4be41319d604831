import fs from 'node:fs';

import { AFRESH, expect, PYTHON, test } from '../driver/scenario.ts';

test.describe('with the Python extension', () => {
  test.use({
    extensions: ['tensorpoint', 'trace', 'python', 'debugpy'],
    environment: { ...AFRESH, TENSORPOINT_EDITOR_PYTHON: PYTHON },
    machineSettings: { 'tensorpoint.python': '/not/asked/for' },
  });

  test('F5 offers Tensorpoint in the picker and runs the interpreter that is selected there', async ({ vscode, dap, page, shot }) => {
    await vscode.openFile('plain.py');
    await page.keyboard.press('F5');
    for (const label of ['Python Debugger', 'Tensorpoint'])
      await expect(vscode.quickInput.locator('.monaco-list-row', { hasText: label }).first()).toBeVisible();
    await shot('picker');
    await vscode.pick('Tensorpoint');
    await expect.poll(() => dap.received('exited').length).toBe(1);
    expect(dap.started()[0]?.configuration).toMatchObject({ type: 'tensorpoint', python: [PYTHON] });
  });

  test.describe('a debugpy configuration', () => {
    const configurations = [
      {
        name: 'Theirs',
        type: 'debugpy',
        request: 'launch',
        program: '${workspaceFolder}/plain.py',
        python: '${command:python.interpreterPath}',
        console: 'internalConsole',
        envFile: '${workspaceFolder}/.env',
      },
    ];

    test.describe('with the opt-in', () => {
      test.use({ configurations, settings: { 'tensorpoint.debugpyConfigurations': true } });

      test('runs with Tensorpoint', async ({ vscode, dap, page }) => {
        await vscode.openFile('plain.py');
        await page.keyboard.press('F5');
        await expect.poll(() => dap.received('exited').length).toBe(1);
        expect(dap.started()[0]).toMatchObject({ type: 'tensorpoint', configuration: { name: 'Theirs', python: PYTHON } });
        const labels = JSON.stringify(dap.received('initialize')[0]?.body?.exceptionBreakpointFilters);
        expect(labels).toContain('NaN/Inf');
        await expect(vscode.console.filter({ hasText: 'from .env yes' }).first()).toBeVisible();
      });
    });

    test.describe('without it', () => {
      test.use({ configurations });

      test('is left to the other extension', async ({ vscode, dap, page }) => {
        await vscode.openFile('plain.py');
        await page.keyboard.press('F5');
        await expect.poll(() => dap.started().map((session) => session.type)).toEqual(['debugpy']);
      });
    });
  });
});

test.describe('Debug Test', () => {
  test('on a pytest function stops in that test', async ({ vscode, dap, workspace, page }) => {
    await vscode.openFile('test_gate.py');
    const lens = page.locator('.codelens-decoration a', { hasText: 'Debug Test with Tensorpoint' });
    await expect(lens).toHaveCount(2);
    await lens.last().click();
    const text = fs.readFileSync(`${workspace}/tests/test_gate.py`, 'utf8').split('\n');
    await vscode.stopped('test_gate.py', text.findIndex((line) => line.includes('# call gate')) + 1);
    expect(dap.requests('launch')[0]?.arguments).toMatchObject({
      module: 'pytest',
      args: ['-s', `${workspace}/tests/test_gate.py::TestGate::test_negative`],
    });
  });
});
