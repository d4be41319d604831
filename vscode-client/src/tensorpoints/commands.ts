/**
 * "Break on ..." and "Show Tensorpoints". What the commands set are function breakpoints, named
 * `tensorpoint:CONDITION`: rows of the Breakpoints view, which VS Code keeps and tells every session.
 */
import * as vscode from 'vscode';

import type { TensorpointInfo } from '../debug/protocol';
import { statusOf, type Sessions } from '../debug/sessions';
import { changeSetting, setting } from '../settings';
import type { Check, Checker } from './checker';
import { KINDS, type Kind } from './kinds';

export const MANAGE = 'tensorpoint.manage';
/** How long to wait for the next key before the server is asked. */
const PAUSE_MS = 150;

export function registerTensorpointCommands(sessions: Sessions, checker: Checker): vscode.Disposable {
  return vscode.Disposable.from(
    ...KINDS.map((kind) =>
      vscode.commands.registerCommand(kind.command, async () => {
        const condition = await ask(kind, checker);
        if (condition !== undefined) add(condition);
      }),
    ),
    vscode.commands.registerCommand(MANAGE, () => manage(sessions)),
  );
}

async function ask(kind: Kind, checker: Checker): Promise<string | undefined> {
  const check = await checker.open();
  if (check === undefined) return undefined;
  const box = vscode.window.createInputBox();
  box.title = `Tensorpoint: ${kind.title}`;
  box.prompt = kind.prompt;
  box.placeholder = kind.placeholder;
  box.value = kind.value;
  box.ignoreFocusOut = true;
  try {
    return await accepted(box, kind, check);
  } finally {
    box.dispose();
    check.dispose();
  }
}

/** The condition once the server takes it; its objection is shown below the box meanwhile. */
function accepted(box: vscode.InputBox, kind: Kind, check: Check): Promise<string | undefined> {
  let newest = 0;
  const verify = async (): Promise<string | undefined> => {
    const mine = ++newest;
    const filter = kind.filter === '' ? {} : { filter: kind.filter };
    const answer = await check.check({ condition: kind.read(box.value), ...filter });
    if (mine !== newest) return undefined;
    box.validationMessage = answer.verified ? undefined : answer.message;
    return answer.verified ? answer.condition : undefined;
  };
  return new Promise((resolve, reject) => {
    let pause: NodeJS.Timeout | undefined;
    box.onDidChangeValue((value) => {
      clearTimeout(pause);
      box.validationMessage = undefined;
      if (value.trim() !== '') pause = setTimeout(() => void verify().catch(reject), PAUSE_MS);
    });
    box.onDidAccept(() => {
      clearTimeout(pause);
      verify().then((condition) => condition !== undefined && resolve(condition), reject);
    });
    box.onDidHide(() => resolve(undefined));
    box.show();
  });
}

/** A row that is switched off gives way to one that is on: there is no other way to switch it. */
function add(condition: string): void {
  const added = asBreakpoint(condition);
  const same = vscode.debug.breakpoints
    .filter((item) => item instanceof vscode.FunctionBreakpoint)
    .filter((item) => item.functionName === added.functionName && item.condition === added.condition);
  if (!same.some((item) => item.enabled)) {
    vscode.debug.removeBreakpoints(same);
    vscode.debug.addBreakpoints([added]);
  }
  vscode.window.setStatusBarMessage(`Tensorpoint: stops on ${condition}`, 5000);
}

function asBreakpoint(condition: string): vscode.FunctionBreakpoint {
  if (!condition.startsWith('layer:')) return new vscode.FunctionBreakpoint(`tensorpoint:${condition}`);
  const [layer = '', ...rest] = condition.split(' if ');
  return new vscode.FunctionBreakpoint(layer, true, rest.join(' if ') || undefined);
}

interface Item extends vscode.QuickPickItem {
  act: () => Thenable<unknown>;
}

/** What is set, to look at and to take out, and what could be. */
async function manage(sessions: Sessions): Promise<void> {
  const active = sessions.active;
  const status = active?.running ? await statusOf(active) : undefined;
  const armed = status?.tensorpoints ?? [];
  const kept = setting('tensorpoints').filter((text) => !armed.some((item) => item.text === text));
  const items: (Item | vscode.QuickPickItem)[] = [
    separator('Set'),
    ...armed.map((info) => armedItem(info, sessions)),
    ...kept.map((text) => ({
      label: text,
      description: 'from the settings: choose to remove',
      act: () => remove(text, sessions),
    })),
    separator('Add'),
    ...KINDS.map((kind) => ({
      label: `${kind.title}...`,
      act: () => vscode.commands.executeCommand(kind.command),
    })),
  ];
  const chosen = await vscode.window.showQuickPick(items, { placeHolder: 'Tensorpoints' });
  if (chosen !== undefined && 'act' in chosen) await chosen.act();
}

function armedItem(info: TensorpointInfo, sessions: Sessions): Item {
  if (info.source === 'filter' || info.source === 'function')
    return {
      label: info.text,
      description: 'in the Breakpoints view',
      act: () => vscode.commands.executeCommand('workbench.debug.action.focusBreakpointsView'),
    };
  return {
    label: info.text,
    description: `from the ${info.source === 'launch' ? 'configuration or settings' : 'debug console'}: choose to remove`,
    act: () => remove(info.text, sessions),
  };
}

async function remove(text: string, sessions: Sessions): Promise<void> {
  const before = setting('tensorpoints');
  if (before.includes(text)) await changeSetting('tensorpoints', before.filter((item) => item !== text));
  for (const { session } of sessions.all.filter((state) => state.running)) {
    const status = await statusOf({ session });
    // One set twice, by the settings and by the console, has two numbers.
    for (const { number } of (status?.tensorpoints ?? []).filter((item) => item.text === text && isOurs(item)))
      await session.customRequest('evaluate', { expression: `tp off ${number}`, context: 'repl' });
  }
}

/** Those of the Breakpoints view are taken out there. */
function isOurs(info: TensorpointInfo): boolean {
  return info.source === 'launch' || info.source === 'console';
}

function separator(label: string): vscode.QuickPickItem {
  return { label, kind: vscode.QuickPickItemKind.Separator };
}
