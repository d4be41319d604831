/**
 * What a launch configuration leaves out, as `debugpy` configurations have it. Pure: what it has to
 * know of the editor is handed to it.
 */
import * as path from 'node:path';

export const TYPE = 'tensorpoint';

/** A debug configuration before or after it is complete. */
export interface Configuration {
  type: string;
  name: string;
  request: string;
  [key: string]: unknown;
}

export interface Surroundings {
  /** The workspace folder, if there is one. */
  folder: string | undefined;
  /** The selected interpreter, for configurations that name none. */
  python: string;
  /** The conditions of the settings. */
  tensorpoints: readonly string[];
  /** The modules of the settings that are imported ahead. */
  preload: readonly string[];
  /** The environment file where a configuration names none: that of the Python extension's setting. */
  defaultEnvFile: string;
  exists: (file: string) => boolean;
}

/** Whether it was made by the debugger for a process that the program has started. */
export function isChild(config: Configuration): boolean {
  return config.subProcessId !== undefined;
}

/** F5 without launch.json: this file. */
export function currentFile(file: string): Configuration {
  return { type: TYPE, request: 'launch', name: 'Tensorpoint: Current File', program: file };
}

/** The configuration as the adapter gets it, its variables being replaced already. */
export function complete(config: Configuration, around: Surroundings): Configuration {
  if (isChild(config)) return config;
  const done: Configuration = { ...config };
  addTo(done, 'tensorpoints', around.tensorpoints);
  if (config.request !== 'launch') return done;
  addTo(done, 'preload', around.preload);
  done.python ??= config.pythonPath ?? [around.python];
  delete done.pythonPath;
  done.console ??= 'integratedTerminal';
  done.cwd ??= around.folder ?? folderOf(config.program);
  done.showReturnValue ??= true;
  done.envFile = envFile(config, around);
  return withoutUndefined(done);
}

/** Add the settings' strings to a list of the configuration. One that is none is left for the server to refuse. */
function addTo(config: Configuration, key: string, strings: readonly string[]): void {
  const all = union(stringsIn(config[key]), strings);
  if (Array.isArray(config[key] ?? []) && all.length > 0) config[key] = all;
}

/**
 * The environment file, which the server reads. One that isn't there is no error, as in `debugpy`
 * configurations: many name a .env that not every checkout has.
 */
function envFile(config: Configuration, around: Surroundings): string | undefined {
  const named = typeof config.envFile === 'string' && config.envFile !== '';
  const file = named ? (config.envFile as string) : around.defaultEnvFile;
  const absolute = path.resolve(around.folder ?? '', file);
  return file !== '' && around.exists(absolute) ? absolute : undefined;
}

function folderOf(program: unknown): string | undefined {
  return typeof program === 'string' ? path.dirname(program) : undefined;
}

function stringsIn(value: unknown): string[] {
  return Array.isArray(value) ? value.filter((item): item is string => typeof item === 'string') : [];
}

function union(...lists: (readonly string[])[]): string[] {
  return [...new Set(lists.flat())];
}

function withoutUndefined(config: Configuration): Configuration {
  return Object.fromEntries(Object.entries(config).filter(([, value]) => value !== undefined)) as Configuration;
}
