"""Programs that are instrumented for OpenTelemetry, each by another package, talk to a model that is none.

Usage: otlp_client.py URL GRPC [PACKAGE]. Without a package, one process runs for each.
"""

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PACKAGES = ["openai-v2", "openinference", "openllmetry"]


class Model(BaseHTTPRequestHandler):
    """Repeats the last question."""

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        text = "Reply to: " + [one for one in body["messages"] if one["role"] == "user"][-1]["content"]
        common = {"id": "c", "created": 1, "model": "m"}
        self.send_response(200)
        if not body.get("stream"):
            choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            self.send_header("content-type", "application/json")
            self.end_headers()
            reply = {**common, "object": "chat.completion", "choices": [choice], "usage": usage}
            self.wfile.write(json.dumps(reply).encode())
            return
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for delta, reason in [({"role": "assistant", "content": text}, None), ({}, "stop")]:
            choice = {"index": 0, "delta": delta, "finish_reason": reason}
            chunk = {**common, "object": "chat.completion.chunk", "choices": [choice]}
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")


def main(url, grpc, package):
    os.environ["OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"] = "true"
    from opentelemetry import _logs, trace
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    if package == "openllmetry":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.instrumentation.openai import OpenAIInstrumentor

        spans, logs = OTLPSpanExporter(grpc, insecure=True), None
    else:
        from opentelemetry.exporter.otlp.proto.http import Compression
        from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        if package == "openai-v2":
            from opentelemetry.instrumentation.openai_v2 import OpenAIInstrumentor
        else:
            from openinference.instrumentation.openai import OpenAIInstrumentor
        spans = OTLPSpanExporter(url + "/v1/traces", compression=Compression.Gzip)
        logs = OTLPLogExporter(url + "/v1/logs")
    tracers, loggers = TracerProvider(), LoggerProvider()
    tracers.add_span_processor(BatchSpanProcessor(spans))
    trace.set_tracer_provider(tracers)
    if logs:
        loggers.add_log_record_processor(BatchLogRecordProcessor(logs))
        _logs.set_logger_provider(loggers)
    OpenAIInstrumentor().instrument()

    import openai

    model = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=model.serve_forever, daemon=True).start()
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{model.server_port}/v1", api_key="none")
    said = [{"role": "system", "content": "Be brief."}]
    for stream, question in [(False, f"When does the ferry leave, {package}?"), (True, f"And back, {package}?")]:
        said.append({"role": "user", "content": question})
        reply = client.chat.completions.create(model="m", messages=said, stream=stream)
        if stream:
            text = "".join(chunk.choices[0].delta.content or "" for chunk in reply)
        else:
            text = reply.choices[0].message.content
        said.append({"role": "assistant", "content": text})
    tracers.shutdown()
    loggers.shutdown()


if len(sys.argv) == 3:
    for name in PACKAGES:
        subprocess.run([sys.executable, *sys.argv, name], check=True)
else:
    main(*sys.argv[1:])
