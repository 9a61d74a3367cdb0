// Talks to a server with OpenAI's package of Node.

import { assert, checkPages, cut, load, NEXT, once, QUESTION, refused, token, url } from "./served.mjs";

const { default: OpenAI } = await load("openai");
const { zodResponseFormat, zodTextFormat } = await load("openai/helpers/zod");
const { z } = await load("zod");

const client = (apiKey = token, base = url) => new OpenAI({ apiKey, baseURL: `${base}/v1`, maxRetries: 0 });
const said = (content) => [{ role: "user", content }];
const ask = (content = QUESTION, options = {}, of = client()) =>
  of.chat.completions.create({ model: "demo", messages: said(content), ...options });
const respond = (input = QUESTION, options = {}) => client().responses.create({ model: "demo", input, ...options });
// The text and the annotations of a stream.
async function streamed(content, options, of) {
  let text = "";
  const notes = [];
  for await (const chunk of await ask(content, { ...options, stream: true }, of))
    for (const { delta } of chunk.choices) {
      text += delta.content ?? "";
      notes.push(...(delta.annotations ?? []));
    }
  return { text, notes };
}

for (const model of ["demo", "written"]) {
  const answer = (await ask(QUESTION, { model })).choices[0].message;
  assert.match(answer.content, /nine/);
  await checkPages(answer.annotations.map((note) => note.url_citation.url));
  const { text, notes } = await streamed(QUESTION, { model });
  assert.equal(text, answer.content);
  await checkPages(notes.map((note) => note.url_citation.url));
  const response = await respond(QUESTION, { model });
  assert.equal(response.output_text, answer.content);
  await checkPages(response.output[0].content[0].annotations.map((note) => note.url));
  const added = [];
  const events = client().responses.stream({ model, input: QUESTION });
  for await (const event of events)
    if (event.type === "response.output_text.annotation.added") added.push(event.annotation.url);
  await checkPages(added);
  assert.equal((await events.finalResponse()).output_text, answer.content);
}

// A conversation: the messages are the history, or the response before is.
const { content } = (await ask()).choices[0].message;
const messages = [...said(QUESTION), { role: "assistant", content }, ...said(NEXT)];
const second = await client().chat.completions.create({ model: "demo", messages });
assert.match(second.choices[0].message.content, /four euros/);
const next = await respond(NEXT, { previous_response_id: (await respond()).id });
assert.match(next.output_text, /four euros/);

// Forms: with a language model, or a refusal that says why.
const Hours = z.object({ hours: z.array(z.number()) });
const chat = (model) =>
  client().chat.completions.parse({ model, messages: said(QUESTION), response_format: zodResponseFormat(Hours, "hours") });
const response = (model) =>
  client().responses.parse({ model, input: QUESTION, text: { format: zodTextFormat(Hours, "hours") } });
assert.deepEqual((await chat("written")).choices[0].message.parsed, { hours: [9, 12] });
assert.deepEqual((await response("written")).output_parsed, { hours: [9, 12] });
for (const parse of [chat, response])
  assert.equal((await refused(() => parse("demo"), "400", "cannot keep to a schema")).constructor, OpenAI.BadRequestError);

// Any object, and a schema that is none.
const object = { model: "written", response_format: { type: "json_object" } };
assert.deepEqual(JSON.parse((await ask(QUESTION, object)).choices[0].message.content), { hours: [9, 12] });
assert.deepEqual(JSON.parse((await streamed(QUESTION, object)).text), { hours: [9, 12] });
const anyObject = { model: "written", text: { format: { type: "json_object" } } };
assert.deepEqual(JSON.parse((await respond(QUESTION, anyObject)).output_text), { hours: [9, 12] });
const wrong = { name: "a", schema: { type: "object", properties: [] } };
const bad = { model: "written", response_format: { type: "json_schema", json_schema: wrong } };
const told = await refused(() => ask(QUESTION, bad), "400", "`schema.properties` must be an object");
assert.deepEqual([told.constructor, told.param], [OpenAI.BadRequestError, "response_format"]);

// Tools that are offered are not called; to force one is refused.
const tools = [{ type: "function", function: { name: "weather", parameters: { type: "object", properties: {} } } }];
assert.equal((await ask(QUESTION, { tools })).choices[0].message.tool_calls, undefined);
await refused(() => ask(QUESTION, { tools, tool_choice: "required" }), "400", "calls no tools");

// By default the package asks for base64.
const embed = (options) => client().embeddings.create({ model: "written/vectors", input: ["a ferry"], ...options });
const [one, two] = [await embed({}), await embed({ encoding_format: "float" })].map((found) => found.data[0].embedding);
assert(one.length === 3 && one.every((number, at) => Math.abs(number - two[at]) < 1e-6), `${one} ${two}`);

// Words that end the answer.
assert.equal((await streamed(QUESTION, { model: "written", stop: " It is" })).text, "The ferry leaves at nine [1].");

assert.equal((await refused(() => ask(QUESTION, {}, client("wrong")), "401")).constructor, OpenAI.AuthenticationError);
assert.equal((await refused(() => ask(QUESTION, { model: "none" }), "demo, written")).constructor, OpenAI.NotFoundError);
const often = async () => {
  for (let at = 0; at < 3; at += 1) await ask(QUESTION, {}, client(once));
};
assert.equal((await refused(often, "429")).constructor, OpenAI.RateLimitError);
for (const question of ["Has the ferry an outage?", "Has the ferry a breakdown?"]) {
  const failed = await refused(() => ask(question, { model: "written" }), "500", "failed");
  assert.equal(failed.constructor, OpenAI.InternalServerError);
  await refused(() => streamed(question, { model: "written" }), "failed");
}
await refused(() => streamed(QUESTION, {}, client(token, cut)));
console.log("ok");
