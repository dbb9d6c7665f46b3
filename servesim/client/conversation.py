"""Sessions as a server sees them: each turn sends back what the server really answered to the turns before it.

So a server's prefix cache finds what it would find under real users: the tokens of its own answers. The length of a
turn is the whole prompt's, as in the simulator; its own words fill what the history leaves. What a chat template adds
for a turn is learned from the usage of the turns as they come. A turn whose history would be longer than its whole
prompt, or whose predecessor failed, starts from a text that stands in for the history.
"""

from __future__ import annotations

from dataclasses import dataclass

from servesim.client.flavour import Prompt
from servesim.client.prompts import SyntheticPrompts
from servesim.workload.workload import link_turns

Messages = list[dict[str, str]]


@dataclass(slots=True, frozen=True)
class _Turn:
    """What was sent: the messages, and the tokens they should be beside the template's (None: nothing to learn)."""

    messages: Messages
    known_tokens: float | None


class Conversations:
    """Prompts of requests that are turns of sessions; whoever drives them tells of every answer."""

    def __init__(self, prompts: SyntheticPrompts) -> None:
        _, self._following = link_turns(prompts.requests)
        self._later = {index for index in self._following if index >= 0}
        self._prompts = prompts
        self._history: dict[int, tuple[Messages, int]] = {}  # of a turn: what came before it, and its tokens
        self._sent: dict[int, _Turn] = {}
        self._turn_overhead = 0.0  # tokens that the template adds between two turns

    def waits(self, index: int) -> bool:
        """Return whether request `index` has a turn before it, whose answer its prompt needs."""
        return index in self._later

    def prompt(self, index: int) -> Prompt:
        """Return the prompt of request `index`: a text, or the messages of the conversation up to it."""
        messages, tokens = self._history.get(index, ([], 0))
        rate = self._prompts.rate
        room = self._prompts.requests.prompt_tokens[index] - tokens - self._turn_overhead
        words = round(room / rate.per_word)
        if not messages or words < 1:
            text = str(self._prompts.prompt(index))
            self._sent[index] = _Turn([_said("user", text)], None)
            return text
        asked = " ".join(self._prompts.own_words(index, words))
        turn = self._sent[index] = _Turn([*messages, _said("user", asked)], tokens + words * rate.per_word)
        return [dict(message) for message in turn.messages]

    def answered(self, index: int, text: str, prompt_tokens: int | None, output_tokens: int) -> None:
        """Take in the answer to request `index` with the tokens that the server counted; no text is no answer."""
        turn = self._sent.get(index)
        if turn is None or not text:
            return
        del self._sent[index]
        self._history.pop(index, None)
        if prompt_tokens is not None and turn.known_tokens is not None:
            self._turn_overhead = prompt_tokens - turn.known_tokens
        following = self._following[index]
        if following >= 0:
            whole = self._prompts.requests.prompt_tokens[index] if prompt_tokens is None else prompt_tokens
            self._history[following] = ([*turn.messages, _said("assistant", text)], whole + output_tokens)


def _said(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}
