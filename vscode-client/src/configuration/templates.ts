/** The configurations that are offered: in the picker of F5, and for a new launch.json. */
import { TYPE, type Configuration } from './complete';

export interface Template {
  label: string;
  detail: string;
  configuration: Configuration;
}

function launch(name: string, rest: Record<string, unknown>): Configuration {
  return { name: `Tensorpoint: ${name}`, type: TYPE, request: 'launch', ...rest, console: 'integratedTerminal' };
}

export const TEMPLATES: readonly Template[] = [
  {
    label: 'Current File',
    detail: 'Debug the file in the editor',
    configuration: launch('Current File', { program: '${file}' }),
  },
  {
    label: 'Current File with Arguments',
    detail: 'Debug the file in the editor and ask for its arguments',
    configuration: launch('Current File with Arguments', { program: '${file}', args: '${command:pickArgs}' }),
  },
  {
    label: 'Module',
    detail: 'Debug a module, as with python -m',
    configuration: launch('Module', { module: 'package.train' }),
  },
  {
    label: 'torchrun',
    detail: 'Debug a distributed program: each rank is a session of its own',
    configuration: launch('torchrun', {
      module: 'torch.distributed.run',
      args: ['--nproc-per-node', '2', '${file}'],
    }),
  },
  {
    label: 'pytest',
    detail: 'Debug the tests in the file in the editor',
    configuration: launch('pytest', { module: 'pytest', args: ['${file}'] }),
  },
  {
    label: 'Attach',
    detail: 'Attach to a program that listens: python -m debugpy --listen 5678 train.py',
    configuration: {
      name: 'Tensorpoint: Attach',
      type: TYPE,
      request: 'attach',
      connect: { host: '127.0.0.1', port: 5678 },
    },
  },
  {
    label: 'Attach by Process Id',
    detail: 'Attach to a process on this machine, with gdb or lldb',
    configuration: {
      name: 'Tensorpoint: Attach by Process Id',
      type: TYPE,
      request: 'attach',
      processId: '${command:pickProcess}',
    },
  },
];
