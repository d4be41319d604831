import { rules } from '../../vscode-client/eslint.config.mjs';

export default rules(import.meta.dirname);
