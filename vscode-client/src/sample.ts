/** The walkthrough's program, in a file that can be run and changed. */
import * as path from 'node:path';
import * as vscode from 'vscode';

export async function openSample(context: vscode.ExtensionContext): Promise<void> {
  const source = vscode.Uri.joinPath(context.extensionUri, 'media', 'walkthrough', 'find_a_nan.py');
  const folder = vscode.Uri.joinPath(context.globalStorageUri, 'sample');
  const target = vscode.Uri.joinPath(folder, path.basename(source.fsPath));
  await vscode.workspace.fs.createDirectory(folder);
  try {
    await vscode.workspace.fs.copy(source, target, { overwrite: false });
  } catch (error) {
    // What the user made of it stays.
    if (!(error instanceof vscode.FileSystemError && error.code === 'FileExists')) throw error;
  }
  await vscode.window.showTextDocument(target);
}
