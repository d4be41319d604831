// Bundles the extension: one file, without the module that VS Code itself provides; and the page of
// the tensor view, a script and a style sheet that need nothing else.
import { build } from 'esbuild';

await build({
  entryPoints: ['src/extension.ts'],
  outfile: 'dist/extension.js',
  bundle: true,
  minify: true,
  sourcemap: process.argv.includes('--sourcemap'),
  platform: 'node',
  format: 'cjs',
  target: 'node20',
  external: ['vscode'],
  logLevel: 'warning',
});
await build({
  entryPoints: ['web/tensor.ts'],
  outdir: 'dist/web',
  bundle: true,
  minify: true,
  platform: 'browser',
  format: 'iife',
  target: 'es2022',
  logLevel: 'warning',
});
