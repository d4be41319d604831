/** The check boxes of layers are function breakpoints named `layer:PATH`, which any client has. */
import * as vscode from 'vscode';

const PREFIX = 'layer:';

/** The breakpoint of exactly this layer; globs are left to the Breakpoints view. */
export function layerBreakpoint(path: string): vscode.FunctionBreakpoint | undefined {
  return vscode.debug.breakpoints.find(
    (breakpoint): breakpoint is vscode.FunctionBreakpoint =>
      breakpoint instanceof vscode.FunctionBreakpoint && breakpoint.functionName === PREFIX + path,
  );
}

/** Set or remove it. A disabled one with a condition is set as it was. */
export function setLayerBreakpoint(path: string, isOn: boolean): void {
  const known = layerBreakpoint(path);
  if (known !== undefined) vscode.debug.removeBreakpoints([known]);
  if (isOn) vscode.debug.addBreakpoints([new vscode.FunctionBreakpoint(PREFIX + path, true, known?.condition)]);
}
