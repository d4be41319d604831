import { expect, lineOf, test } from '../driver/scenario.ts';

test('the Layers view shows the running model, marks the stop, reveals the source', async ({ vscode, dap, workspace, page, figure }) => {
  await vscode.openFile('train.py');
  await page.keyboard.press('F5');
  await vscode.stopped('train.py', lineOf(`${workspace}/train.py`, 'entropy = self.penalty(logits)'));
  await vscode.openLayers();
  await vscode.widenSideBar(180);

  // Filled: the root, what is below it, and the mark.
  const row = (text: string | RegExp) => vscode.layers.filter({ hasText: text }).first();
  await expect(row(/^CharModel/)).toBeVisible();
  await expect(row(/^gpt2GPT2LMHeadModel · .*K/)).toBeVisible();
  await expect(row(/^penalty/).locator('.codicon-flame')).toBeVisible();
  const tree = await dap.body('tensorpoint/layers');
  expect(tree.layers).toContainEqual(expect.objectContaining({ path: 'penalty', type: 'ConfidencePenalty', parameters: 0 }));

  // A click goes to the class's own forward.
  await row(/^penalty/).click();
  const forward = lineOf(`${workspace}/train.py`, 'def forward(self, logits');
  await expect(vscode.statusBar.filter({ hasText: /^Ln / })).toHaveText(new RegExp(`^Ln ${forward},`));

  // The filter box leaves what matches and what is around it.
  await vscode.command('Tensorpoint: Filter Layers');
  await vscode.quickInput.locator('input.input').fill('h.1.mlp');
  await page.keyboard.press('Enter');
  await expect(row(/^mlp/)).toBeVisible();
  await expect(row(/^penalty/)).toBeHidden();
  await expect(row(/^act/)).toBeVisible();

  // A check box is a function breakpoint, which stops where the layer is entered.
  await row(/^mlp/).locator('.monaco-checkbox, input[type=checkbox]').first().click();
  await expect.poll(() => JSON.stringify(dap.requests('setFunctionBreakpoints').at(-1))).toContain('layer:gpt2.transformer.h.1.mlp');
  await dap.body('setFunctionBreakpoints', (body) => JSON.stringify(body).includes('"verified":true'));
  await vscode.action('continue');
  await dap.body('stopped', ({ reason }) => reason === 'function breakpoint');

  // Recorded while the view was in sight: the output's shape and the gradient, of a whole step.
  await vscode.action('continue');
  await expect.poll(() => dap.received('stopped').length).toBe(3);
  await expect(row(/^mlpGPT2MLP · float32\[16, 47, 64\] · .*K/)).toBeVisible();
  await expect(row(/^c_fc.*∇/)).toBeVisible();
  await figure('layers', 'top');
});

test('2,000 modules are shown and filtered without lag', async ({ vscode, dap, page }) => {
  await vscode.openFile('large.py');
  await vscode.openDebugView();
  await vscode.addFunctionBreakpoint('layer:48.9.inner.1');
  await vscode.openFile('large.py');
  await page.keyboard.press('F5');
  await expect.poll(() => dap.received('stopped').length, { timeout: 120_000 }).toBe(1);
  const began = Date.now();
  await vscode.openLayers();
  await expect(vscode.layers.filter({ hasText: /^Sequential/ })).toBeVisible();
  const shown = Date.now() - began;
  const tree = await dap.body('tensorpoint/layers');
  expect((tree.layers as unknown[]).length).toBeGreaterThan(2000);

  await vscode.command('Tensorpoint: Filter Layers');
  const typed = Date.now();
  await vscode.quickInput.locator('input.input').fill('37.4.inner.0');
  await expect(vscode.layers.filter({ hasText: /^0Linear/ })).toBeVisible();
  const filtered = Date.now() - typed;
  expect({ shown: shown < 10_000, filtered: filtered < 3000 }, `shown after ${shown} ms, filtered after ${filtered} ms`).toEqual({ shown: true, filtered: true });
  await page.keyboard.press('Escape');
  await vscode.action('stop');
  await vscode.ended();
});
