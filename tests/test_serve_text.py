"""The pretended tokenizer and the pretended answers: what their documentation promises."""

from __future__ import annotations

import random
import unittest

from servesim.client.prompts import WORDS
from servesim.serve.tokenizer import SENTENCES, TOKENS, PretendedText, Tokenizer, chat_tokens, cut

ALPHABET = "aB7_é漢 \n\t.,!?-'\"(){}🙂\u0301"


def random_text(draw: random.Random) -> str:
    return "".join(draw.choice(ALPHABET) for _ in range(draw.randint(0, 40)))


class TheTokenizer(unittest.TestCase):
    def setUp(self) -> None:
        self.encode = Tokenizer().encode

    def test_tokens_together_are_the_text(self) -> None:
        for seed in range(500):
            text = random_text(random.Random(seed))
            self.assertEqual("".join(cut(text)), text)
            self.assertTrue(all(1 <= len(token) <= 9 for token in cut(text)))

    def test_what_is_put_behind_a_text_changes_at_most_its_last_token(self) -> None:
        for seed in range(2000):
            draw = random.Random(seed)
            head, tail = random_text(draw), random_text(draw)
            whole, alone = self.encode(head + tail), self.encode(head)
            self.assertEqual(whole[: max(0, len(alone) - 1)], alone[:-1])

    def test_a_text_that_does_not_go_on_with_the_last_word_leaves_every_token_alone(self) -> None:
        for seed in range(500):
            draw = random.Random(seed)
            head = random_text(draw).rstrip() + "word"
            for tail in (" more", "\nmore", ". More"):
                self.assertEqual(self.encode(head + tail)[: len(self.encode(head))], self.encode(head))

    def test_a_limit_is_a_prefix(self) -> None:
        text = "the quick brown fox jumps over the lazy dog " * 20
        self.assertEqual(self.encode(text, 17), self.encode(text)[:17])

    def test_the_words_of_the_load_generator_are_a_token_each(self) -> None:
        self.assertEqual(len(self.encode(" ".join(WORDS))), len(WORDS))

    def test_a_conversation_begins_with_the_tokens_of_the_one_before_and_its_answer(self) -> None:
        tokenizer = Tokenizer()
        for seed in range(50):
            draw = random.Random(seed)
            talk = [("system", random_text(draw)), ("user", random_text(draw))]
            speech = PretendedText(seed, bare=True)
            made = draw.randint(1, 60)
            asked = tokenizer.encode_chat(talk)
            following = tokenizer.encode_chat([*talk, ("assistant", speech.text(0, made)), ("user", "go on")])
            known = asked + speech.numbers(made)
            self.assertEqual(following[: len(known)], known)

    def test_a_conversation_has_as_many_texts_as_numbers(self) -> None:
        talk = [("system", "Be brief."), ("user", "Why?"), ("nobody", "x")]
        self.assertEqual(len(list(chat_tokens(talk))), len(Tokenizer().encode_chat(talk)))

    def test_lone_surrogates_are_numbered_too(self) -> None:
        self.assertEqual(len(self.encode("\ud800 x")), 2)


class Speeches(unittest.TestCase):
    def test_every_token_is_one_to_the_tokenizer(self) -> None:
        encode = Tokenizer().encode
        for start in range(len(SENTENCES)):
            for bare in (False, True):
                speech = PretendedText(start, bare=bare)
                self.assertEqual(encode(speech.text(0, 300)), speech.numbers(300))

    def test_tokens_one_by_one_are_the_text(self) -> None:
        for bare in (False, True):
            speech = PretendedText(3, bare=bare)
            self.assertEqual("".join(speech.text(n, n + 1) for n in range(200)), speech.text(0, 200))

    def test_a_stop_string_ends_it_where_a_reader_would_have_found_it(self) -> None:
        for seed in range(400):
            draw = random.Random(seed)
            speech = PretendedText(draw.randrange(99), bare=draw.random() < 0.5)
            full = [speech.token(number) for number in range(2 * len(TOKENS))]
            text = "".join(full)
            at = draw.randrange(len(text) // 2)
            stop = text[at : at + draw.randint(1, 12)]
            least, limit, include = draw.choice((0, 0, 30)), draw.randint(1, 300), draw.random() < 0.3
            speech.stop_at([stop], limit, least, include=include)
            known = len("".join(full[:least]))
            end, place = self.expected(full, stop, known, least, limit)
            with self.subTest(seed=seed):
                self.assertEqual(speech.end, end)
                if end is not None:
                    visible = text[: place + len(stop)] if include else text[:place]
                    self.assertEqual(speech.text(0, end), visible)
                    self.assertEqual("".join(speech.text(n, n + 1) for n in range(end)), visible)

    @staticmethod
    def expected(full: list[str], stop: str, known: int, least: int, limit: int) -> tuple[int | None, int]:
        for made in range(least + 1, limit + 1):
            text = "".join(full[:made])
            place = text.find(stop, max(0, known - len(stop) + 1))
            if place >= 0:
                return made, place
        return None, 0


if __name__ == "__main__":
    unittest.main()
