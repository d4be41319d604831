import { expect, lineOf, test } from '../driver/scenario.ts';

test('a function breakpoint named layer:PATH stops where the layer is called', async ({ vscode, dap, workspace, page }) => {
  await vscode.openFile('finetune.py');
  await vscode.openDebugView();
  await vscode.addFunctionBreakpoint('layer:layers.1.mlp');
  await vscode.openFile('finetune.py');
  await page.keyboard.press('F5');
  await vscode.stopped('finetune.py', lineOf(`${workspace}/finetune.py`, '# call mlp'));
  expect(await dap.body('stopped')).toMatchObject({
    reason: 'function breakpoint',
    tensorpoint: { event: 'layer.entry', module: 'layers.1.mlp', step: 0 },
  });
  await vscode.action('continue');
  await dap.body('stopped', ({ tensorpoint }) => (tensorpoint as { step: number }).step === 1);
});
