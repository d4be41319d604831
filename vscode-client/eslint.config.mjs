import js from '@eslint/js';
import tseslint from 'typescript-eslint';

/** The rules for all TypeScript here; tests/editor uses them, too. */
export function rules(folder) {
  return tseslint.config(
    { ignores: ['dist/**', 'node_modules/**', '**/*.mjs', '**/*.js', 'test-results/**'] },
    js.configs.recommended,
    ...tseslint.configs.strictTypeChecked,
    ...tseslint.configs.stylisticTypeChecked,
    {
      languageOptions: { parserOptions: { projectService: true, tsconfigRootDir: folder } },
      rules: {
        '@typescript-eslint/restrict-template-expressions': ['error', { allowNumber: true }],
        '@typescript-eslint/no-confusing-void-expression': ['error', { ignoreArrowShorthand: true }],
        '@typescript-eslint/switch-exhaustiveness-check': 'error',
        'max-lines': ['error', 500],
        eqeqeq: 'error',
        // VS Code's Disposable is a class that any object with a `dispose` may stand for.
        '@typescript-eslint/no-unsafe-class-instance-assignment': 'off',
      },
    },
  );
}

export default rules(import.meta.dirname);
