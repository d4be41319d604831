/** The resident process and hot swap: F5, stop, edit forward, F5 again. */
import fs from 'node:fs';

import { expect, lineOf, test } from '../driver/scenario.ts';

const PROGRAM = `import torch


class Net(torch.nn.Module):
    def forward(self, x):
        h = x * 2
        return h / torch.zeros(3)  # makes infinities


Net()(torch.ones(3))
`;

test.use({
  configurations: [{ name: 'Edited', type: 'tensorpoint', request: 'launch', program: '${workspaceFolder}/edited.py', hotSwap: true }],
});
test.setTimeout(360_000); // the first F5 waits for the resident process

test('an edit of forward is run by the next F5, which starts in a moment', async ({ vscode, dap, workspace, page }, info) => {
  const file = `${workspace}/edited.py`;
  fs.writeFileSync(file, PROGRAM);
  const times: number[] = [];
  const start = async (number: number) => {
    const began = Date.now();
    await page.keyboard.press('F5');
    await expect.poll(() => dap.received('stopped').length, { timeout: 240_000, intervals: [20] }).toBe(number);
    times.push(Date.now() - began);
    await vscode.stopped('edited.py', lineOf(file, '# makes infinities'));
    // The stub that debugpy has started, and the program: a fork of the resident process.
    expect(await dap.body('process')).toHaveProperty('stubProcessId');
  };
  await vscode.openFile('edited.py');
  await start(1);

  await page.locator('.editor-group-container.active .monaco-editor .view-lines').first().click();
  await vscode.goToLine(lineOf(file, 'h = x * 2'));
  await page.keyboard.press('End');
  await page.keyboard.press('Enter');
  await page.keyboard.type('h = h + 40');
  await page.keyboard.press('Control+s');
  await expect.poll(() => fs.readFileSync(file, 'utf8')).toContain('        h = h + 40\n');
  await dap.body('output', ({ output }) => String(output).includes('edited.py: Net.forward has its new code'));
  await vscode.action('stop');
  await vscode.ended();

  await start(2);
  await vscode.evaluate('h[0].item()');
  await expect(page.locator('.repl .monaco-list-row', { hasText: '42.0' }).first()).toBeVisible();
  await vscode.action('restart');
  await expect.poll(() => dap.received('stopped').length).toBe(3);
  await vscode.stopped('edited.py', lineOf(file, '# makes infinities'));
  info.annotations.push({ type: 'F5 to stopped, ms', description: times.join(', ') });
  console.log(`F5 to stopped: ${times.join(' ms, ')} ms`);
});
