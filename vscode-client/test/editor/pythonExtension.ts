/** What Microsoft's Python extension says is selected. */
export const selected = { path: '' };

export const PythonExtension = {
  api: () =>
    Promise.resolve({
      environments: {
        getActiveEnvironmentPath: () => selected.path,
        resolveEnvironment: (found: string) => Promise.resolve({ executable: { uri: { fsPath: found } } }),
      },
    }),
};
