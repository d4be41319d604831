import * as vscode from 'vscode';
import { beforeEach, describe, expect, it, vi } from 'vitest';

import type { CheckAnswer, CheckRequest, Status } from '../src/debug/protocol';
import type { Sessions } from '../src/debug/sessions';
import type { Checker } from '../src/tensorpoints/checker';
import { MANAGE, registerTensorpointCommands } from '../src/tensorpoints/commands';
import { editor } from './editor/vscode';

/** A server that refuses what has "bad" in it; filters write their conditions out. */
const check = (request: CheckRequest): CheckAnswer => {
  if (request.condition.includes('bad')) return { verified: false, message: 'bad is no metric' };
  const condition = request.filter === undefined ? request.condition : `${request.filter}(${request.condition})`;
  return { verified: true, condition };
};
let requests: CheckRequest[];
let hasServer: boolean;
const checker = {
  open: () =>
    Promise.resolve(
      hasServer
        ? { check: (request: CheckRequest) => Promise.resolve((requests.push(request), check(request))), dispose: () => undefined }
        : undefined,
    ),
} as unknown as Checker;

/** A session that runs, with these tensorpoints; what was asked of it. */
let asked: [string, unknown][];
const sessionWith = (tensorpoints: Status['tensorpoints']): Sessions => {
  const session = {
    customRequest: (command: string, body: unknown) => {
      asked.push([command, body]);
      return Promise.resolve(command === 'tensorpoint/status' ? { tensorpoints } : {});
    },
  };
  const state = { session, running: true };
  return { active: state, all: [state] } as unknown as Sessions;
};
const NO_SESSION = { active: undefined, all: [] } as unknown as Sessions;

beforeEach(() => {
  editor.reset();
  requests = [];
  asked = [];
  hasServer = true;
});

const names = () => editor.breakpoints.map((item) => [item.functionName, item.condition, item.enabled]);
const opened = () =>
  vi.waitFor(() => {
    const box = editor.boxes.at(-1);
    if (box?.isOpen !== true) throw new Error('no box');
    return box;
  });

describe('a command that breaks on something', () => {
  beforeEach(() => void registerTensorpointCommands(NO_SESSION, checker));

  const run = async (command: string, text: string): Promise<void> => {
    const done = vscode.commands.executeCommand(command);
    const box = await opened();
    box.write(text);
    box.enter();
    await done;
    expect(box.isOpen).toBe(false);
  };

  it('sets a row of the Breakpoints view', async () => {
    await run('tensorpoint.breakOnNonfinite', 'model.*');
    await run('tensorpoint.breakOnGradientNorm', '10');
    await run('tensorpoint.breakOnCondition', 'loss() > 3');
    expect(names().map(([name]) => name)).toEqual([
      'tensorpoint:nonfinite(model.*)',
      'tensorpoint:grad_norm(> 10)',
      'tensorpoint:loss() > 3',
    ]);
    expect(editor.said).toHaveLength(3);
  });

  it('sets a layer as its function breakpoint, with its condition', async () => {
    await run('tensorpoint.breakOnCondition', 'layer:h.3 if absmax() > 1');
    expect(names()).toEqual([['layer:h.3', 'absmax() > 1', true]]);
  });

  it('switches a row on that is off, and adds none that is there', async () => {
    await run('tensorpoint.breakOnCondition', 'loss() > 3');
    await run('tensorpoint.breakOnCondition', 'loss() > 3');
    expect(names()).toEqual([['tensorpoint:loss() > 3', undefined, true]]);
    editor.breakpoints = [new vscode.FunctionBreakpoint('tensorpoint:loss() > 3', false)];
    await run('tensorpoint.breakOnCondition', 'loss() > 3');
    expect(names()).toEqual([['tensorpoint:loss() > 3', undefined, true]]);
  });

  it('shows what the server objects to, and stays open until it is mended', async () => {
    const done = vscode.commands.executeCommand('tensorpoint.breakOnCondition');
    const box = await opened();
    box.write('bad');
    await vi.waitFor(() => expect(box.validationMessage).toBe('bad is no metric'));
    box.enter();
    await vi.waitFor(() => expect(requests).toHaveLength(2));
    expect([box.isOpen, names()]).toEqual([true, []]);
    box.write('loss() > 3');
    expect(box.validationMessage).toBeUndefined();
    box.enter();
    await done;
    expect(names()).toHaveLength(1);
  });

  it('sets nothing if it is left, or if there is no server that could check', async () => {
    const done = vscode.commands.executeCommand('tensorpoint.breakOnEntropyShift');
    const box = await opened();
    expect(box.value).toBe('6');
    box.escape();
    await done;
    hasServer = false;
    await vscode.commands.executeCommand('tensorpoint.breakOnEntropyShift');
    expect([names(), editor.boxes]).toEqual([[], [box]]);
  });
});

describe('"Show Tensorpoints"', () => {
  const point = (number: number, text: string, source: string) => ({ number, text, source }) as Status['tensorpoints'][number];
  const labels = () => editor.rows.map((row) => row.label);
  const manage = (label: string) => {
    editor.choose = (rows) => rows.find((row) => row.label === label);
    return vscode.commands.executeCommand(MANAGE);
  };

  it('lists what is armed, what the settings keep, and what could be added', async () => {
    editor.settings.set('tensorpoint.tensorpoints', ['loss() > 3', 'absmax() > 9']);
    registerTensorpointCommands(sessionWith([point(1, 'nonfinite()', 'filter'), point(2, 'loss() > 3', 'launch')]), checker);
    await manage('nonfinite()');
    expect(labels()).toEqual([
      ...['Set', 'nonfinite()', 'loss() > 3', 'absmax() > 9'],
      ...['Add', 'Break on NaN/Inf...', 'Break on Gradient Norm Above...'],
      ...['Break on Attention Entropy Shift...', 'Break on Tensor Condition...'],
    ]);
    expect(editor.executed).toContain('workbench.debug.action.focusBreakpointsView');
  });

  it('takes one out of the settings and of the sessions, by all its numbers', async () => {
    editor.settings.set('tensorpoint.tensorpoints', ['loss() > 3', 'absmax() > 9']);
    const armed = [point(1, 'loss() > 3', 'launch'), point(2, 'absmax() > 9', 'launch'), point(3, 'loss() > 3', 'console')];
    registerTensorpointCommands(sessionWith(armed), checker);
    await manage('loss() > 3');
    expect(editor.settings.get('tensorpoint.tensorpoints')).toEqual(['absmax() > 9']);
    const evaluated = asked.filter(([command]) => command === 'evaluate').map(([, body]) => (body as { expression: string }).expression);
    expect(evaluated).toEqual(['tp off 1', 'tp off 3']);
  });

  it('begins a command, and works without a session', async () => {
    registerTensorpointCommands(NO_SESSION, checker);
    const done = manage('Break on NaN/Inf...');
    (await opened()).enter();
    await done;
    expect(names().map(([name]) => name)).toEqual(['tensorpoint:nonfinite(*)']);
  });
});
