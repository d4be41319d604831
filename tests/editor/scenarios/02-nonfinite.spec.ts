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
  await expect(vscode.exceptionBox).toContainText('log of 0 is -inf: p at [');
  await expect(vscode.exceptionBox).toContainText('Clamp the argument, such as x.clamp_min(');

  // The scope on top has it in rows: why, what helps, what went in.
  await expect(vscode.variables.first()).toHaveAttribute('aria-label', 'Scope Tensor event');
  const event = (name: string) => vscode.variables.filter({ hasText: new RegExp(`^${name} ?=`) }).first();
  await expect(event('cause')).toContainText('log of 0 is -inf');
  await expect(event('cure')).toContainText('Clamp the argument');
  await expect(event('operand p')).toContainText('float32');

  // The way of the value, from where it was made: in the console, and below the stack.
  await expect(vscode.callStack.filter({ hasText: 'From there the value came by way of' })).toBeVisible();
  const way = { file: `${workspace}/train.py`, line: lineOf(`${workspace}/train.py`, 'return -(p * log_p)') };
  expect(dap.received('output').map(({ body }) => body)).toContainEqual(
    expect.objectContaining({ output: expect.stringContaining('aten.mul.Tensor in penalty'), line: way.line, source: expect.objectContaining({ path: way.file }) }),
  );
  await vscode.fold('Watch', false);
  await vscode.fold('Layers', true);
  await expect(vscode.layers.filter({ hasText: 'penalty' }).first()).toBeVisible();
  await figure('nonfinite', 'top');

  // The program goes on from there as from any stop.
  await vscode.action('continue');
  await vscode.ended();
});
