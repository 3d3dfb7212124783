// Drives one tool call with `@modelcontextprotocol/ext-tasks` and prints what the client saw as
// JSON lines. One argument, JSON: {"url", "tool", "arguments", "answer"?, "cancelOnceThereIs"?}; the
// latter is a file that the running tool makes.
//
// The package leaves the wire of the tasks extension to its host (`rawDispatch`): the SDK's own
// client refuses a `resultType` it does not know. The host here is the SDK's HTTP transport, so
// that every header is still written by the SDK.
import { existsSync } from "node:fs";
import { setTimeout } from "node:timers/promises";
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { createTaskSessionFromClient } from "@modelcontextprotocol/ext-tasks/client";

const PROTOCOL_VERSION = "2026-07-28";
const LOOK_AGAIN_MS = 20;
const ENDS = new Set(["completed", "failed", "cancelled"]);
const wish = JSON.parse(process.argv.at(-1));
const say = (event, facts) => console.log(JSON.stringify({ event, ...facts }));

/** Sends requests beside the client on its transport; string ids, for the client counts numbers. */
function requestsBeside(transport) {
  const waiting = new Map();
  const deliver = transport.onmessage;
  transport.onmessage = (message, extra) => {
    const settle = waiting.get(message.id);
    if (settle === undefined) return deliver(message, extra);
    waiting.delete(message.id);
    settle(message);
  };
  let count = 0;
  return async (request, { signal, context } = {}) => {
    const id = `task-request-${++count}`;
    const answered = new Promise((resolve) => waiting.set(id, resolve));
    try {
      await transport.send(
        { jsonrpc: "2.0", id, ...request },
        { headers: context?.headers, requestSignal: signal },
      );
    } catch (error) {
      waiting.delete(id);
      throw error;
    }
    const message = await answered;
    return "error" in message
      ? { kind: "error", error: message.error }
      : { kind: "result", result: message.result };
  };
}

/** Returns once `holds` does; whoever started this process sets the bound. */
async function until(holds) {
  while (!(await holds())) await setTimeout(LOOK_AGAIN_MS);
}

async function cancel(session, execution) {
  await until(() => existsSync(wish.cancelOnceThereIs));
  await execution.cancel();
  const task = session.task(execution.handle.taskId);
  await until(async () => ENDS.has((await task.snapshot()).status));
  say("ended", { status: (await task.snapshot()).status });
}

async function follow(session) {
  const execution = await session.callTool(wish.tool, { ...wish.arguments });
  say("called", { kind: execution.kind, taskId: execution.handle?.taskId });
  if (wish.cancelOnceThereIs) await cancel(session, execution);
  const { outcome } = await execution.settle({
    onEvent: ({ task }) => task && say("seen", { status: task.status }),
  });
  const { status, result, error } = outcome;
  const facts = error && { code: error.code, message: error.message, data: error.data };
  say("settled", { status, result, error: facts });
}

const clientInfo = { name: "ext-tasks-driver", version: "1.0.0" };
const clientCapabilities = { elicitation: { form: {} } };
const client = new Client(clientInfo, {
  capabilities: clientCapabilities,
  versionNegotiation: { mode: { pin: PROTOCOL_VERSION } },
});
const transport = new StreamableHTTPClientTransport(new URL(wish.url));
await client.connect(transport);
say("connected", { era: client.getProtocolEra(), capabilities: client.getServerCapabilities() });
const { tools } = await client.listTools();
say("listed", { tools: tools.map(({ name }) => name).sort() });
const session = createTaskSessionFromClient(client, {
  endpointId: "acceptance",
  rawDispatch: requestsBeside(transport),
  v2RequestFraming: { protocolVersion: PROTOCOL_VERSION, clientInfo, clientCapabilities },
  onInputRequest: (request, { inputId }) => {
    say("asked", { inputId, kind: request.kind, message: request.params?.message });
    return { action: "accept", content: wish.answer };
  },
});
try {
  await follow(session);
} finally {
  await session.close();
  await client.close();
}
