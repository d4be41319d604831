import { execFileSync } from 'node:child_process';
import path from 'node:path';
import { describe, expect, it } from 'vitest';

import { DapClient, frame, Framing } from '../src/debug/dapClient';
import { parseProcesses } from '../src/processList';
import { probe, ProbeError } from '../src/python/probe';
import { reasonOf } from '../src/server/reason';
import { mismatchMessage, versionsMatch } from '../src/server/version';
import { asThreshold, KINDS } from '../src/tensorpoints/kinds';

/** The interpreter of this checkout: the real server is asked. */
const PYTHON = path.resolve(import.meta.dirname, '../../.venv/bin/python');

describe('versions', () => {
  it.each([
    ['0.1.0', '0.1.0', true],
    ['0.1.0', '0.1.7.dev3+gabc', true],
    ['0.1.0', '0.2.0', false],
    ['1.0.0', '0.1.0', false],
    ['0.1.0', '0+unknown', true],
  ])('extension %s and server %s: %s', (extension, server, expected) => {
    expect(versionsMatch(extension, server)).toBe(expected);
  });

  it('that do not match are named, with what to do', () => {
    const message = mismatchMessage('0.2.0', '0.1.0', '/opt/python');
    for (const part of ['0.2.0', '0.1.0', '/opt/python', 'pip install']) expect(message).toContain(part);
  });
});

describe('an interpreter', () => {
  it('says what it is and has', async () => {
    const found = await probe(PYTHON);
    expect(found.executable).toBe(PYTHON);
    expect(found.tensorpoint).toMatch(/^\d+\.\d+/);
    expect(found.python[0]).toBe(3);
  });

  it('without Tensorpoint is all right', async () => {
    const base = execFileSync(PYTHON, ['-c', 'import sys; print(sys._base_executable)'], { encoding: 'utf8' }).trim();
    expect((await probe(base)).tensorpoint).toBeUndefined();
  });

  it('that is not there, or is none, is refused with the reason', async () => {
    await expect(probe('/nowhere/python')).rejects.toThrow(new ProbeError('There is no interpreter "/nowhere/python".'));
    await expect(probe('false')).rejects.toThrow('does not run');
  });
});

describe('an installation that fails', () => {
  it.each([
    ['The virtual environment was not created successfully because ensurepip is not available.\n\n    apt install python3.11-venv\n\nFailing command: python3\n', '', 'this Python has no venv. On Debian and Ubuntu: apt install python3-venv'],
    ['Processing tensorpoint.whl\n', 'WARNING: slow\nERROR: No matching distribution found for debugpy\n\n[notice] A new release of pip is available\n', 'No matching distribution found for debugpy'],
    ['', 'OSError: [Errno 28] No space left on device\n', 'OSError: [Errno 28] No space left on device'],
    ['', '', ''],
  ])('says why in one line (%#)', (stdout, stderr, expected) => {
    expect(reasonOf({ stdout, stderr })).toBe(expected);
  });
});

describe('the server', () => {
  it('checks conditions for the commands', async () => {
    const client = new DapClient(PYTHON, ['-m', 'tensorpoint', 'dap'], import.meta.dirname);
    try {
      await client.initialize();
      const check = (condition: string, filter: string) => client.request('tensorpoint/check', { condition, filter });
      for (const kind of KINDS)
        expect(await check(kind.read(kind.value || kind.placeholder), kind.filter)).toMatchObject({ verified: true });
      expect(await check('> 10 and steps > 3', 'grad_norm')).toMatchObject({
        verified: false,
        message: expect.stringContaining('did you mean step?') as string,
      });
      await expect(client.request('tensorpoint/check', { condition: 3 })).rejects.toThrow('condition');
    } finally {
      client.dispose();
    }
  }, 30_000);

  it('that is gone fails what was asked of it', async () => {
    const client = new DapClient('/nowhere/python', [], import.meta.dirname);
    await expect(client.initialize()).rejects.toThrow('ENOENT');
  });
});

it('messages are cut from a stream wherever it is torn', () => {
  const sent = [{ seq: 1, text: 'Größe ∇' }, { seq: 2 }];
  const bytes = Buffer.from(sent.map(frame).join(''));
  for (let at = 0; at <= bytes.length; at++) {
    const framing = new Framing();
    expect([...framing.take(bytes.subarray(0, at)), ...framing.take(bytes.subarray(at))]).toEqual(sent);
  }
});

it.each([
  ['10', '> 10'],
  [' 0.5 and step > 3', '> 0.5 and step > 3'],
  ['> 10', '> 10'],
  ['"*.mlp" > 5', '"*.mlp" > 5'],
])('a threshold: %s is %s', (written, read) => {
  expect(asThreshold(written)).toBe(read);
});

it('processes of Python come first, the newest on top', () => {
  const listing = '    1 /sbin/init\n  200 python train.py\n  300 /opt/bin/python3 -m x  \n  400 bash\n\n';
  expect(parseProcesses(listing).map((item) => item.pid)).toEqual(['300', '200', '400', '1']);
  expect(parseProcesses(listing)[0]?.command).toBe('/opt/bin/python3 -m x');
});
