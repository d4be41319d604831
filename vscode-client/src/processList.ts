/** Reads a listing of processes. */

/** The processes of `ps -o pid=,args=`, those of Python first, the newest of them on top. */
export function parseProcesses(output: string): { pid: string; command: string }[] {
  const all = output.split('\n').flatMap((line) => {
    const [, pid, command] = /^\s*(\d+)\s+(.*\S)\s*$/.exec(line) ?? [];
    return pid === undefined || command === undefined ? [] : [{ pid, command }];
  });
  const isPython = (item: { command: string }) => /python/i.test(item.command);
  return [...all.filter(isPython).reverse(), ...all.filter((item) => !isPython(item)).reverse()];
}
