// Drives `@modelcontextprotocol/client` through what a client does with a server, and prints what it
// was given as JSON lines. One argument, JSON: {"url", "era", "answer"}.
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";

const wish = JSON.parse(process.argv.at(-1));
const say = (event, facts) => console.log(JSON.stringify({ event, ...facts }));

const client = new Client(
  { name: "npm-client-driver", version: "1.0.0" },
  {
    capabilities: { elicitation: { form: {} } },
    versionNegotiation: { mode: wish.era === "modern" ? { pin: "2026-07-28" } : "legacy" },
  },
);
client.setRequestHandler("elicitation/create", ({ params }) => {
  say("asked", { message: params.message });
  return { action: "accept", content: wish.answer };
});

await client.connect(new StreamableHTTPClientTransport(new URL(wish.url)));
try {
  say("connected", { era: client.getProtocolEra(), server: client.getServerVersion() });
  const { tools } = await client.listTools();
  const { resources } = await client.listResources();
  const { resourceTemplates } = await client.listResourceTemplates();
  const { prompts } = await client.listPrompts();
  say("listed", { tools, resources, resourceTemplates, prompts });
  const [uri, name] = [resources[0].uri, prompts[0].name];
  say("read", await client.readResource({ uri }));
  say("prompted", await client.getPrompt({ name, arguments: { topic: "bridges" } }));
  const completing = { ref: { type: "ref/prompt", name }, argument: { name: "topic", value: "b" } };
  say("completed", await client.complete(completing));
  const progress = [];
  // For so long that the wait for the result begins before the tool has ended.
  const waited = await client.callTool(
    { name: "slow_echo", arguments: { text: "hi", seconds: 3 } },
    { onprogress: (step) => progress.push(step.progress) },
  );
  say("waited", { progress, ...waited });
  say("answered", await client.callTool({ name: "ask_name", arguments: {} }));
  say("failed", await client.callTool({ name: "is_error", arguments: {} }));
  const refused = await client.callTool({ name: "fails", arguments: {} }).catch((error) => error);
  say("refused", { code: refused.code, data: refused.data });
} finally {
  await client.close();
}
