/** What a user does and sees in VS Code, by the selectors of its workbench. */
import { expect, type Locator, type Page } from '@playwright/test';

/** A program imports torch and transformers first, in a debugger and beside other tests. */
const STOP_MS = 120_000;

export class Workbench {
  readonly exceptionBox: Locator;
  readonly breakpoints: Locator;
  readonly callStack: Locator;
  readonly layers: Locator;
  readonly variables: Locator;
  readonly console: Locator;
  readonly toolbar: Locator;
  readonly quickInput: Locator;
  readonly notifications: Locator;
  readonly statusBar: Locator;
  readonly dialog: Locator;

  constructor(readonly page: Page) {
    this.exceptionBox = page.locator('.exception-widget');
    this.breakpoints = page.locator('.debug-breakpoints .monaco-list-row');
    this.callStack = page.locator('.debug-call-stack .monaco-list-row');
    this.layers = this.pane('Layers').locator('.monaco-list-row');
    this.variables = page.locator('.debug-variables .monaco-list-row');
    this.console = page.locator('.repl-tree .monaco-list-row');
    this.toolbar = page.locator('.debug-toolbar');
    this.quickInput = page.locator('.quick-input-widget:visible');
    this.notifications = page.locator('.notifications-toasts .notification-list-item');
    this.dialog = page.locator('.monaco-dialog-box');
    this.statusBar = page.locator('.part.statusbar .statusbar-item');
  }

  async open(url: string): Promise<void> {
    await this.page.goto(url, { timeout: 120_000 });
    await this.page.locator('.explorer-folders-view .monaco-list-row').first().waitFor({ timeout: 90_000 });
  }

  async openFile(name: string): Promise<void> {
    await this.choose(name, name);
    await this.page.locator(`.tabs-container .tab.active[data-resource-name="${name}"]`).waitFor();
    await this.page.locator('.editor-group-container.active .monaco-editor .view-line').first().waitFor();
  }

  async command(title: string): Promise<void> {
    await this.choose(`>${title}`, title);
  }

  /** In the palette. Whatever takes the focus just then, such as the box of an exception, closes it. */
  private async choose(typed: string, row: string): Promise<void> {
    await expect(async () => {
      await this.page.keyboard.press('F1');
      await this.quickInput.locator('input.input').fill(typed, { timeout: 5000 });
      await this.quickInput.locator('.monaco-list-row', { hasText: row }).first().click({ timeout: 5000 });
    }).toPass();
  }

  /** Choose a row of the quick pick that is open. */
  async pick(text: string | RegExp): Promise<void> {
    await this.quickInput.locator('.monaco-list-row', { hasText: text }).first().click();
  }

  /** Call stack, variables, breakpoints. */
  async openDebugView(): Promise<void> {
    await expect(async () => {
      await this.command('View: Show Run and Debug');
      await expect(this.page.locator('.part.sidebar .composite.title', { hasText: 'Run and Debug' })).toBeVisible({ timeout: 5000 });
    }).toPass();
  }

  pane(name: string): Locator {
    return this.page.locator('.pane').filter({ has: this.page.locator(`.pane-header[aria-label="${name} Section"]`) });
  }

  async fold(name: string, isOpen: boolean): Promise<void> {
    const header = this.page.locator(`.pane-header[aria-label="${name} Section"]`);
    await header.waitFor();
    if ((await header.getAttribute('aria-expanded')) !== String(isOpen)) await header.click();
    await expect(header).toHaveAttribute('aria-expanded', String(isOpen));
  }

  async widenSideBar(by: number): Promise<void> {
    const box = await this.page.locator('.part.sidebar').boundingBox();
    if (box === null) throw new Error('the side bar is not there');
    const [x, y] = [box.x + box.width, box.y + box.height / 2];
    await this.page.mouse.move(x, y);
    await this.page.mouse.down();
    await this.page.mouse.move(x + by, y, { steps: 5 });
    await this.page.mouse.up();
  }

  /** Give the Layers view the whole side bar: what is out of sight is not there. */
  async openLayers(): Promise<void> {
    for (const other of ['Variables', 'Watch', 'Call Stack', 'Breakpoints']) await this.fold(other, false);
    await this.fold('Layers', true);
  }

  breakpoint(label: string): Locator {
    return this.breakpoints.filter({ hasText: label }).first();
  }

  async tick(label: string, isOn = true): Promise<void> {
    const box = this.breakpoint(label).locator('.monaco-checkbox, input[type=checkbox]').first();
    const isChecked = async () =>
      box.evaluate((element) =>
        element instanceof HTMLInputElement ? element.checked : element.getAttribute('aria-checked') === 'true',
      );
    if ((await isChecked()) !== isOn) await box.click();
    await expect.poll(isChecked).toBe(isOn);
  }

  /** Write the condition of an exception filter, as "Edit Condition" has it. */
  async editCondition(label: string, condition: string): Promise<void> {
    await this.breakpoint(label).click({ button: 'right' });
    const item = this.page.locator('.monaco-menu .action-item', { hasText: 'Edit Condition' }).first();
    await item.hover();
    await item.click();
    const input = this.page.locator('.debug-breakpoints .monaco-inputbox input');
    await input.fill(condition);
    await input.press('Enter');
    await input.waitFor({ state: 'detached' });
  }

  async addFunctionBreakpoint(name: string): Promise<void> {
    await this.command('Add Function Breakpoint');
    const input = this.page.locator('.debug-breakpoints .monaco-inputbox input');
    await input.fill(name);
    await input.press('Enter');
    await this.breakpoint(name).waitFor();
  }

  /** The program is suspended, with this file and line on top of the stack. */
  async stopped(file: string, line: number): Promise<void> {
    await expect(this.page.locator('.debug-top-stack-frame-line, .debug-focused-stack-frame-line').first()).toBeVisible({ timeout: STOP_MS });
    if (!(await this.page.locator('.debug-call-stack').isVisible())) await this.openDebugView();
    const frame = this.callStack.filter({ hasText: new RegExp(`${escaped(file)}\\s*${line}:`) }).first();
    // Beside a layer thread the Python thread is a row, collapsed if the view was opened after the stop.
    const collapsed = this.callStack.and(this.page.locator('[aria-expanded="false"]')).filter({ hasNotText: /^layers of/ });
    await expect(async () => {
      if (!(await frame.isVisible()) && (await collapsed.count()) > 0) await collapsed.first().locator('.monaco-tl-twistie').click();
      await expect(frame).toBeVisible({ timeout: 2000 });
    }).toPass({ timeout: 30_000 });
  }

  async ended(): Promise<void> {
    await expect(this.toolbar).toBeHidden();
  }

  async action(name: 'continue' | 'step-over' | 'stop' | 'restart'): Promise<void> {
    await this.toolbar.locator(`.codicon-debug-${name}`).click();
  }

  async evaluate(expression: string): Promise<void> {
    const input = this.page.locator('.repl .repl-input-wrapper .monaco-editor');
    await input.click();
    await this.page.locator('.repl .repl-input-wrapper .monaco-editor.focused').waitFor();
    await this.page.keyboard.type(expression);
    await this.page.keyboard.press('Enter');
  }

  async goToLine(line: number, column = 1): Promise<void> {
    await this.page.keyboard.press('Control+g');
    await this.quickInput.locator('input.input').fill(`:${line}:${column}`);
    await this.page.keyboard.press('Enter');
    await this.quickInput.waitFor({ state: 'detached' }).catch(() => undefined);
  }

  /** The debugger's hover over what is at a place of the editor. */
  async hover(line: number, column: number): Promise<Locator> {
    await this.page.locator('.editor-group-container.active .monaco-editor .view-lines').first().click();
    await this.goToLine(line, column);
    await this.command('Debug: Show Hover');
    const widget = this.page.locator('.debug-hover-widget');
    await widget.waitFor();
    return widget;
  }

  /** An entry of the context menu that is open. */
  async menuItem(text: string): Promise<void> {
    const item = this.page.locator('.monaco-menu .action-item', { hasText: text }).first();
    await item.hover();
    await item.click();
  }

  async addWatch(expression: string): Promise<void> {
    const header = this.page.locator('.pane-header[aria-label="Watch Section"]');
    await header.hover();
    await header.locator('.codicon-watch-expressions-add').click();
    const input = this.page.locator('.debug-watch .monaco-inputbox input:visible');
    await input.fill(expression);
    await input.press('Enter');
    await expect(input).toHaveCount(0);
  }

  async openLocals(): Promise<void> {
    const locals = this.variables.filter({ hasText: /^Locals/ }).first();
    await locals.click();
    await this.page.keyboard.press('ArrowRight');
    await expect(locals).toHaveAttribute('aria-expanded', 'true');
  }

  async collapseVariables(): Promise<void> {
    const header = this.page.locator('.pane-header[aria-label="Variables Section"]');
    await header.hover();
    await header.locator('.codicon-collapse-all').click();
    await this.openLocals();
  }

  notification(text: string | RegExp): Locator {
    return this.notifications.filter({ hasText: text }).first();
  }
}

function escaped(text: string): string {
  return text.replace(/[.*+?^${}()|[\]\\]/g, '\\$&');
}
