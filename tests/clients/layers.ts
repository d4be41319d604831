/**
 * Steps by layers with the client that VS Code's adapters are tested with. It knows of nothing but
 * DAP and advertises nothing: what works here works without the extension.
 *
 * Arguments: the command that is the adapter, the interpreter, the program.
 */
import assert from 'node:assert/strict';
import { argv } from 'node:process';
import { DebugClient } from '@vscode/debugadapter-testsupport';
import type { DebugProtocol } from '@vscode/debugprotocol';

const [adapter = '', python = '', program = ''] = argv.slice(2);
const client = new DebugClient(adapter, 'dap', 'tensorpoint', undefined, true);
client.defaultTimeout = 60_000;

/** What `act` makes the adapter stop at. */
async function stopOf(act: () => Promise<unknown>): Promise<DebugProtocol.StoppedEvent['body']> {
  const [stopped] = await Promise.all([client.waitForEvent('stopped'), act()]);
  return (stopped as DebugProtocol.StoppedEvent).body;
}

async function framesOf(threadId: number): Promise<DebugProtocol.StackFrame[]> {
  return (await client.stackTraceRequest({ threadId })).body.stackFrames;
}

/** A scope of the innermost layer, as names and values. */
async function scope(threadId: number, name: string): Promise<Record<string, string>> {
  const [top] = await framesOf(threadId);
  assert(top);
  const { scopes } = (await client.scopesRequest({ frameId: top.id })).body;
  const found = scopes.find((item) => item.name === name);
  assert(found, `a scope ${name} among ${scopes.map((item) => item.name).join(', ')}`);
  const { variables } = (await client.variablesRequest({ variablesReference: found.variablesReference })).body;
  return Object.fromEntries(variables.map((row) => [row.name, row.value]));
}

const layers = (breakpoints: DebugProtocol.FunctionBreakpoint[]) => client.setFunctionBreakpointsRequest({ breakpoints });

await client.start();
const offered = (await client.initializeRequest()).body;
assert.equal(offered?.supportsFunctionBreakpoints, true);
assert(!offered.supportsStepBack, 'a step back is offered where there is one');

const initialized = client.waitForEvent('initialized');
const launched = client.launchRequest({ program, python: [python], console: 'internalConsole' } as DebugProtocol.LaunchRequestArguments);
await initialized;
await layers([{ name: 'layer:layers.0.mlp' }]);
const atBreakpoint = await stopOf(() => client.configurationDoneRequest());
await launched;

const { threads } = (await client.threadsRequest()).body;
const layerThread = threads.find((thread) => thread.name === 'layers of Net');
assert(layerThread, JSON.stringify(threads));
const threadId = layerThread.id;
assert.notEqual(threadId, atBreakpoint.threadId);
assert.deepEqual(
  (await framesOf(threadId)).map((frame) => frame.name),
  ['layers.0.mlp (Mlp) [entry]', 'layers.0 (Block)', '(root) (Net)'],
);
assert.deepEqual(await scope(threadId, 'Inputs'), { x: 'f32[2, 4] cpu grad' });

// A step back is offered before the first stop at which there is one.
const capabilities = client.waitForEvent('capabilities');
let stopped = await stopOf(() => client.stepInRequest({ threadId }));
assert.deepEqual([stopped.threadId, stopped.reason, stopped.description], [threadId, 'step', 'Entering layers.0.mlp.up (Linear)']);
assert.deepEqual(((await capabilities) as DebugProtocol.CapabilitiesEvent).body.capabilities, { supportsStepBack: true });

stopped = await stopOf(() => client.nextRequest({ threadId }));
assert.equal(stopped.description, 'Entering layers.0.mlp.act (ReLU)');
stopped = await stopOf(() => client.stepBackRequest({ threadId }));
assert.equal(stopped.description, 'Entering layers.0.mlp.up (Linear)');
assert.equal((await framesOf(threadId))[0]?.name, 'layers.0.mlp.up (Linear) [entry, replayed]');
stopped = await stopOf(() => client.nextRequest({ threadId }));
assert.equal(stopped.description, 'Entering layers.0.mlp.act (ReLU)');
assert.equal((await framesOf(threadId))[0]?.name, 'layers.0.mlp.act (ReLU) [entry]');

stopped = await stopOf(() => client.stepOutRequest({ threadId }));
assert.equal(stopped.description, 'Leaving layers.0.mlp (Mlp)');
assert.deepEqual(await scope(threadId, 'Outputs'), { output: 'f32[2, 4] cpu grad' });
assert.deepEqual(Object.keys(await scope(threadId, 'Parameters')), ['up.weight', 'up.bias', 'down.weight', 'down.bias']);
const [top] = await framesOf(threadId);
assert(top);
const value = (await client.evaluateRequest({ expression: 'list(output.shape)', frameId: top.id, context: 'watch' })).body;
assert.equal(value.result, '[2, 4]');

const exited = client.waitForEvent('exited');
await layers([]);
await client.continueRequest({ threadId });
assert.equal(((await exited) as DebugProtocol.ExitedEvent).body.exitCode, 0);
await client.stop();
