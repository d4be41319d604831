import { expect, lineOf, test } from '../driver/scenario.ts';

test('"Break on Gradient Norm Above..." has its input checked by the server, with no session', async ({ vscode, dap, workspace, page, shot }) => {
  await vscode.openFile('finetune.py');
  await vscode.command('Tensorpoint: Break on Gradient Norm Above');
  const input = vscode.quickInput.locator('input.input');
  const objection = vscode.quickInput.locator('.quick-input-message');
  await input.fill('> 10 and steps > 3');
  await expect(objection).toContainText('unknown metric "steps": did you mean step?');
  await shot('checked-input');
  await page.keyboard.press('Enter');
  await expect(input).toBeVisible();
  await input.fill('20');
  await expect(objection).not.toContainText('unknown metric');
  await page.keyboard.press('Enter');
  await expect(vscode.quickInput).toBeHidden();

  await page.keyboard.press('F5');
  await vscode.stopped('finetune.py', lineOf(`${workspace}/finetune.py`, '# clip'));
  expect(dap.requests('setFunctionBreakpoints')[0]?.arguments).toMatchObject({
    breakpoints: [{ name: 'tensorpoint:grad_norm() > 20' }],
  });

  // In a session, what is set takes effect at once, and can be taken out again.
  await vscode.command('Tensorpoint: Break on Attention Entropy Shift');
  await expect(input).toHaveValue('6');
  await input.press('Enter');
  await dap.body('setFunctionBreakpoints', ({ breakpoints }) => (breakpoints as { verified: boolean }[]).length === 2);
  await expect(vscode.statusBar.filter({ hasText: 'Tensorpoint ·' })).toContainText('3 armed');
  await vscode.tick('tensorpoint:grad_norm() > 20', false);
  await expect(vscode.statusBar.filter({ hasText: 'Tensorpoint ·' })).toContainText('2 armed');
  await shot('rows');

  // A row that is off is on again when its command is chosen.
  await vscode.command('Tensorpoint: Break on Gradient Norm Above');
  await input.fill('20');
  await input.press('Enter');
  await expect(vscode.statusBar.filter({ hasText: 'Tensorpoint ·' })).toContainText('3 armed');
  await expect(vscode.breakpoints.filter({ hasText: 'grad_norm() > 20' })).toHaveCount(1);
});

test('"Break on NaN/Inf..." and "Break on Tensor Condition..." are rows that stop', async ({ vscode, dap, workspace, page }) => {
  const input = vscode.quickInput.locator('input.input');
  const objection = vscode.quickInput.locator('.quick-input-message');
  await vscode.openFile('train.py');
  await vscode.command('Tensorpoint: Break on Tensor Condition');
  await input.fill('absmax("penalty") >');
  await expect(objection).toContainText('a value is missing after');
  await input.fill('loss > 3 and step == 0');
  await expect(objection).not.toContainText('a value is missing after');
  await page.keyboard.press('Enter');
  await expect(vscode.quickInput).toBeHidden();
  await vscode.command('Tensorpoint: Break on NaN/Inf');
  await expect(input).toHaveValue('*');
  await input.fill('pen*');
  await page.keyboard.press('Enter');
  await expect(vscode.quickInput).toBeHidden();

  await page.keyboard.press('F5');
  const [first, second] = ['loss > 3 and step == 0', 'nonfinite("pen*")'];
  expect(await dap.body('stopped')).toMatchObject({ tensorpoint: { condition: first, step: 0 } });
  await vscode.openDebugView();
  await vscode.tick('NaN/Inf', false);
  await vscode.action('continue');
  await expect.poll(() => dap.received('stopped').length).toBe(2);
  expect(dap.received('stopped')[1]?.body).toMatchObject({ tensorpoint: { condition: second, module: 'penalty' } });
  await vscode.stopped('train.py', lineOf(`${workspace}/train.py`, 'entropy = self.penalty(logits)'));
});
