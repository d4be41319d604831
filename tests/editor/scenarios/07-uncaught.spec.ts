import { expect, lineOf, test } from '../driver/scenario.ts';

test('an uncaught exception still stops with "NaN/Inf" on, also if that has a condition', async ({ vscode, dap, workspace, page, shot }) => {
  const line = lineOf(`${workspace}/fails.py`, '# raises');
  await vscode.openFile('fails.py');
  await page.keyboard.press('F5');
  await vscode.stopped('fails.py', line);
  await expect(vscode.exceptionBox).toContainText('the labels are missing');
  expect(await dap.body('stopped')).toMatchObject({ reason: 'exception' });
  await shot('uncaught');

  await vscode.editCondition('NaN/Inf', 'layers.*');
  await vscode.action('restart');
  await expect.poll(() => dap.received('stopped').length).toBe(2);
  await vscode.stopped('fails.py', line);
  expect(dap.requests('setExceptionBreakpoints').at(-1)?.arguments?.filterOptions).toContainEqual({
    filterId: 'nonfinite',
    condition: 'layers.*',
  });
});
