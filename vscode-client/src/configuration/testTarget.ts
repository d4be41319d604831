/** Finds pytest's tests in a file, and how pytest is told to run one. */

export interface TestTarget {
  /** The line of its `def`, from 0. */
  line: number;
  /** Below the file: `test_x`, `TestModel::test_x`. */
  id: string;
}

const DEFINITION = /^(\s*)(?:async\s+)?(def|class)\s+(\w+)/;

/** Whether pytest looks into a file of this name. */
export function isTestFile(path: string): boolean {
  return /(?:^|[\\/])(?:test_[^\\/]*|[^\\/]*_test)\.py$/.test(path);
}

/** The tests of a file, by their names and indentation. */
export function testsIn(text: string): TestTarget[] {
  const tests: TestTarget[] = [];
  /** The definitions around a line, outermost first; not pytest's own if `name` is undefined. */
  let around: { indent: number; name: string | undefined }[] = [];
  for (const [line, content] of text.split('\n').entries()) {
    const [, space, keyword, name] = DEFINITION.exec(content) ?? [];
    if (space === undefined || name === undefined) continue;
    const indent = space.length;
    around = around.filter((outer) => outer.indent < indent);
    const classes = around.map((outer) => outer.name);
    const isTest = keyword === 'def' && name.startsWith('test') && !classes.includes(undefined);
    if (isTest) tests.push({ line, id: [...classes, name].join('::') });
    around.push({ indent, name: keyword === 'class' && name.startsWith('Test') ? name : undefined });
  }
  return tests;
}

/** The test that a line is in. */
export function testAt(tests: readonly TestTarget[], line: number): TestTarget | undefined {
  return tests.findLast((test) => test.line <= line);
}
