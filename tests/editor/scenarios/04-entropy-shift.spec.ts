import { expect, lineOf, test } from '../driver/scenario.ts';

const NAME = 'Finetune';

test.use({
  configurations: [{ name: NAME, type: 'tensorpoint', request: 'launch', program: '${workspaceFolder}/finetune.py', stopOnEntry: true }],
});

test('"Attention entropy shift" stops at the layer whose attention collapses', async ({ vscode, dap, workspace, page, shot }) => {
  await vscode.openFile('finetune.py');
  await page.keyboard.press('F5');
  await vscode.stopped('finetune.py', 1);
  await vscode.tick('Attention entropy shift');
  await vscode.action('continue');
  await vscode.stopped('finetune.py', lineOf(`${workspace}/finetune.py`, '# call attn'));
  expect(await dap.body('stopped', ({ reason }) => reason === 'exception')).toMatchObject({
    tensorpoint: { event: 'entropy_shift', module: 'layers.1.attn', step: 30 },
  });
  await expect(vscode.exceptionBox).toContainText('layers.1.attn (Attention)');
  await shot('entropy-shift');
});
