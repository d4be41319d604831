import { expect, lineOf, test } from '../driver/scenario.ts';

test('a NaN in a process that the program starts stops in a session of its own', async ({ vscode, dap, workspace, page }) => {
  await vscode.openFile('children.py');
  await page.keyboard.press('F5');
  await vscode.stopped('children.py', lineOf(`${workspace}/children.py`, '# in the child'));
  const [parent, child] = dap.started();
  expect(parent?.configuration).toMatchObject({ program: `${workspace}/children.py` });
  expect(child).toMatchObject({ type: 'tensorpoint', configuration: { request: 'attach' } });
  expect(child?.configuration).toHaveProperty('subProcessId');
  expect(await dap.body('stopped')).toMatchObject({ tensorpoint: { event: 'nonfinite.forward', module_type: 'Gate' } });
  await vscode.action('continue');
  await vscode.ended();
});
