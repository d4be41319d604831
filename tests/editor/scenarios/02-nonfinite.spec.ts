import { expect, lineOf, test } from '../driver/scenario.ts';

test('"NaN/Inf" stops a training script at its line, with the diagnosis in the box', async ({ vscode, dap, workspace, page, figure }) => {
  // The filters are listed once VS Code has met the debugger.
  await vscode.openFile('plain.py');
  await page.keyboard.press('F5');
  await dap.body('exited');
  await vscode.ended();
  await vscode.openDebugView();
  await vscode.tick('NaN/Inf', false);
  await vscode.tick('NaN/Inf');

  await vscode.openFile('train.py');
  await page.keyboard.press('F5');
  const line = lineOf(`${workspace}/train.py`, 'entropy = self.penalty(logits)');
  await vscode.stopped('train.py', line);
  const stopped = await dap.body('stopped');
  expect(stopped).toMatchObject({
    reason: 'exception',
    tensorpoint: { event: 'nonfinite.forward', module: 'penalty', module_type: 'ConfidencePenalty', step: 27 },
  });
  expect(stopped.description).toContain('NaN in the output of penalty (ConfidencePenalty)');
  expect(dap.requests('setExceptionBreakpoints').at(-1)?.arguments?.filterOptions).toContainEqual({ filterId: 'nonfinite' });

  await expect(vscode.exceptionBox).toContainText('NaN in the output of penalty (ConfidencePenalty)');
  await expect(vscode.exceptionBox).toContainText("It was made in penalty (ConfidencePenalty): the module's arguments, parameters and buffers are finite.");
  await expect(vscode.variables.first()).toHaveAttribute('aria-label', 'Scope Tensor event');
  await vscode.fold('Watch', false);
  await vscode.fold('Layers', true);
  await expect(vscode.layers.filter({ hasText: 'penalty' }).first()).toBeVisible();
  await figure('nonfinite', 'top');

  // The program goes on from there as from any stop.
  await vscode.action('continue');
  await vscode.ended();
});
