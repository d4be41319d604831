/**
 * What the extension asks of VS Code, in memory: commands, settings (as package.json declares
 * them), breakpoints, and a user who answers boxes. `editor` is the tests' side of it.
 */
import fs from 'node:fs';
import path from 'node:path';

type Listener<T> = (value: T) => unknown;

export class Disposable {
  static from(...items: { dispose: () => unknown }[]): Disposable {
    return new Disposable(() => items.forEach((item) => item.dispose()));
  }

  constructor(readonly dispose: () => unknown) {}
}

export class EventEmitter<T> {
  private readonly listeners = new Set<Listener<T>>();

  readonly event = (listener: Listener<T>): Disposable => {
    this.listeners.add(listener);
    return new Disposable(() => this.listeners.delete(listener));
  };

  fire(value: T): void {
    for (const listener of this.listeners) listener(value);
  }

  dispose(): void {
    this.listeners.clear();
  }
}

export class FunctionBreakpoint {
  constructor(
    readonly functionName: string,
    readonly enabled = true,
    readonly condition?: string,
  ) {}
}

export class ThemeColor {
  constructor(readonly id: string) {}
}

export class ThemeIcon {
  constructor(
    readonly id: string,
    readonly color?: ThemeColor,
  ) {}
}

export class MarkdownString {
  constructor(readonly value: string) {}
}

export class TreeItem {
  constructor(
    readonly label: string,
    readonly collapsibleState: number,
  ) {}
}

export class Uri {
  static file(fsPath: string): Uri {
    return new Uri(fsPath);
  }

  private constructor(readonly fsPath: string) {}
}

export const TreeItemCollapsibleState = { None: 0, Collapsed: 1, Expanded: 2 };
export const TreeItemCheckboxState = { Unchecked: 0, Checked: 1 };
export const QuickPickItemKind = { Separator: -1, Default: 0 };
export const DebugConfigurationProviderTriggerKind = { Initial: 1, Dynamic: 2 };
export const ConfigurationTarget = { Global: 1, Workspace: 2 };

/** The box of a command, and the keys that a user presses in it. */
export class InputBox {
  title = '';
  prompt = '';
  value = '';
  validationMessage: string | undefined;
  isOpen = false;
  private readonly changed = new EventEmitter<string>();
  private readonly accepted = new EventEmitter<void>();
  private readonly hidden = new EventEmitter<void>();
  readonly onDidChangeValue = this.changed.event;
  readonly onDidAccept = this.accepted.event;
  readonly onDidHide = this.hidden.event;

  show(): void {
    this.isOpen = true;
  }

  dispose(): void {
    this.isOpen = false;
  }

  write(text: string): void {
    this.value = text;
    this.changed.fire(text);
  }

  enter(): void {
    this.accepted.fire();
  }

  escape(): void {
    this.hidden.fire();
  }
}

interface Row {
  label: string;
  description?: string;
}

type Provider = Record<string, (...values: unknown[]) => unknown>;

const MANIFEST = path.resolve(import.meta.dirname, '../../package.json');
const { contributes } = JSON.parse(fs.readFileSync(MANIFEST, 'utf8')) as {
  contributes: { configuration: { properties: Record<string, { default: unknown }> } };
};

export const editor = {
  commands: new Map<string, (...values: unknown[]) => unknown>(),
  executed: [] as string[],
  settings: new Map<string, unknown>(),
  breakpoints: [] as FunctionBreakpoint[],
  boxes: [] as InputBox[],
  /** What the newest quick pick shows. */
  rows: [] as Row[],
  /** The row that the user chooses of a quick pick. */
  choose: (() => undefined) as (rows: Row[]) => Row | undefined,
  said: [] as string[],
  providers: [] as { type: string; provider: Provider; trigger: number | undefined }[],
  folders: undefined as { uri: Uri }[] | undefined,
  file: undefined as { languageId: string; isUntitled: boolean; uri: Uri } | undefined,
  extensions: new Set<string>(),

  reset(): void {
    this.commands.clear();
    this.settings.clear();
    this.extensions.clear();
    for (const list of [this.executed, this.breakpoints, this.boxes, this.rows, this.said, this.providers]) list.length = 0;
    this.choose = () => undefined;
    this.folders = this.file = undefined;
  },
};

export const commands = {
  registerCommand(name: string, act: (...values: unknown[]) => unknown): Disposable {
    editor.commands.set(name, act);
    return new Disposable(() => editor.commands.delete(name));
  },
  executeCommand(name: string, ...values: unknown[]): Promise<unknown> {
    editor.executed.push(name);
    return Promise.resolve(editor.commands.get(name)?.(...values));
  },
};

export const debug = {
  get breakpoints(): FunctionBreakpoint[] {
    return editor.breakpoints;
  },
  addBreakpoints(added: FunctionBreakpoint[]): void {
    editor.breakpoints.push(...added);
  },
  removeBreakpoints(removed: FunctionBreakpoint[]): void {
    editor.breakpoints = editor.breakpoints.filter((item) => !removed.includes(item));
  },
  registerDebugConfigurationProvider(type: string, provider: Provider, trigger?: number): Disposable {
    editor.providers.push({ type, provider, trigger });
    return new Disposable(() => undefined);
  },
};

export const window = {
  get activeTextEditor() {
    return editor.file && { document: editor.file };
  },
  createInputBox(): InputBox {
    const box = new InputBox();
    editor.boxes.push(box);
    return box;
  },
  showQuickPick(rows: Row[]): Promise<Row | undefined> {
    editor.rows = rows;
    return Promise.resolve(editor.choose(rows));
  },
  setStatusBarMessage(text: string): void {
    editor.said.push(text);
  },
  showInformationMessage(text: string): Promise<undefined> {
    editor.said.push(text);
    return Promise.resolve(undefined);
  },
};

export const workspace = {
  get workspaceFolders() {
    return editor.folders;
  },
  getWorkspaceFolder(uri: Uri) {
    return editor.folders?.find((folder) => uri.fsPath.startsWith(folder.uri.fsPath));
  },
  getConfiguration(section: string) {
    const key = (name: string) => `${section}.${name}`;
    return {
      get: (name: string) => editor.settings.get(key(name)) ?? contributes.configuration.properties[key(name)]?.default,
      update: (name: string, value: unknown) => Promise.resolve(editor.settings.set(key(name), value)),
    };
  },
  onDidChangeConfiguration: new EventEmitter<unknown>().event,
};

export const extensions = {
  getExtension: (name: string) => (editor.extensions.has(name) ? {} : undefined),
};
