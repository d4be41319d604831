import fs from 'node:fs';

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
  const file = `${workspace}/.vscode/settings.json`;
  const settings = () => (fs.existsSync(file) ? fs.readFileSync(file, 'utf8').replace(/\s/g, '') : '');
  await expect.poll(settings).toBe('{"tensorpoint.tensorpoints":["grad_norm()>20"]}');

  await page.keyboard.press('F5');
  await vscode.stopped('finetune.py', lineOf(`${workspace}/finetune.py`, '# clip'));
  expect(dap.requests('launch')[0]?.arguments).toMatchObject({ tensorpoints: ['grad_norm() > 20'] });

  // In a session, what is set takes effect at once, and can be taken out again.
  await vscode.command('Tensorpoint: Break on Attention Entropy Shift');
  await expect(input).toHaveValue('6');
  await input.press('Enter');
  await dap.body('evaluate', ({ result }) => String(result).includes('entropy_shift("*") > 6'));
  await expect(vscode.statusBar.filter({ hasText: 'Tensorpoint ·' })).toContainText('3 armed');
  await vscode.command('Tensorpoint: Show Tensorpoints');
  await vscode.pick('grad_norm() > 20');
  await dap.body('evaluate', ({ result }) => String(result).startsWith('off: grad_norm() > 20'));
  await expect.poll(settings).not.toContain('grad_norm');
});
