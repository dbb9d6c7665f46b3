"""Sessions send back what the server answered, at the asked lengths."""

from __future__ import annotations

import json
import unittest
from array import array

from servesim.client.prompts import SyntheticPrompts, TokenRate
from servesim.client.requests import Conversations
from servesim.workload.requests import Requests
from tests.command import servesim
from tests.truth_server import (
    DONE,
    FINISH,
    HEAD_OF_STREAM,
    LAST_CHUNK,
    Asked,
    Step,
    TruthServer,
    answer,
    chunk,
    content,
    event,
    usage,
)

BEGINNING, TURN = 10, 7  # tokens that the toy's template adds at the start, and for each turn after the first


def two_turns(second: int = 60) -> Requests:
    requests = Requests()
    requests.prompt_tokens, requests.output_tokens = array("q", [30, second]), array("q", [5, 5])
    requests.sessions, requests.turns = ["s", "s"], array("q", [1, 2])
    return requests


def conversations(requests: Requests) -> Conversations:
    return Conversations(SyntheticPrompts(requests, TokenRate(overhead=BEGINNING), salt="s"))


class ConversationsTest(unittest.TestCase):
    def test_a_turn_holds_the_earlier_ones_with_the_servers_answer_and_fills_up_to_its_length(self) -> None:
        talk = conversations(two_turns())
        first = talk.prompt(0)
        self.assertEqual(len(str(first).split()), 20)
        self.assertEqual([talk.waits(index) for index in (0, 1)], [False, True])
        talk.answered(0, "so be it", 30, 5)
        user, assistant, asked = talk.prompt(1)
        self.assertEqual((user["content"], assistant), (first, {"role": "assistant", "content": "so be it"}))
        self.assertEqual(len(asked["content"].split()), 60 - 30 - 5)

    def test_what_a_template_adds_for_a_turn_is_learned(self) -> None:
        requests = two_turns()
        for name in ("prompt_tokens", "output_tokens", "turns"):
            getattr(requests, name).extend(getattr(requests, name))
        requests.sessions = ["s", "s", "t", "t"]
        talk = conversations(requests)
        for first in (0, 2):
            talk.prompt(first)
            talk.answered(first, "yes", 30, 5)
        self.assertEqual(len(talk.prompt(1)[2]["content"].split()), 25)
        talk.answered(1, "no", 60 + TURN, 5)
        self.assertEqual(len(talk.prompt(3)[2]["content"].split()), 25 - TURN)

    def test_without_an_answer_or_without_room_a_text_stands_in(self) -> None:
        for requests, text in ((two_turns(), ""), (two_turns(second=33), "so be it")):
            talk = conversations(requests)
            talk.prompt(0)
            talk.answered(0, text, 30, 5)
            self.assertEqual(len(str(talk.prompt(1)).split()), requests.prompt_tokens[1] - BEGINNING)

    def test_a_turn_that_is_sent_again_says_the_same(self) -> None:
        talk = conversations(two_turns())
        talk.prompt(0)
        talk.answered(0, "so be it", 30, 5)
        once = talk.prompt(1)
        talk.answered(1, "", None, 0)
        self.assertEqual(talk.prompt(1), once)


class SessionsTest(unittest.TestCase):
    def setUp(self) -> None:
        self.posts: list[Asked] = []

    def script(self, asked: Asked) -> list[Step]:
        """Answer with a text that names the request, and count words as tokens."""
        if asked.line.startswith("GET"):
            return [Step(0.0, answer("404 Not Found", b"{}"))]
        self.posts.append(asked)
        messages = asked.json()["messages"]
        words = sum(len(message["content"].split()) for message in messages)
        prompt = BEGINNING + words + TURN * (len(messages) // 2)
        tokens = [f"answer{asked.number}x{number} " for number in range(asked.json()["max_tokens"])]
        events = (
            b"".join(map(event, [*map(content, tokens)])) + event(FINISH) + event(usage(len(tokens), prompt)) + DONE
        )
        return [Step(0.001, HEAD_OF_STREAM + chunk(events) + LAST_CHUNK)]

    def test_a_session_is_a_conversation_with_the_server(self) -> None:
        load = ("--requests", "12", "--turns", "3", "--concurrency", "2", "--prompt-tokens", "40", "--max-tokens", "4")
        for more in ((), ("--processes", "2")):
            self.posts.clear()
            with self.subTest(more), TruthServer(self.script) as server:
                said = servesim("loadgen", "--url", server.url, *load, *more, "--warmup", "2", "--json", "--quiet")
                self.assertEqual(said.code, 0, said)
                posts = self.posts[2:]
                bodies = [asked.json()["messages"] for asked in posts]
                self.assertEqual(sorted(map(len, bodies)), [1] * 4 + [3] * 4 + [5] * 4)
                for messages in bodies:
                    for question, reply in zip(messages[0:-1:2], messages[1::2], strict=True):
                        asked = next(post for post in posts if post.json()["messages"][-1] == question)
                        self.assertEqual(reply["role"], "assistant")
                        self.assertEqual(reply["content"].split()[0], f"answer{asked.number}x0")
                accuracy = json.loads(said.out)["prompt_accuracy"]
                self.assertLessEqual(accuracy["max_error_tokens"], TURN)  # of the first second turn: then it is known
                self.assertGreaterEqual(accuracy["within_tolerance"], 10 / 12)

    def test_a_character_that_a_server_cuts_in_two_comes_back_whole(self) -> None:
        def script(asked: Asked) -> list[Step]:
            if asked.line.startswith("GET"):
                return self.script(asked)
            self.posts.append(asked)
            halves = event(content("?").replace(b"?", rb"\ud83d")) + event(content("?").replace(b"?", rb"\ude00"))
            return [Step(0.0, HEAD_OF_STREAM + chunk(halves + event(FINISH) + DONE) + LAST_CHUNK)]

        load = ("--requests", "2", "--turns", "2", "--concurrency", "1", "--prompt-tokens", "40", "--max-tokens", "2")
        with TruthServer(script) as server:
            said = servesim("loadgen", "--url", server.url, "--model", "m", *load, "--warmup", "0", "--quiet")
        self.assertEqual(said.code, 0, said)
        self.assertEqual(self.posts[-1].json()["messages"][1]["content"], "\N{GRINNING FACE}")


if __name__ == "__main__":
    unittest.main()
