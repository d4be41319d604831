/** Inline values while paused: the summaries of a frame's locals, asked for in one round trip. */
import * as vscode from 'vscode';

import { TYPE } from './configuration/complete';
import { inlineTexts, type NamedText } from './inlineTexts';

export function registerInlineValues(log: vscode.LogOutputChannel): vscode.Disposable {
  return vscode.languages.registerInlineValuesProvider({ language: 'python' }, {
    async provideInlineValues(document, viewPort, context) {
      const session = vscode.debug.activeDebugSession;
      if (session?.type !== TYPE) return [];
      try {
        const { values, firstLine } = (await session.customRequest('tensorpoint/inlineValues', {
          frameId: context.frameId,
        })) as { values: NamedText[]; firstLine: number };
        // Names elsewhere are those of other functions; what is below has not run.
        const first = Math.max(firstLine - 1, viewPort.start.line);
        const last = Math.min(context.stoppedLocation.end.line, viewPort.end.line);
        const lines = Array.from({ length: Math.max(0, last - first + 1) }, (_, offset) => {
          const line = first + offset;
          return { line, text: document.lineAt(line).text };
        });
        return inlineTexts(lines, values).map(
          ({ line, start, end, text }) => new vscode.InlineValueText(new vscode.Range(line, start, line, end), text),
        );
      } catch (error) {
        log.debug(`the inline values: ${String(error)}`);
        return [];
      }
    },
  });
}
