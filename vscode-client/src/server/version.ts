/** Which versions of the extension and of the server go together. */

/** Whether they may meet: what they say to each other changes with the minor version only. */
export function versionsMatch(extension: string, server: string): boolean {
  const [ours, theirs] = [minor(extension), minor(server)];
  // A source tree without metadata says 0+unknown; whoever runs that knows what it is.
  return theirs === undefined || ours === theirs;
}

export function mismatchMessage(extension: string, server: string, python: string): string {
  return (
    `It is ${server}, in ${python}; the extension is ${extension}. ` +
    `Update it there (pip install tensorpoint==${extension}), or use the one that the extension carries.`
  );
}

function minor(version: string): string | undefined {
  return /^(\d+\.\d+)/.exec(version)?.[1];
}
