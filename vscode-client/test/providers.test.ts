import * as vscode from 'vscode';
import { beforeEach, describe, expect, it } from 'vitest';

import { registerConfigurations } from '../src/configuration/providers';
import { TEMPLATES } from '../src/configuration/templates';
import type { Interpreter } from '../src/python/interpreter';
import type { Servers } from '../src/server/servers';
import { selected } from './editor/pythonExtension';
import { editor } from './editor/vscode';

type Configuration = vscode.DebugConfiguration | undefined;

let ensured: Interpreter[];
let hasServer: boolean;
const servers = {
  ensure: (interpreter: Interpreter) => Promise.resolve((ensured.push(interpreter), hasServer ? {} : undefined)),
} as unknown as Servers;
const log = { info: () => undefined, warn: () => undefined } as unknown as vscode.LogOutputChannel;

beforeEach(() => {
  editor.reset();
  ensured = [];
  hasServer = true;
  editor.folders = [{ uri: vscode.Uri.file('/project') }];
  registerConfigurations(servers, log);
});

const call = (type: string, method: string, config: unknown, trigger?: number): unknown => {
  const found = editor.providers.find((each) => each.type === type && each.trigger === trigger && method in each.provider);
  return found?.provider[method]?.call(found.provider, { uri: vscode.Uri.file('/project') }, config);
};
const completed = (config: object) =>
  call('tensorpoint', 'resolveDebugConfigurationWithSubstitutedVariables', config) as Promise<Configuration>;
const LAUNCH = { type: 'tensorpoint', request: 'launch', name: 'A', program: '/project/train.py' };

describe('F5 without a launch.json', () => {
  it('runs the Python file that is open', () => {
    editor.file = { languageId: 'python', isUntitled: false, uri: vscode.Uri.file('/project/a.py') };
    expect(call('tensorpoint', 'resolveDebugConfiguration', {})).toMatchObject({ ...LAUNCH, name: expect.any(String) as string, program: '/project/a.py' });
    editor.file.isUntitled = true;
    expect(call('tensorpoint', 'resolveDebugConfiguration', {})).toMatchObject({ program: '${file}' });
  });

  it('says what it needs where no such file is open', () => {
    editor.file = { languageId: 'markdown', isUntitled: false, uri: vscode.Uri.file('/project/a.md') };
    expect(call('tensorpoint', 'resolveDebugConfiguration', {})).toBeUndefined();
    expect(editor.said).toEqual(['Tensorpoint: open a Python file to debug it.']);
  });

  it('leaves a configuration as it is', () => {
    expect(call('tensorpoint', 'resolveDebugConfiguration', LAUNCH)).toBe(LAUNCH);
  });
});

describe('the interpreter of a launch', () => {
  const of = async (config: object) => {
    const done = await completed(config);
    return [ensured.at(-1)?.command, ensured.at(-1)?.source, done?.python as unknown];
  };

  it('is the configuration\'s, else that of the Python extension, the setting, or python3', async () => {
    expect(await of(LAUNCH)).toEqual(['python3', 'default', ['python3']]);
    editor.settings.set('tensorpoint.python', 'venv/bin/python');
    expect(await of(LAUNCH)).toEqual(['/project/venv/bin/python', 'setting', ['/project/venv/bin/python']]);
    editor.extensions.add('ms-python.python');
    selected.path = '/selected/python';
    expect(await of(LAUNCH)).toEqual(['/selected/python', 'Python extension', ['/selected/python']]);
    expect(await of({ ...LAUNCH, python: ['/own/python', '-X', 'dev'] })).toEqual(['/own/python', 'configuration', ['/own/python', '-X', 'dev']]);
  });

  it('is no interpreter if there is no server for it: nothing is launched', async () => {
    hasServer = false;
    expect(await completed(LAUNCH)).toBeUndefined();
  });

  it('is not looked for where the debugger has made the configuration', async () => {
    const child = { ...LAUNCH, subProcessId: 7 };
    expect(await completed(child)).toBe(child);
    expect(ensured).toEqual([]);
  });
});

it('the settings\' tensorpoints go into a launch', async () => {
  editor.settings.set('tensorpoint.tensorpoints', ['loss() > 3']);
  expect(await completed({ ...LAUNCH, tensorpoints: ['absmax() > 9'] })).toMatchObject({ tensorpoints: ['absmax() > 9', 'loss() > 3'] });
});

it('configurations of debugpy go through us only if the setting says so, and their children never', () => {
  for (const type of ['debugpy', 'python']) {
    const config = { ...LAUNCH, type };
    editor.settings.delete('tensorpoint.debugpyConfigurations');
    expect(call(type, 'resolveDebugConfiguration', config)).toBe(config);
    editor.settings.set('tensorpoint.debugpyConfigurations', true);
    expect(call(type, 'resolveDebugConfiguration', config)).toEqual({ ...config, type: 'tensorpoint' });
    const child = { ...config, subProcessId: 7 };
    expect(call(type, 'resolveDebugConfiguration', child)).toBe(child);
  }
});

it('a new launch.json begins with what the user picks', async () => {
  const { Initial, Dynamic } = vscode.DebugConfigurationProviderTriggerKind;
  const picked = () => call('tensorpoint', 'provideDebugConfigurations', undefined, Initial) as Promise<unknown[]>;
  expect(await picked()).toEqual([]);
  editor.choose = (rows) => rows[1];
  expect(await picked()).toEqual([TEMPLATES[1]?.configuration]);
  expect(call('tensorpoint', 'provideDebugConfigurations', undefined, Dynamic)).toHaveLength(TEMPLATES.length);
});
