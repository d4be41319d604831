import { describe, expect, it } from 'vitest';

import { complete, type Configuration, type Surroundings } from '../src/configuration/complete';

const AROUND: Surroundings = {
  folder: '/home/ada/project',
  python: '/usr/bin/python3',
  tensorpoints: [],
  preload: [],
  defaultEnvFile: '/home/ada/project/.env',
  exists: () => false,
};
const launch = (rest: Record<string, unknown> = {}): Configuration => ({
  type: 'tensorpoint',
  request: 'launch',
  name: 'A program',
  program: '/home/ada/project/train.py',
  ...rest,
});

describe('a launch configuration', () => {
  it('gets what debugpy configurations have', () => {
    expect(complete(launch(), AROUND)).toEqual({
      ...launch(),
      python: ['/usr/bin/python3'],
      console: 'integratedTerminal',
      cwd: '/home/ada/project',
      showReturnValue: true,
    });
  });

  it('keeps what it says', () => {
    const given = launch({ python: ['/opt/python', '-X', 'dev'], console: 'internalConsole', cwd: '/tmp', showReturnValue: false });
    expect(complete(given, AROUND)).toEqual(given);
  });

  it('may name the interpreter in the old way', () => {
    const done = complete(launch({ pythonPath: '/opt/python' }), AROUND);
    expect(done.python).toBe('/opt/python');
    expect(done).not.toHaveProperty('pythonPath');
  });

  it('runs where its program is if no folder is open', () => {
    expect(complete(launch({ program: '/tmp/a/b.py' }), { ...AROUND, folder: undefined }).cwd).toBe('/tmp/a');
  });
});

describe('the environment file', () => {
  const exists = (file: string) => file === '/home/ada/project/.env' || file === '/home/ada/project/other.env';

  it('is .env if there is one', () => {
    expect(complete(launch(), { ...AROUND, exists }).envFile).toBe('/home/ada/project/.env');
    expect(complete(launch(), AROUND)).not.toHaveProperty('envFile');
  });

  it('is the one that is named, from the workspace folder', () => {
    expect(complete(launch({ envFile: 'other.env' }), { ...AROUND, exists }).envFile).toBe('/home/ada/project/other.env');
  });

  it('is passed over if it is not there, as with debugpy', () => {
    expect(complete(launch({ envFile: '/nowhere/.env' }), { ...AROUND, exists })).not.toHaveProperty('envFile');
  });
});

describe('the tensorpoints of the settings', () => {
  const around = { ...AROUND, tensorpoints: ['grad_norm() > 10', 'loss > 3'] };

  it('join those of the configuration, each once', () => {
    const done = complete(launch({ tensorpoints: ['loss > 3', 'layer:a'] }), around);
    expect(done.tensorpoints).toEqual(['loss > 3', 'layer:a', 'grad_norm() > 10']);
  });

  it('are joined by the modules to import ahead, of a launch', () => {
    const both = { ...around, preload: ['diffusers'] };
    expect(complete(launch({ preload: ['my.models'] }), both).preload).toEqual(['my.models', 'diffusers']);
    expect(complete(launch({ preload: 'my.models' }), both).preload).toBe('my.models');
    expect(complete(launch(), around)).not.toHaveProperty('preload');
  });

  it('are set when attaching, too, which gets nothing else', () => {
    const attach: Configuration = { type: 'tensorpoint', request: 'attach', name: 'A', connect: { port: 5678 } };
    expect(complete(attach, around)).toEqual({ ...attach, tensorpoints: around.tensorpoints });
  });

  it('leave a value of another type for the server to refuse', () => {
    expect(complete(launch({ tensorpoints: 'loss > 3' }), around).tensorpoints).toBe('loss > 3');
  });
});

it("a child's configuration is the debugger's own", () => {
  const child: Configuration = {
    type: 'tensorpoint',
    request: 'attach',
    name: 'Subprocess 12',
    subProcessId: 12,
    connect: { host: '127.0.0.1', port: 4000 },
  };
  expect(complete(child, { ...AROUND, tensorpoints: ['loss > 3'] })).toBe(child);
});
