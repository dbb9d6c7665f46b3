"""The official `openai` client against `serve`: installed in a virtual environment of its own, skipped without it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import unittest
import venv
from pathlib import Path

from tests.extent import in_full
from tests.serve_case import LiveServer, eventually

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".cache" / "openai-client"
PACKAGE = "openai==2.8.1"
SCRIPT = r"""
import json, sys
import openai
from openai import OpenAI

url, model = sys.argv[1:]
client = OpenAI(base_url=url + "/v1", api_key="any", max_retries=0, timeout=300)
told = {"models": [each.id for each in client.models.list()]}
messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
chat = client.chat.completions.create(model=model, messages=messages, max_tokens=7)
told["chat"] = [chat.choices[0].message.content, chat.choices[0].finish_reason, chat.usage.completion_tokens]
stream = client.chat.completions.create(
    model=model, messages=messages, max_completion_tokens=9, stream=True, stream_options={"include_usage": True}, n=2
)
texts, usage = ["", ""], None
for chunk in stream:
    for choice in chunk.choices:
        texts[choice.index] += choice.delta.content or ""
    usage = chunk.usage or usage
told["stream"] = [texts, usage.completion_tokens]
text = client.completions.create(model=model, prompt=["one", "two"], max_tokens=3)
told["completions"] = [choice.text for choice in text.choices]
told["completion_stream"] = "".join(
    chunk.choices[0].text for chunk in client.completions.create(model=model, prompt="one", max_tokens=4, stream=True)
)
told["errors"] = []
for call in (
    lambda: client.chat.completions.create(model="nope", messages=messages),
    lambda: client.chat.completions.create(model=model, messages=[]),
    lambda: client.completions.create(model=model, prompt=[1] * 5000),
):
    try:
        call()
    except openai.APIStatusError as error:
        told["errors"].append([type(error).__name__, error.status_code, str(error.body["message"])[:30]])
early = client.chat.completions.create(model=model, messages=messages, max_tokens=900, stream=True,
                                       extra_body={"ignore_eos": True})
next(iter(early))
early.close()
raw = client.chat.completions.with_raw_response.create(model=model, messages=messages, max_tokens=2)
told["raw"] = raw.headers["content-type"]
print(json.dumps(told))
"""


def client_python() -> Path | None:
    """Return the interpreter that has the client, installing it if there is no such thing yet; None without one."""
    python = HOME / "bin" / "python"
    stamp = HOME / "installed"
    if stamp.exists() and stamp.read_text() == PACKAGE:
        return python
    try:
        venv.create(HOME, with_pip=True, clear=True)
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", PACKAGE]
        subprocess.run(command, check=True, capture_output=True, timeout=600)
    except (OSError, subprocess.SubprocessError):
        return None
    stamp.write_text(PACKAGE)
    return python


@in_full
class OfficialClient(unittest.TestCase):
    def test_it_lists_asks_streams_and_fails_as_it_does_with_the_real_thing(self) -> None:
        python = client_python()
        if python is None:
            reason = f"{PACKAGE} cannot be installed here"
            print(f"{__name__} is skipped: {reason}", file=sys.stderr)
            self.skipTest(reason)
        with LiveServer({"max_model_len": 1024}, served_model_name="tiny", speed=20.0) as server:
            environ = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
            done = subprocess.run(
                [str(python), "-c", SCRIPT, server.url, "tiny"],
                check=False,
                capture_output=True,
                text=True,
                timeout=300,
                env=environ,
            )
            self.assertEqual(done.returncode, 0, done.stderr)
            told = json.loads(done.stdout)
            clock = server.app.clock
            eventually(self, lambda: clock.engine.pool.free, clock.config.num_blocks)
        self.assertEqual(told["models"], ["tiny"])
        self.assertEqual(told["chat"][1:], ["length", 7])
        self.assertEqual(told["stream"][1], 18)
        self.assertTrue(all(told["stream"][0]))
        self.assertEqual(len(told["completions"]), 2)
        self.assertTrue(told["completion_stream"])
        self.assertEqual(
            told["errors"],
            [
                ["NotFoundError", 404, "The model `nope` does not exis"],
                ["BadRequestError", 400, "Cannot apply chat template to "],
                ["BadRequestError", 400, "This model's maximum context l"],
            ],
        )
        self.assertEqual(told["raw"], "application/json")


if __name__ == "__main__":
    unittest.main()
