import { expect, lineOf, test } from '../driver/scenario.ts';

test('steps by layers: over, into, out, back, through backward; line and view follow', async ({ vscode, dap, workspace, page }) => {
  await vscode.openFile('blocks.py');
  await vscode.openDebugView();
  await vscode.addFunctionBreakpoint('layer:Net');
  await vscode.openFile('blocks.py');
  await page.keyboard.press('F5');
  await expect.poll(() => dap.received('stopped').length, { timeout: 120_000 }).toBe(1);
  await vscode.openLayers();

  const line = (text: string) => lineOf(`${workspace}/blocks.py`, text);
  const row = (text: string | RegExp) => vscode.layers.filter({ hasText: text }).first();
  /** The button of the view; where it leads, in words, in the editor and in the view. */
  const step = async (button: string, description: string, at: { line?: string; row?: RegExp } = {}) => {
    await vscode.pane('Layers').hover();
    await vscode.pane('Layers').locator(`.codicon-debug-step-${button}`).click();
    await expect.poll(() => dap.received('stopped').at(-1)?.body?.description).toBe(description);
    if (at.line !== undefined) await expect(vscode.statusBar.filter({ hasText: /^Ln / })).toHaveText(new RegExp(`^Ln ${line(at.line)},`));
    if (at.row !== undefined) await expect(row(at.row).locator('.codicon-debug-stackframe')).toBeVisible();
  };

  await step('into', 'Entering layers.0 (Block)', { line: '# the forward of a block', row: /^0Block/ });
  await step('over', 'Entering layers.1 (Block)', { line: '# the forward of a block', row: /^1Block/ });
  await step('over', 'Entering head (Linear)', { row: /^headLinear/ });
  await step('back', 'Entering layers.1 (Block)', { row: /^1Block/ });
  await step('into', 'Entering layers.1.norm (LayerNorm)', { row: /^normLayerNorm/ });
  await step('out', 'Leaving layers.1 (Block)', { row: /^1Block/ });
  await step('over', 'Entering head (Linear)');
  await step('over', 'Leaving (root) (Net)');
  await step('over', 'Entering (root) (Net) in backward');
  await step('into', 'Entering head (Linear) in backward', { row: /^headLinear/ });
  await step('into', 'Entering layers.1 (Block) in backward', { row: /^1Block/ });
  await vscode.action('stop');
  await vscode.ended();
});
