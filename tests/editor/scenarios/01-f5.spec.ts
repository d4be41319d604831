import { expect, lineOf, PYTHON, test } from '../driver/scenario.ts';

test('F5 without launch.json runs the file and stops where the NaN is made', async ({ vscode, dap, workspace }) => {
  await vscode.openFile('train.py');
  await vscode.page.keyboard.press('F5');
  await vscode.stopped('train.py', lineOf(`${workspace}/train.py`, 'entropy = self.penalty(logits)'));
  const [started] = dap.started();
  expect(started?.type).toBe('tensorpoint');
  expect(started?.configuration).toMatchObject({
    request: 'launch',
    program: `${workspace}/train.py`,
    python: [PYTHON],
    cwd: workspace,
    envFile: `${workspace}/.env`,
    console: 'integratedTerminal',
  });
  await expect(vscode.statusBar.filter({ hasText: 'Tensorpoint ·' })).toHaveText(/1 armed · step 27 · stopped/);
});
