// Appends each message of each debug session to trace.jsonl beside the workspace, as JSON lines.
const fs = require('node:fs');
const path = require('node:path');
const vscode = require('vscode');

exports.activate = (context) => {
  const file = path.join(vscode.workspace.workspaceFolders[0].uri.fsPath, '..', 'trace.jsonl');
  const write = (entry) => fs.appendFileSync(file, `${JSON.stringify(entry)}\n`);
  context.subscriptions.push(
    vscode.debug.registerDebugAdapterTrackerFactory('*', {
      createDebugAdapterTracker: ({ id, name, type, configuration }) => ({
        onWillStartSession: () => write({ session: id, started: { name, type, configuration } }),
        onWillReceiveMessage: (message) => write({ session: id, sent: message }),
        onDidSendMessage: (message) => write({ session: id, received: message }),
        onExit: (code) => write({ session: id, exited: code ?? null }),
      }),
    }),
  );
  // Extensions can be asked for something from now on.
  write({ ready: true });
};
