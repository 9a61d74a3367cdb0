// Talks to a server with the official package of the Model Context Protocol for Node.

import { assert, checkPages, load, NEXT, QUESTION, refused, token, url } from "./served.mjs";

const { Client } = await load("@modelcontextprotocol/sdk/client/index.js");
const { StreamableHTTPClientTransport } = await load("@modelcontextprotocol/sdk/client/streamableHttp.js");

async function connected(key) {
  const client = new Client({ name: "test", version: "1" });
  const headers = { Authorization: `Bearer ${key}` };
  await client.connect(new StreamableHTTPClientTransport(new URL(`${url}/mcp`), { requestInit: { headers } }));
  return client;
}

const client = await connected(token);
assert.deepEqual((await client.listTools()).tools.map((tool) => tool.name).sort(), ["ask", "search"]);
const call = (name, args) => client.callTool({ name, arguments: args });
const found = await call("search", { query: "ferry nine" });
await checkPages([found.structuredContent.hits[0].url]);
// The text alone has the links as well: not every client shows what is structured.
assert(found.content[0].text.includes(found.structuredContent.hits[0].url), found.content[0].text);
for (const pipeline of ["demo", "written"]) {
  const answer = await call("ask", { question: QUESTION, pipeline });
  assert.match(answer.content[0].text, /nine/);
  await checkPages(answer.structuredContent.sources.map((source) => source.url));
  const { text } = answer.content[0];
  for (const source of answer.structuredContent.sources) assert(text.includes(source.url), text);
}
const history = [{ speaker: "user", text: QUESTION }];
assert.match((await call("ask", { question: NEXT, history })).content[0].text, /four euros/);
for (const question of ["Has the ferry an outage?", "Has the ferry a breakdown?"]) {
  const failed = await call("ask", { question, pipeline: "written" });
  assert(failed.isError && failed.content[0].text.includes("failed"), failed);
}
const { resources } = await client.listResources();
assert(resources.length >= 2, resources);
for (const { uri } of resources) assert.match((await client.readResource({ uri })).contents[0].text, /ferry/);
await client.close();
assert.equal((await refused(() => connected("wrong"), "unknown token")).code, 401);
console.log("ok");
