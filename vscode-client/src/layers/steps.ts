/** The buttons of the view: steps by layers, from wherever the program stands. */
import * as vscode from 'vscode';

import type { Sessions } from '../debug/sessions';

/** The server's name of each step, by the command that takes it. */
const STEPS = {
  'tensorpoint.layers.stepOver': 'over',
  'tensorpoint.layers.stepInto': 'in',
  'tensorpoint.layers.stepOut': 'out',
  'tensorpoint.layers.stepBack': 'back',
} as const;

export function registerLayerSteps(sessions: Sessions): vscode.Disposable {
  return vscode.Disposable.from(
    ...Object.entries(STEPS).map(([command, how]) =>
      vscode.commands.registerCommand(command, () => step(sessions, how)),
    ),
  );
}

async function step(sessions: Sessions, how: string): Promise<void> {
  const state = sessions.active;
  if (state?.stopped !== true) {
    void vscode.window.showInformationMessage('Tensorpoint: the program has to be paused for a step.');
    return;
  }
  try {
    await state.session.customRequest('tensorpoint/step', { how });
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    void vscode.window.showInformationMessage(`Tensorpoint: ${reason}`);
  }
}
