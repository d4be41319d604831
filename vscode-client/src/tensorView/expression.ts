/** What a hover is about. Pure. */

/** The dotted name at a column up to the part that is pointed at, and where it begins and ends: `self.fc` in `self.fc.weight` at "fc". */
export function expressionAt(line: string, column: number): { text: string; start: number; end: number } | undefined {
  const code = line.replace(/(["'])(?:\\.|(?!\1).)*\1/g, (word) => ' '.repeat(word.length)).replace(/#.*$/, '');
  for (const { 0: name, index } of code.matchAll(/(?<![\w.)\]])[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*/g)) {
    if (column < index || column >= index + name.length) continue;
    const rest = name.slice(column - index).search(/\.|$/);
    const text = name.slice(0, column - index + rest);
    return { text, start: index, end: index + text.length };
  }
  return undefined;
}
