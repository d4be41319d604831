import path from 'node:path';
import { defineConfig } from 'vitest/config';

const standIn = (name: string) => path.resolve(import.meta.dirname, 'test/editor', name);

export default defineConfig({
  test: { include: ['test/**/*.test.ts'] },
  // Both exist only inside of VS Code. What they really do is the business of tests/editor.
  resolve: { alias: { vscode: standIn('vscode.ts'), '@vscode/python-extension': standIn('pythonExtension.ts') } },
});
