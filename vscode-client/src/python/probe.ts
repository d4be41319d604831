/** Asks an interpreter what it is and what of ours it has. Cheap: nothing of ours is imported. */
import { run } from './run';

export interface Probed {
  /** Major and minor version. */
  python: [number, number];
  executable: string;
  /** The version of Tensorpoint that is installed there, if any. */
  tensorpoint: string | undefined;
  /** Whether that one has a language server. */
  languageServer: boolean;
}

/** Why an interpreter can't be used. */
export class ProbeError extends Error {}

// For old interpreters, too. `-c` puts the working directory first on the path: not ours to import.
const PROBE = `
import json, sys
sys.path[:] = [entry for entry in sys.path if entry]
found = {"python": list(sys.version_info[:2]), "executable": sys.executable}
try:
    from importlib.metadata import version
    from importlib.util import find_spec
    found["tensorpoint"] = version("tensorpoint")
    found["languageServer"] = find_spec("tensorpoint.lsp") is not None
except Exception:
    pass
print("\\n" + json.dumps(found))
`;
const TIMEOUT_MS = 30_000;

export async function probe(command: string, cwd?: string): Promise<Probed> {
  const done = await run(command, ['-c', PROBE], { timeoutMs: TIMEOUT_MS, ...(cwd === undefined ? {} : { cwd }) });
  if (done.status === undefined) throw new ProbeError(`There is no interpreter "${command}".`);
  if (done.status !== 0)
    throw new ProbeError(`The interpreter "${command}" does not run: ${lastLine(done.stderr) || 'no answer'}.`);
  return parseProbe(done.stdout);
}

export function parseProbe(stdout: string): Probed {
  const found = JSON.parse(lastLine(stdout)) as Partial<Probed>;
  return {
    python: found.python ?? [0, 0],
    executable: found.executable ?? '',
    tensorpoint: found.tensorpoint,
    languageServer: found.languageServer ?? false,
  };
}

function lastLine(text: string): string {
  return text.trimEnd().split('\n').at(-1) ?? '';
}
