import { expect, lineOf, test } from '../driver/scenario.ts';

const NAME = 'Finetune';

test.use({
  configurations: [{ name: NAME, type: 'tensorpoint', request: 'launch', program: '${workspaceFolder}/finetune.py', stopOnEntry: true }],
});

test('a bad condition of "Gradient norm" is refused with the reason, a good one stops', async ({ vscode, dap, workspace, page, shot, figure }) => {
  await vscode.openFile('finetune.py');
  await page.keyboard.press('F5');
  await vscode.stopped('finetune.py', 1);

  await vscode.tick('Gradient norm');
  await expect(vscode.notification('write a threshold for this filter')).toBeVisible();

  await vscode.editCondition('Gradient norm', '> 10 and step < 0');
  await expect(vscode.notification('step is a whole number of at least 0')).toBeVisible();
  const refused = await dap.body('setExceptionBreakpoints', (body) => JSON.stringify(body).includes('can never hold'));
  expect(refused.breakpoints).toContainEqual(expect.objectContaining({ verified: false }));
  await figure('refused', 'bottom');

  await vscode.editCondition('Gradient norm', '> 20');
  await dap.body('setExceptionBreakpoints', ({ breakpoints }) => (breakpoints as { verified: boolean }[]).every((item) => item.verified));
  await vscode.action('continue');
  await vscode.stopped('finetune.py', lineOf(`${workspace}/finetune.py`, '# clip'));
  expect(await dap.body('stopped', ({ reason }) => reason === 'exception')).toMatchObject({
    tensorpoint: { condition: 'grad_norm() > 20', event: 'grad_norm', step: 30 },
  });
  await expect(vscode.exceptionBox).toContainText('grad_norm');
  await shot('gradient-norm');
});
