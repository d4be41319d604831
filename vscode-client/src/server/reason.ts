/** Why a step of an installation failed, in one line. Pure. */
import type { Finished } from '../python/run';

/** "" where nothing was said. */
export function reasonOf({ stdout, stderr }: Pick<Finished, 'stdout' | 'stderr'>): string {
  // Debian's venv says it on standard output, in ten lines of which the last is a command.
  if (stdout.includes('ensurepip is not available'))
    return 'this Python has no venv. On Debian and Ubuntu: apt install python3-venv';
  // The last lines of pip's are hints and notices of a new version.
  const lines = (stderr.trim() || stdout.trim()).split('\n').map((line) => line.trim());
  return lines.findLast((line) => line.startsWith('ERROR:'))?.replace(/^ERROR: */, '') ?? lines.at(-1) ?? '';
}
