/** The page of the tensor view: nothing from the network, one script, one style sheet. */
import { randomBytes } from 'node:crypto';
import * as vscode from 'vscode';

export function pageOf(webview: vscode.Webview, assets: vscode.Uri, name: string): string {
  const nonce = randomBytes(16).toString('hex');
  const at = (file: string): string => webview.asWebviewUri(vscode.Uri.joinPath(assets, file)).toString();
  const policy = `default-src 'none'; script-src 'nonce-${nonce}'; style-src ${webview.cspSource}`;
  return `<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="${policy}">
<link rel="stylesheet" href="${at('tensor.css')}">
<title>${escaped(name)}</title>
</head>
<body>
<h1>${escaped(name)}</h1>
<main id="main" aria-live="polite"><p>Reading the tensor.</p></main>
<script nonce="${nonce}" src="${at('tensor.js')}"></script>
</body>
</html>`;
}

function escaped(text: string): string {
  return text.replace(/[&<>"]/g, (sign) => `&#${sign.charCodeAt(0)};`);
}
