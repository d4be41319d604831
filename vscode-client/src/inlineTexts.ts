/** Where the values of variables stand in the text. Pure. */

export interface NamedText {
  name: string;
  text: string;
}

export interface InlineText {
  line: number;
  start: number;
  end: number;
  text: string;
}

/** Behind each line the variables that it names: each once, not in comments, not as attributes. */
export function inlineTexts(lines: readonly { line: number; text: string }[], values: readonly NamedText[]): InlineText[] {
  const known = new Map(values.map(({ name, text }) => [name, text]));
  return lines.flatMap(({ line, text }) => {
    const seen = new Set<string>();
    const code = text.replace(/(["'])(?:\\.|(?!\1).)*\1/g, (word) => ' '.repeat(word.length)).replace(/#.*$/, '');
    return [...code.matchAll(/(?<![\w.])[A-Za-z_]\w*/g)].flatMap(({ 0: name, index }) => {
      const value = known.get(name);
      if (value === undefined || seen.has(name)) return [];
      seen.add(name);
      return [{ line, start: index, end: index + name.length, text: `${name} = ${value}` }];
    });
  });
}
