// The interpreter that is "selected" is the one that the environment names.
const vscode = require('vscode');

exports.activate = (context) => {
  const python = process.env.TENSORPOINT_EDITOR_PYTHON;
  const path = { id: python, path: python };
  context.subscriptions.push(vscode.commands.registerCommand('python.interpreterPath', () => python));
  return {
    ready: Promise.resolve(),
    environments: {
      getActiveEnvironmentPath: () => path,
      resolveEnvironment: async () => ({ ...path, executable: { uri: vscode.Uri.file(python) } }),
      onDidChangeActiveEnvironmentPath: new vscode.EventEmitter().event,
    },
  };
};
