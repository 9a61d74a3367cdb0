// A program with the AI SDK, instrumented for OpenTelemetry, talks to a model that is none.
// Usage: node otlp_client.mjs PACKAGES URL

import { createServer } from "node:http";
import { createRequire } from "node:module";

const [packages, url] = process.argv.slice(2);
const require = createRequire(`${packages}/package.json`);
const { generateText, streamText } = require("ai");
const { createOpenAICompatible } = require("@ai-sdk/openai-compatible");
const { NodeTracerProvider, BatchSpanProcessor } = require("@opentelemetry/sdk-trace-node");
const { OTLPTraceExporter } = require("@opentelemetry/exporter-trace-otlp-http");

const answer = (body) => `Reply to: ${JSON.stringify(body.messages.at(-1).content)}`;
const model = createServer((request, response) => {
  let text = "";
  request.on("data", (data) => (text += data));
  request.on("end", () => {
    const body = JSON.parse(text);
    const common = { id: "c", created: 1, model: "m" };
    if (!body.stream) {
      const message = { role: "assistant", content: answer(body) };
      const choices = [{ index: 0, message, finish_reason: "stop" }];
      response.setHeader("content-type", "application/json");
      return response.end(JSON.stringify({ ...common, object: "chat.completion", choices }));
    }
    response.setHeader("content-type", "text/event-stream");
    for (const [delta, reason] of [[{ role: "assistant", content: answer(body) }, null], [{}, "stop"]]) {
      const choices = [{ index: 0, delta, finish_reason: reason }];
      response.write(`data: ${JSON.stringify({ ...common, object: "chat.completion.chunk", choices })}\n\n`);
    }
    response.end("data: [DONE]\n\n");
  });
});
await new Promise((listens) => model.listen(0, "127.0.0.1", listens));
const provider = new NodeTracerProvider({
  spanProcessors: [new BatchSpanProcessor(new OTLPTraceExporter({ url: `${url}/v1/traces` }))],
});
provider.register();
const baseURL = `http://127.0.0.1:${model.address().port}/v1`;
const fake = createOpenAICompatible({ name: "fake", baseURL, apiKey: "none" })("m");
const experimental_telemetry = { isEnabled: true, metadata: { sessionId: "js" } };
const said = [{ role: "user", content: "When does the ferry leave, ai?" }];
const first = await generateText({ model: fake, system: "Be brief.", messages: said, experimental_telemetry });
said.push({ role: "assistant", content: first.text }, { role: "user", content: [{ type: "text", text: "And back, ai?" }] });
for await (const _ of streamText({ model: fake, messages: said, experimental_telemetry }).textStream);
await provider.forceFlush();
process.exit(0);
