/** Shapes before the program runs: hints, a counter-example, a lens, a hover, a code action. */
import fs from 'node:fs';

import { expect, lineOf, test } from '../driver/scenario.ts';

test.use({ settings: { 'tensorpoint.languageServer.enable': true } });
test.setTimeout(180_000); // the first trace imports torch

test('shapes are in the text, and what fails has its size', async ({ vscode, workspace, page, figure }) => {
  const file = `${workspace}/classifier.py`;
  await vscode.openFile('classifier.py');
  const line = (text: string) => page.locator('.monaco-editor .view-line', { hasText: text }).first();
  const slow = { timeout: 90_000 };

  // Hints: the editor shows them as text of the line. Spaces there are of another kind.
  await expect(line('self.block(h)')).toBeVisible();
  await expect.poll(async () => plain(await line('torch.arange').textContent()), slow).toContain('where: i64[T]');
  expect(plain(await line('self.words(ids)').textContent())).toContain('h: f32[B, T, 64]');
  expect(plain(await line('pairs.mean').textContent())).toContain('pooled: f32[B, 128]');

  // A lens above the class.
  await expect(page.locator('.codelens-decoration', { hasText: 'ids: i64[B, T] → f32[B, 10]' }).first()).toBeVisible(slow);

  // A hover has where it comes from.
  await vscode.goToLine(lineOf(file, 'pooled = pairs'), 11);
  await page.keyboard.press('Control+k');
  await page.keyboard.press('Control+i');
  await expect(page.locator('.monaco-hover', { hasText: 'pooled' }).first()).toContainText('f32[B, 128]');
  await page.keyboard.press('Escape');

  // A counter-example, from the symbolic pass.
  await page.keyboard.press('Control+Shift+M');
  const problem = page.locator('.markers-panel .monaco-list-row', { hasText: 'needs T % 2 == 0' }).first();
  await expect(problem).toContainText('T = 15', slow);
  await figure('shapes', 'top');
  await page.keyboard.press('Control+Shift+M');

  // An edit moves the hints at once, and is traced in a moment.
  await vscode.goToLine(lineOf(file, 'h = self.block(h)'));
  await page.keyboard.press('End');
  await page.keyboard.press('Enter');
  await page.keyboard.type('wide = torch.cat([h, h], dim=-1)');
  await expect.poll(async () => plain(await line('torch.cat').textContent()), slow).toContain('wide: f32[B, T, 128]');

  // Written into the source by a code action.
  await vscode.goToLine(lineOf(file, 'pooled = pairs') + 1);
  const action = page.locator('.action-widget .monaco-list-row', { hasText: 'as a comment: f32[B, 128]' });
  await expect(async () => {
    await page.keyboard.press('Escape');
    await page.keyboard.press('Control+Period'); // lost if the box of the line has the focus still
    await action.waitFor({ timeout: 5000 });
  }).toPass();
  await page.keyboard.press('Enter');
  await expect(line('# f32[B, 128]')).toBeVisible();
  await vscode.command('File: Save');
  await expect.poll(() => fs.readFileSync(file, 'utf8')).toContain('pooled = pairs.mean(dim=1)  # f32[B, 128]');
});

/** A line's text with ordinary spaces. */
function plain(text: string | null): string {
  return (text ?? '').replaceAll('\u00a0', ' ').replaceAll('\u200b', '');
}
