"""Reading an answer: the template's shortcut finds what the parser finds, and the later count wins."""

from __future__ import annotations

import json
import random
import unittest

from servesim.client.reading import PartialAnswer
from servesim.wire.events import read_event
from servesim.wire.sse import Event
from tests.extent import seeds
from tests.truth_server import FINISH, ROLE, content, usage


def read_plainly(events: list[Event], reader: str) -> tuple[list[float], int]:
    """Return the stamps of token events and the number of the first visible one, by parsing every event."""
    stamps, visible = [], -1
    for event in events:
        fact = read_event(event.data, reader, event.name)
        if fact.is_token:
            if visible < 0 and fact.is_visible:
                visible = len(stamps)
            stamps.append(event.stamp)
    return stamps, visible


TEXTS = ("a", "", " the", 'say "no"', "back\\slash", "中", "tab\t", "e\u0301", "{", '","content":"x', "\x7f", "a\x01")


def random_event(rng: random.Random, reader: str) -> bytes:
    text = rng.choice(TEXTS)
    kind = rng.random()
    common = {"id": "one", "created": 1}
    if reader == "completions":
        value = {**common, "choices": [{"index": 0, "text": text}]}
    elif reader == "ollama":
        value = {"message": {"role": "assistant", "content": text}, "done": kind < 0.05}
    elif reader == "llamacpp":
        value = {"content": text, "stop": kind < 0.05}
    else:
        name = "content" if kind < 0.8 else "reasoning_content"
        value = {**common, "choices": [{"index": 0, "delta": {name: text}, "finish_reason": None}]}
        if kind > 0.95:
            value["usage"] = {"completion_tokens": rng.randint(0, 9)}
        if 0.9 < kind < 0.93:
            value["choices"].append({"index": 1, "delta": {"content": "other"}})
    separators = (",", ":") if rng.random() < 0.9 else (", ", ": ")
    return json.dumps(value, separators=separators, ensure_ascii=rng.random() < 0.3).encode()


class AnswerTest(unittest.TestCase):
    def test_the_shortcut_finds_exactly_what_the_parser_finds(self) -> None:
        for seed in seeds(150):
            rng = random.Random(seed)
            reader = rng.choice(("chat", "completions", "ollama", "llamacpp"))
            events = [Event(float(k), random_event(rng, reader)) for k in range(60)]
            with self.subTest(seed=seed, reader=reader):
                answer = PartialAnswer()
                answer.read(events, reader)
                self.assertEqual((list(answer.stamps), answer.visible), read_plainly(events, reader))

    def test_an_event_typed_error_is_read_as_one(self) -> None:
        answer = PartialAnswer()
        answer.read([Event(1.0, content("a")), Event(2.0, content("b"), "error")], "chat")
        self.assertIsNotNone(answer.error)

    def test_the_last_count_wins_and_a_missing_one_does_not_unsay_it(self) -> None:
        answer = PartialAnswer()
        texts = [ROLE, content("a"), usage(3), FINISH, b'{"usage": {"completion_tokens": 4}}', b'{"usage": null}']
        answer.read([Event(float(k), text) for k, text in enumerate(texts)], "chat")
        self.assertEqual((answer.usage.prompt_tokens, answer.usage.output_tokens), (5, 4))
        self.assertEqual(answer.finish_reason, "stop")
        self.assertTrue(answer.ended)


if __name__ == "__main__":
    unittest.main()
