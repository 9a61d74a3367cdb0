// Talks to a server with Vercel's AI SDK.

import { assert, checkPages, cut, load, NEXT, once, QUESTION, refused, token, url } from "./served.mjs";

const { embedMany, generateObject, generateText, jsonSchema, Output, streamText, tool } = await load("ai");
const { createOpenAI } = await load("@ai-sdk/openai");
const { createOpenAICompatible } = await load("@ai-sdk/openai-compatible");
const { createMCPClient } = await load("@ai-sdk/mcp");
const { z } = await load("zod");

const openai = (apiKey = token, base = url) => createOpenAI({ apiKey, baseURL: `${base}/v1` });
const compatible = createOpenAICompatible({
  name: "turnflow",
  apiKey: token,
  baseURL: `${url}/v1`,
  // This package shows no annotations.
  headers: { "X-Turnflow-Citations": "markdown" },
  supportsStructuredOutputs: true,
});
const generate = (model, prompt = QUESTION, options = {}) => generateText({ model, prompt, maxRetries: 0, ...options });
// A stream that is read to its end: its errors are in it.
async function stream(model, prompt = QUESTION, options = {}) {
  const result = streamText({ model, prompt, maxRetries: 0, onError: () => {}, ...options });
  const seen = { text: "", sources: [] };
  for await (const part of result.fullStream) {
    if (part.type === "error") throw part.error;
    if (part.type === "text-delta") seen.text += part.text;
    if (part.type === "source") seen.sources.push(part);
  }
  return seen;
}
const urls = (sources) => sources.map((source) => (assert(source.title), source.url));

// Responses are the default of the package for OpenAI, and chat completions are there too.
for (const name of ["demo", "written"])
  for (const model of [openai()(name), openai().chat(name)]) {
    const answer = await generate(model);
    assert.match(answer.text, /nine/);
    assert(answer.usage.totalTokens > 0);
    await checkPages(urls(answer.sources));
    const seen = await stream(model);
    assert.equal(seen.text, answer.text);
    await checkPages(urls(seen.sources));
  }
const listed = await generate(compatible("demo"));
assert.match(listed.text, /\*\*Sources\*\*/);
assert.equal((await stream(compatible("demo"))).text.split("\n")[0], listed.text.split("\n")[0]);

// A conversation: the messages are the history. With the default, the SDK sends the id of the answer before, not its text.
for (const store of [true, false])
  for (const model of [openai()("demo"), openai().chat("demo"), compatible("demo")]) {
    const options = { model, maxRetries: 0, providerOptions: { openai: { store } } };
    const messages = [{ role: "user", content: QUESTION }];
    messages.push(...(await generateText({ ...options, messages })).response.messages);
    messages.push({ role: "user", content: NEXT });
    assert.match((await generateText({ ...options, messages })).text, /four euros/);
  }

// Forms: with a language model, or a refusal that says why.
const schema = z.object({ hours: z.array(z.number()) });
for (const of of [openai(), openai().chat, compatible]) {
  assert.deepEqual((await generateObject({ model: of("written"), schema, prompt: QUESTION })).object, { hours: [9, 12] });
  const formed = await generate(of("written"), QUESTION, { output: Output.object({ schema }) });
  assert.deepEqual(formed.output, { hours: [9, 12] });
  const cannot = () => generateObject({ model: of("demo"), schema, prompt: QUESTION });
  const failed = await refused(cannot, "cannot keep to a schema");
  assert.equal(failed.statusCode, 400);
}

// Tools that are offered are not called; to force one is refused.
const tools = { weather: tool({ description: "Tells the weather.", inputSchema: z.object({}), execute: () => "fine" }) };
for (const model of [openai()("demo"), openai().chat("demo"), compatible("demo")]) {
  assert.match((await generate(model, QUESTION, { tools })).text, /nine/);
  await refused(() => generate(model, QUESTION, { tools, toolChoice: "required" }), "calls no tools");
}

for (const model of [openai().embedding("written/vectors"), compatible.embeddingModel("written/vectors")])
  assert.equal((await embedMany({ model, values: ["a ferry", "a boat"], maxRetries: 0 })).embeddings[0].length, 3);

// Words that end the answer.
const stopped = await stream(openai().chat("written"), QUESTION, { stopSequences: [" It is"] });
assert.equal(stopped.text, "The ferry leaves at nine [1].");

const status = async (call, ...told) => (await refused(call, ...told)).statusCode;
assert.equal(await status(() => generate(openai("wrong")("demo"))), 401);
assert.equal(await status(() => generate(openai()("none")), "demo, written"), 404);
const often = async () => {
  for (let at = 0; at < 3; at += 1) await generate(openai(once)("demo"));
};
assert.equal(await status(often), 429);
for (const model of [openai()("written"), openai().chat("written"), compatible("written")])
  for (const question of ["Has the ferry an outage?", "Has the ferry a breakdown?"]) {
    assert.equal(await status(() => generate(model, question), "failed"), 500);
    await refused(() => stream(model, question), "failed");
  }
for (const model of [openai(token, cut)("demo"), openai(token, cut).chat("demo")]) await refused(() => stream(model));

// The tools of the Model Context Protocol, as the SDK gives them to a model.
const transport = { type: "http", url: `${url}/mcp`, headers: { Authorization: `Bearer ${token}` } };
const mcp = await createMCPClient({ transport });
const { search, ask } = await mcp.tools();
const options = { toolCallId: "1", messages: [] };
const found = await search.execute({ query: "ferry nine" }, options);
await checkPages([found.structuredContent.hits[0].url]);
assert.match(JSON.stringify(await ask.execute({ question: QUESTION }, options)), /nine/);
await mcp.close();
console.log("ok");
