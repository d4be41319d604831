import { expect, lineOf, test } from '../driver/scenario.ts';

test.use({ settings: { 'debug.inlineValues': 'on' } });
test.setTimeout(480_000); // six things to look at in one session

function brightness(colour: string): number {
  const [red = 0, green = 0, blue = 0] = (colour.match(/[\d.]+/g) ?? []).map(Number);
  return 0.3 * red + 0.6 * green + 0.1 * blue;
}

test('tensors in variables, hovers, watches, a data breakpoint and the tensor view', async ({ vscode, dap, workspace, page, shot }) => {
  const line = lineOf(`${workspace}/tensors.py`, '# after backward');
  await vscode.openFile('tensors.py');
  await vscode.goToLine(line);
  await vscode.command('Debug: Toggle Breakpoint');
  await page.keyboard.press('F5');
  await vscode.stopped('tensors.py', line);

  // Rows: metadata in place of numbers.
  const row = (text: string | RegExp) => vscode.variables.filter({ hasText: text }).first();
  await vscode.fold('Watch', false);
  await vscode.fold('Layers', false);
  await vscode.fold('Call Stack', false);
  await vscode.fold('Breakpoints', false);
  await vscode.widenSideBar(260);
  await vscode.openLocals();
  await expect(row(/^large/)).toContainText('f32[1000, 1000] cpu');
  await expect(row(/^model/)).toContainText('260 parameters f32 cpu train');
  await shot('tensors-variables');

  // Inline values are the same lines, and cost one request.
  await expect(page.locator('.monaco-editor .view-line', { hasText: 'loss = f32[] cpu grad' }).first()).toBeVisible();
  expect(dap.requests('tensorpoint/inlineValues').length).toBeGreaterThan(0);

  // A hover in the code.
  const call = lineOf(`${workspace}/tensors.py`, 'loss = model(images)');
  await expect(await vscode.hover(call, 17)).toContainText('260 parameters');
  await shot('tensors-hover-model');
  await page.keyboard.press('Escape');
  const update = lineOf(`${workspace}/tensors.py`, 'largest = model.fc.weight');
  await expect(await vscode.hover(update, 'largest = model.fc.wei'.length + 8)).toContainText(/Parameter f32\[4, 8\] cpu grad \| µ .*‖grad‖ \d/);
  await shot('tensors-hover-gradient');
  await page.keyboard.press('Escape');

  // The language's hover, which Alt shows in place of the debugger's, links to the tensor view.
  await vscode.goToLine(update, 'largest = model.fc.wei'.length + 8);
  await vscode.command('Show or Focus Hover');
  const link = page.locator('.monaco-hover a', { hasText: 'View Tensor' });
  await expect(link).toBeVisible();
  await shot('tensors-hover-link');
  await link.click();
  await expect(page.getByRole('tab', { name: 'model.fc.weight' })).toBeVisible();
  await vscode.command('View: Close Editor');

  // Expansion by pages.
  await row(/^large/).click();
  await page.keyboard.press('ArrowRight');
  await expect(row(/^storage/)).toContainText('4 MB');
  await shot('tensors-children');
  await row(/^values/).click();
  await page.keyboard.press('ArrowRight');
  await expect(row(/^\[100\.\.199\]/)).toBeVisible();
  await row(/^\[100\.\.199\]/).click();
  await page.keyboard.press('ArrowRight');
  await expect(row(/^\[100\]/)).toBeVisible();
  expect(dap.requests('variables').map(({ arguments: args }) => args)).toContainEqual(expect.objectContaining({ filter: 'indexed', start: 100, count: 100 }));
  await shot('tensors-pages');
  await vscode.collapseVariables();

  // The tensor view, from the row's menu.
  await row(/^large/).click({ button: 'right' });
  const began = Date.now();
  await vscode.menuItem('View Tensor');
  const frame = page.frameLocator('iframe.webview.ready').frameLocator('iframe');
  const canvas = frame.locator('canvas.pixels').first();
  await expect(canvas).toBeVisible();
  const opened = Date.now() - began;
  await expect(frame.locator('body')).toContainText('16,000'); // NaN
  const colours = await canvas.evaluate((element: HTMLCanvasElement) => {
    const pixels = element.getContext('2d')?.getImageData(0, 0, element.width, element.height).data ?? [];
    const found = new Set<string>();
    for (let at = 0; at < pixels.length; at += 4) found.add(`${pixels[at]},${pixels[at + 1]},${pixels[at + 2]}`);
    return [...found];
  });
  expect(colours.length).toBeGreaterThan(20);
  expect(colours).toContain('255,0,255'); // where the NaN are
  const histogram = frame.locator('.uplot canvas').first();
  expect(await histogram.evaluate((element: HTMLCanvasElement) => new Set(element.getContext('2d')?.getImageData(0, 0, element.width, element.height).data).size)).toBeGreaterThan(5);
  await canvas.focus();
  await page.keyboard.press('ArrowDown');
  await expect(frame.locator('.status').first()).toContainText('[4, 0] =');
  test.info().annotations.push({ type: 'opened', description: `a million elements, after ${opened} ms` });
  await shot('tensors-view');

  // Hidden behind another tab and back, its page is there again.
  await vscode.openFile('plain.py');
  await expect(canvas).toBeHidden();
  await page.getByRole('tab', { name: /^large/ }).click();
  await expect(canvas).toBeVisible();

  // A dark theme.
  await vscode.command('Preferences: Toggle between Light/Dark Themes');
  await expect(frame.locator('body')).toHaveClass(/vscode-dark/);
  await expect(canvas).toBeVisible();
  const [background, text] = await frame.locator('body').evaluate((body) => [getComputedStyle(body).backgroundColor, getComputedStyle(body).color]);
  expect(brightness(background)).toBeLessThan(80);
  expect(brightness(text)).toBeGreaterThan(140);
  await shot('tensors-view-dark');
  await vscode.command('Preferences: Toggle between Light/Dark Themes');
  await page.getByRole('tab', { name: /^large/ }).click({ button: 'middle' });

  // The attention map of a module: kept from its next call on.
  await row(/^attention/).click({ button: 'right' });
  await vscode.menuItem('View Tensor');
  await expect(frame.locator('body')).toContainText('kept from its next call on');

  // A watch by a metric, on any expression.
  await vscode.fold('Variables', false);
  await vscode.fold('Watch', true);
  await vscode.addWatch('grad_norm(model.fc.weight)');
  await expect(page.locator('.debug-watch .monaco-list-row', { hasText: /^grad_norm\(model\.fc\.weight\)/ }).first()).toContainText(/\d\.\d/);
  await vscode.addWatch('model.fc.weight');
  await expect(page.locator('.debug-watch .monaco-list-row', { hasText: /^model\.fc\.weight/ }).first()).toContainText('‖grad‖');
  await shot('tensors-watch');

  // A data breakpoint on a gradient, from the row's menu.
  await vscode.fold('Watch', false);
  await vscode.fold('Variables', true);
  for (const name of [/^model/, /^fc/, /^weight/]) {
    await row(name).click();
    await page.keyboard.press('ArrowRight');
  }
  await row(/^grad\b/).click({ button: 'right' });
  await vscode.menuItem('Break on Value Change');
  await dap.body('setDataBreakpoints', (body) => JSON.stringify(body).includes('"verified":true'));
  await vscode.action('continue');
  const stopped = await dap.body('stopped', ({ description }) => String(description).includes('change of fc.weight.grad'));
  expect(stopped.reason).toBe('exception');
  await expect(vscode.exceptionBox).toContainText('change of fc.weight.grad');
  await shot('tensors-data-breakpoint');
  await vscode.action('continue'); // it stood at the call of the attention, where the gradient was seen to be gone
  await expect(frame.locator('body')).toContainText('Rows are queries, columns keys; of 12 × 12');
  await expect(canvas).toBeVisible();
  await frame.getByLabel('head, 0 to 1').fill('1');
  await frame.getByLabel('head, 0 to 1').press('Enter');
  await expect(frame.locator('.status').first()).toContainText('From 0 (dark)');
  await shot('tensors-attention');
  await vscode.action('stop');
  await vscode.ended();
});
