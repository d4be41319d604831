/**
 * The hover with a link to the tensor view.
 *
 * While a program is paused VS Code shows its own hover, a tree of the value in which nothing can be
 * added; with Alt held down it shows that of the language, where this one is.
 */
import * as vscode from 'vscode';

import { TYPE } from '../configuration/complete';
import type { Sessions } from '../debug/sessions';
import { expressionAt } from './expression';

interface Evaluated {
  result: string;
  variablesReference: number;
  __vscodeVariableMenuContext?: string;
}

export function registerTensorHover(sessions: Sessions, log: vscode.LogOutputChannel): vscode.Disposable {
  return vscode.languages.registerHoverProvider({ language: 'python' }, {
    async provideHover(document, position) {
      const item = vscode.debug.activeStackItem;
      if (!(item instanceof vscode.DebugStackFrame) || item.session.type !== TYPE) return undefined;
      if (sessions.all.find(({ session }) => session.id === item.session.id)?.stopped !== true) return undefined;
      const found = expressionAt(document.lineAt(position.line).text, position.character);
      if (found === undefined) return undefined;
      try {
        const value = (await item.session.customRequest('evaluate', {
          expression: found.text,
          frameId: item.frameId,
          context: 'hover',
        })) as Evaluated;
        if (value.__vscodeVariableMenuContext !== 'tensor') return undefined;
        const range = new vscode.Range(position.line, found.start, position.line, found.end);
        return new vscode.Hover(textOf(found.text, value, item.session.id), range);
      } catch (error) {
        log.debug(`the hover on ${found.text}: ${String(error)}`);
        return undefined;
      }
    },
  });
}

function textOf(expression: string, value: Evaluated, sessionId: string): vscode.MarkdownString {
  const variable = { name: expression, value: value.result, variablesReference: value.variablesReference, evaluateName: expression };
  const chosen = encodeURIComponent(JSON.stringify([{ sessionId, variable }]));
  const text = new vscode.MarkdownString();
  text.isTrusted = { enabledCommands: ['tensorpoint.viewTensor'] };
  text.appendCodeblock(`${expression} = ${value.result}`, 'text');
  return text.appendMarkdown(`[View Tensor](command:tensorpoint.viewTensor?${chosen})`);
}
