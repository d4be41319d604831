// Packs the .vsix with the wheel in it: `node package.mjs [WHEEL [VSIX]]`, by default the one in ../dist.
import { execFileSync } from 'node:child_process';
import { cpSync, globSync, mkdirSync, readFileSync, rmSync, statSync } from 'node:fs';
import { basename } from 'node:path';

const { name, version } = JSON.parse(readFileSync('package.json', 'utf8'));
const wheel = process.argv[2] ?? globSync('../dist/*.whl')[0];
if (wheel === undefined) throw new Error('there is no wheel in ../dist: run make dist');
if (!basename(wheel).startsWith(`tensorpoint-${version}-`))
  throw new Error(`${wheel} is not of this extension's version, ${version}`);

rmSync('dist', { recursive: true, force: true });
mkdirSync('dist/wheel', { recursive: true });
// Not compressed: as a whole, in the .vsix, it gets a fifth smaller than file by file.
const store = `
import sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel, zipfile.ZipFile(sys.argv[2], "w") as stored:
    for item in wheel.infolist():
        stored.writestr(item, wheel.read(item), zipfile.ZIP_STORED)
`;
execFileSync('../.venv/bin/python', ['-c', store, wheel, `dist/wheel/${basename(wheel)}`]);
cpSync('../LICENSE', 'LICENSE.txt');
const run = (command, ...args) => execFileSync(process.execPath, [command, ...args], { stdio: 'inherit' });
run('esbuild.mjs');
const vsix = process.argv[3] ?? `${name}-${version}.vsix`;
run('node_modules/@vscode/vsce/vsce', 'package', '--no-dependencies', '--allow-missing-repository', '--out', vsix);
const size = statSync(vsix).size;
if (size > 1_000_000) throw new Error(`${vsix} has ${size} bytes, more than a megabyte`);
