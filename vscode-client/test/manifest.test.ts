/** package.json against the code: VS Code reads the one and runs the other. */
import fs from 'node:fs';
import path from 'node:path';
import { expect, it } from 'vitest';

import { TEMPLATES } from '../src/configuration/templates';
import { KINDS } from '../src/tensorpoints/kinds';

interface Manifest {
  contributes: {
    commands: { command: string }[];
    menus: Record<string, { command: string }[]>;
    configuration: { properties: Record<string, unknown> };
    debuggers: { variables: Record<string, string>; configurationAttributes: Record<string, { properties: Record<string, unknown> }> }[];
    walkthroughs: { steps: { description: string; media: { markdown: string } }[] }[];
  };
}

const FOLDER = path.resolve(import.meta.dirname, '..');
const { contributes } = JSON.parse(fs.readFileSync(path.join(FOLDER, 'package.json'), 'utf8')) as Manifest;
const source = fs
  .globSync('src/**/*.ts', { cwd: FOLDER })
  .map((file) => fs.readFileSync(path.join(FOLDER, file), 'utf8'))
  .join('\n');
const declared = contributes.commands.map((item) => item.command);
const [debuggerOf] = contributes.debuggers;

it('every command that is declared is registered', () => {
  const missing = declared.filter((command) => {
    const name = command.replace('tensorpoint.layers.', '');
    return !source.includes(`'${command}'`) && !source.includes(`command('${name}'`);
  });
  expect(missing).toEqual([]);
});

it('menus, the walkthrough and the tensorpoint commands name commands that are declared', () => {
  const walkthrough = JSON.stringify(contributes.walkthroughs).matchAll(/command:(tensorpoint[\w.]+)/g);
  const used = [
    ...Object.values(contributes.menus).flatMap((items) => items.map((item) => item.command)),
    ...[...walkthrough].map((match) => match[1]),
    ...KINDS.map((kind) => kind.command),
  ];
  // VS Code itself makes a focus command for each view.
  const known = new Set([...declared, 'tensorpoint.layers.focus']);
  expect(used.filter((command) => command === undefined || !known.has(command))).toEqual([]);
});

it('every setting that is declared is read, and the reverse', () => {
  const read = [...source.matchAll(/setting\('([\w.]+)'/gi)].map((match) => `tensorpoint.${match[1] ?? ''}`);
  // The language client reads its own trace setting, the server those of shapes: its tests compare them.
  const elsewhere = /^tensorpoint\.(trace\.server$|shapes\.)/;
  const known = Object.keys(contributes.configuration.properties).filter((name) => !elsewhere.test(name));
  expect(known.sort()).toEqual([...new Set(read)].sort());
});

it('what the server takes from a configuration is an attribute', () => {
  const keysOf = (file: string) => {
    const text = fs.readFileSync(path.join(FOLDER, '../server/tensorpoint/dap', file), 'utf8');
    const constants = [...text.matchAll(/^[A-Z][A-Z_, ]* = ("\w+"(?:, "\w+")*)$/gm)];
    return constants.flatMap((match) => [...(match[1] ?? '').matchAll(/\w+/g)].map(([key]) => key));
  };
  const both = keysOf('launch.py');
  expect(both).toContain('precision');
  const attributes = debuggerOf?.configurationAttributes;
  expect(Object.keys(attributes?.attach?.properties ?? {})).toEqual(expect.arrayContaining(both));
  expect(Object.keys(attributes?.launch?.properties ?? {})).toEqual(expect.arrayContaining([...both, ...keysOf('resident.py')]));
});

it('the templates use attributes and variables that are declared', () => {
  for (const { configuration } of TEMPLATES) {
    const attributes = debuggerOf?.configurationAttributes[configuration.request]?.properties ?? {};
    const own = Object.keys(configuration).filter((key) => !['type', 'request', 'name'].includes(key));
    expect(Object.keys(attributes)).toEqual(expect.arrayContaining(own));
    for (const [, variable] of JSON.stringify(configuration).matchAll(/\$\{command:(\w+)\}/g))
      expect(Object.keys(debuggerOf?.variables ?? {})).toContain(variable);
  }
});

it('what the walkthrough shows is there', () => {
  for (const { media } of contributes.walkthroughs.flatMap((item) => item.steps))
    expect(fs.existsSync(path.join(FOLDER, media.markdown)), media.markdown).toBe(true);
});
