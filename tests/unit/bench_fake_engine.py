"""A stand-in for the engine's server, so that the benchmarks are tested without an engine.

Installed as a package `sglang` in a folder on PYTHONPATH. It takes the real flags, decodes
all running requests in lock-step at `FAKE_STEP_MS` a step, and writes the log lines, the
streams, the `/server_info` and the step times that the benchmarks read. It imports nothing
that the benchmarks do not need either.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web


def flag(name: str, default: str = "") -> str:
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


class Engine:
    def __init__(self) -> None:
        self.step_s = float(os.environ.get("FAKE_STEP_MS", "1")) / 1000
        self.interval = int(flag("--decode-log-interval", "40"))
        self.speculative = "--speculative-algorithm" in sys.argv
        config = flag("--speculative-worker-config")
        self.policy = yaml.safe_load(Path(config).read_text())["policy"] if config else None
        self.accept = 2 if self.speculative else 1
        self.steps = {"speculate": 0, "target_only": 0}
        self.mode = "speculate"
        self.running: list[dict[str, Any]] = []
        path = os.environ.get("SPECSWITCH_STEP_TIMES")
        self.times = open(path, "w") if path else None  # noqa: SIM115 - open as long as the process

    def choose(self, number: int) -> bool:
        before = self.mode
        if self.policy and self.policy["kind"] == "fixed":
            self.mode = self.policy["mode"]
        if self.policy and self.policy["kind"] == "periodic":
            stretch = number // self.policy["period"]
            self.mode = "target_only" if stretch % 2 else "speculate"
        return self.mode != before

    async def decode(self) -> None:
        number, tokens, since = 0, 0, time.perf_counter()
        while True:
            await asyncio.sleep(self.step_s)
            if not self.running:
                continue
            switched = self.choose(number)
            emitted = self.accept if self.mode == "speculate" else 1
            self.steps[self.mode] += 1
            if self.times:
                line = {"step": number, "mode": self.mode, "switched": switched, "ms": 2.0}
                line |= {"batch": len(self.running), "forward_ms": 1.0}
                print(json.dumps(line), file=self.times, flush=True)
            number += 1
            if number == int(os.environ.get("FAKE_DIE_AT", "-1")):
                print("Traceback: illegal memory access", flush=True)
                os._exit(3)
            tokens += emitted * len(self.running)
            if number % self.interval == 0:
                now = time.perf_counter()
                accept = f"accept len: {emitted:.2f}, " if self.speculative else ""
                print(
                    f"[2026-01-01 00:00:00] Decode batch, #running-req: {len(self.running)}, "
                    f"#token: 1, token usage: 0.00, {accept}cuda graph: True, "
                    f"gen throughput (token/s): {tokens / (now - since):.2f}, #queue-req: 0",
                    flush=True,
                )
                tokens, since = 0, now
            for request in list(self.running):
                request["tokens"] = min(request["tokens"] + emitted, request["wanted"])
                if request["tokens"] == request["wanted"]:
                    self.running.remove(request)
                request["news"].set()

    async def generate(self, http: web.Request) -> web.StreamResponse:
        body = await http.json()
        if os.environ.get("FAKE_REFUSE"):
            return web.json_response({"error": {"message": "refused"}}, status=400)
        wanted = body["sampling_params"]["max_new_tokens"]
        request = {"tokens": 0, "wanted": wanted, "news": asyncio.Event()}
        print("[2026-01-01 00:00:00] Prefill batch, #new-seq: 1", flush=True)
        self.running.append(request)
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        if body["stream"]:
            await stream.prepare(http)
        while request["tokens"] < wanted:
            await request["news"].wait()
            request["news"].clear()
            if body["stream"]:
                event = {"output_ids": [], "meta_info": {"completion_tokens": request["tokens"]}}
                await stream.write(f"data: {json.dumps(event)}\n\n".encode())
        if body["stream"]:
            await stream.write(b"data: [DONE]\n\n")
            return stream
        return web.json_response({"meta_info": {"completion_tokens": request["tokens"]}})

    async def profile(self, http: web.Request) -> web.Response:
        body = await http.json()
        kernel = {"cat": "kernel", "dur": 400.0}
        events = [{**kernel, "ts": 1000.0 * step} for step in range(body["num_steps"])]
        path = Path(body["output_dir"]) / "1" / "TP-0.trace.json.gz"
        path.parent.mkdir()
        path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
        return web.Response()

    async def info(self, http: web.Request) -> web.Response:
        state: dict[str, Any] = {}
        if self.policy:
            state["specswitch"] = {"mode": self.mode, "steps": self.steps}
        return web.json_response({"internal_states": [state]})


async def main() -> None:
    engine = Engine()
    app = web.Application()
    app.add_routes([web.post("/generate", engine.generate), web.get("/server_info", engine.info)])
    app.add_routes([web.post("/start_profile", engine.profile)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", int(flag("--port"))).start()
    print("The server is fired up and ready to roll!", flush=True)
    await engine.decode()


if __name__ == "__main__":
    if os.environ.get("FAKE_CRASH", "") in sys.argv:
        sys.exit("Traceback: out of memory")
    while (gate := os.environ.get("SGL_GATE")) and not Path(gate).exists():
        time.sleep(0.01)
    asyncio.run(main())
