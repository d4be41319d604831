/** The ways into a session beside F5 on a file: the walkthrough, a program that listens, torchrun. */
import { spawn } from 'node:child_process';

import { expect, lineOf, PYTHON, test } from '../driver/scenario.ts';
import { freePort } from '../driver/server.ts';

const port = await freePort();

test('the walkthrough leads to the NaN of its sample', async ({ vscode, dap, page, shot }) => {
  await vscode.command('Welcome: Open Walkthrough...');
  await vscode.quickInput.locator('input.input').fill('Find a NaN');
  await expect(vscode.quickInput.locator('.monaco-list-row', { hasText: 'Find a NaN in five minutes' })).toBeVisible();
  await page.keyboard.press('Enter'); // a click may meet the row's tooltip
  const walkthrough = page.locator('.gettingStartedContainer');
  await walkthrough.getByRole('button', { name: 'Open the Sample' }).click();
  await page.locator('.tabs-container .tab.active[data-resource-name="find_a_nan.py"]').waitFor();
  await shot('walkthrough');
  await vscode.command('Debug Python File with Tensorpoint');
  expect(await dap.body('stopped')).toMatchObject({ tensorpoint: { event: 'nonfinite.forward' } });
  await expect(vscode.exceptionBox).toBeVisible();
});

test.describe('attach', () => {
  test.use({ configurations: [{ name: 'Attach', type: 'tensorpoint', request: 'attach', connect: { host: '127.0.0.1', port } }] });

  test('to a program that listens with debugpy alone', async ({ vscode, dap, workspace, page }) => {
    const program = spawn(PYTHON, ['-m', 'debugpy', '--listen', String(port), '--wait-for-client', 'children.py'], { cwd: workspace, stdio: 'ignore' });
    try {
      await vscode.openFile('children.py');
      // The port is open once debugpy has started.
      await expect(async () => {
        await page.keyboard.press('F5');
        await dap.body('stopped');
      }).toPass();
      await vscode.stopped('children.py', lineOf(`${workspace}/children.py`, '# in the child'));
      await vscode.action('continue');
      await vscode.ended();
    } finally {
      program.kill();
    }
  });
});

test.describe('torchrun', () => {
  test.use({
    configurations: [
      {
        name: 'Ranks',
        type: 'tensorpoint',
        request: 'launch',
        module: 'torch.distributed.run',
        args: ['--nproc-per-node', '2', '--master-port', String(port), '${file}'],
      },
    ],
  });

  test('stops in the rank that made a NaN', async ({ vscode, dap, workspace, page, shot }) => {
    await vscode.openFile('ranks.py');
    await page.keyboard.press('F5');
    await vscode.stopped('ranks.py', lineOf(`${workspace}/ranks.py`, '# in each rank'));
    await expect.poll(() => dap.started().map((session) => session.name).toSorted()).toEqual(['Rank 0 of 2', 'Rank 1 of 2', 'Ranks']);
    expect(await dap.body('stopped')).toMatchObject({ tensorpoint: { event: 'nonfinite.forward', module_type: 'Gate' } });
    await shot('ranks');
    await vscode.action('continue');
    await vscode.ended();
  });
});
