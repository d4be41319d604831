import { defineConfig } from '@playwright/test';

// One at a time: each starts an editor, a browser and programs that import torch.
export default defineConfig({
  testDir: 'scenarios',
  outputDir: '../../.editor/results',
  workers: 1,
  // A key may be lost on a busy machine. Who passes only then is named by test_scenarios.py.
  retries: 1,
  timeout: 240_000,
  expect: { timeout: 60_000 },
  reporter: [['line']],
});
