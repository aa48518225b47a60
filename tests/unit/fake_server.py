"""A stand-in for the SGLang server: the HTTP the demo uses, and a queue that switches.

Started as a process of its own by the demo's tests; which server it plays and how it
misbehaves is in the arguments.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import zlib

from aiohttp import web

RUN_AT_A_TIME = 4
ENTER, RESUME = 3, 0
STEP_S = 0.004
STUCK = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(600)
"""


class Engine:
    """A scheduler that decodes one token per step for up to RUN_AT_A_TIME requests."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.waiting: list[tuple[list[int], int, asyncio.Event]] = []
        self.running: list[tuple[list[int], int, asyncio.Event]] = []
        self.step = 0
        self.mode = "speculate"
        self.switches: list[dict[str, object]] = []
        self.steps = {"speculate": 0, "target_only": 0}
        self.tokens = {"speculate": 0, "target_only": 0}
        self.task: asyncio.Task[None] | None = None

    async def loop(self) -> None:
        while True:
            await asyncio.sleep(STEP_S)
            while self.waiting and len(self.running) < RUN_AT_A_TIME:
                self.running.append(self.waiting.pop(0))
            if not self.running:
                continue
            self.step += 1
            if self.options.die_at and self.step >= self.options.die_at:
                print("RuntimeError: the fake engine broke", flush=True)
                sys.exit(7)
            self.decide()
            self.steps[self.mode] += 1
            self.tokens[self.mode] += len(self.running)
            for ids, wanted, done in list(self.running):
                ids.append((ids[0] + len(ids)) % 997)
                if len(ids) > wanted:
                    self.running = [entry for entry in self.running if entry[2] is not done]
                    done.set()

    def decide(self) -> None:
        waiting = len(self.waiting)
        if self.mode == "speculate" and waiting >= ENTER and not self.options.never_switch:
            self.switch("target_only", "waiting_high")
        elif self.mode == "target_only" and waiting <= RESUME and not self.options.never_resume:
            self.switch("speculate", "load_low")

    def switch(self, target: str, reason: str) -> None:
        self.switches.append(
            {
                "step": self.step,
                "from": self.mode,
                "to": target,
                "reason": reason,
                "waiting": len(self.waiting),
                "running": len(self.running),
                "kv_use": 0.25,
            }
        )
        self.mode = target

    async def generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        seed = zlib.crc32(body["text"].encode()) % 997
        wrong = self.options.wrong_answer and seed % 5 == 0
        entry = ([seed], body["sampling_params"]["max_new_tokens"], asyncio.Event())
        self.waiting.append(entry)
        await entry[2].wait()
        ids = entry[0][1:]
        return web.json_response({"output_ids": [*ids[:-1], 0] if wrong else ids})

    async def info(self, _: web.Request) -> web.Response:
        state: dict[str, object] = {}
        if self.options.specswitch:
            state["specswitch"] = {
                "mode": self.mode,
                "reason": "steady",
                "step": self.step,
                "waiting": len(self.waiting),
                "running": len(self.running),
                "kv_use": 0.25,
                "steps": self.steps,
                "tokens": self.tokens,
                "switches": {"total": len(self.switches), "recent": self.switches[-64:]},
                "acceptance_length": 2.5 if self.steps["speculate"] else None,
            }
        return web.json_response({"internal_states": [state]})

    async def health(self, _: web.Request) -> web.Response:
        return web.Response(status=200)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--child-pid-file")
    parser.add_argument("--die-at", type=int)
    for flag in ("specswitch", "wrong-answer", "never-switch", "never-resume", "fail-to-start"):
        parser.add_argument(f"--{flag}", action="store_true")
    options = parser.parse_args()
    if options.fail_to_start:
        sys.exit("ValueError: the fake engine cannot start")
    if options.child_pid_file:
        # Stands for a scheduler process that is stuck: it must not outlive the demo either.
        child = subprocess.Popen([sys.executable, "-c", STUCK], stdout=subprocess.PIPE)
        child.stdout.readline()  # It ignores SIGTERM from here on.
        with open(options.child_pid_file, "a", encoding="utf-8") as file:
            file.write(f"{child.pid}\n")
    print("fake engine starts", flush=True)

    engine = Engine(options)
    app = web.Application()
    app.add_routes(
        [
            web.post("/generate", engine.generate),
            web.get("/server_info", engine.info),
            web.get("/health", engine.health),
        ]
    )

    async def start_loop(_: web.Application) -> None:
        engine.task = asyncio.create_task(engine.loop())

    app.on_startup.append(start_loop)
    web.run_app(app, host="127.0.0.1", port=options.port, print=None)


if __name__ == "__main__":
    main()
