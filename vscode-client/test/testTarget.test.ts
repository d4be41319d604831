import { describe, expect, it } from 'vitest';

import { isTestFile, testAt, testsIn } from '../src/configuration/testTarget';

const FILE = `\
import pytest


def helper():
    def test_inside():
        pass


def test_plain(x):
    assert x


class TestModel:
    @pytest.mark.parametrize("n", [1, 2])
    def test_forward(self, n):
        assert n

    class TestInner:
        async def test_deep(self):
            pass

    def helper(self):
        pass


class Helper:
    def test_not_collected(self):
        pass


def test_last(): pass
`;

describe('tests in a file', () => {
  const tests = testsIn(FILE);

  it('are those that pytest collects', () => {
    expect(tests.map((test) => test.id)).toEqual([
      'test_plain',
      'TestModel::test_forward',
      'TestModel::TestInner::test_deep',
      'test_last',
    ]);
  });

  it('have the lines of their definitions', () => {
    const lines = FILE.split('\n');
    for (const { line, id } of tests) expect(lines[line]).toContain(`def ${id.split('::').at(-1) ?? ''}`);
  });

  it('are found from a line inside', () => {
    expect(testAt(tests, 9)?.id).toBe('test_plain');
    expect(testAt(tests, 0)).toBeUndefined();
  });
});

it.each([
  ['/project/tests/test_model.py', true],
  ['C:\\project\\model_test.py', true],
  ['/project/test_data/model.py', false],
  ['/project/contest.py', false],
])('%s is a test file: %s', (path, expected) => {
  expect(isTestFile(path)).toBe(expected);
});
