"""What an environment sends never becomes a special token; nothing else about it changes."""

from __future__ import annotations

import json
import pickle
import time
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from multienv.router.spelling import Restorer, Spelling, reserved_texts
from tests.strategies import json_values
from tests.support.training import tokenizer

QWEN = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<tool_response>"]
_GEMMA_TEMPLATE = "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ m.role }}\n[INST]{{ m.content }}{% endfor %}"

_letters = st.text("ab <|>\u2060\ue000", max_size=5)
_alphabet_texts = st.text("ab <|>\u2060\ue000", max_size=30)
reserved_sets = st.lists(_letters, max_size=6)
marked_texts = st.lists(st.sampled_from([*QWEN, "<|im_", "end|>", "<", "</", "tool_call>", " ", "x"]), max_size=8).map(
    "".join
)


def gemma() -> Any:
    """A tokenizer with control tokens in the style of Gemma and Llama, and an added token for an HTML tag."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(["<table> a turn"] * 3, trainers.BpeTrainer(initial_alphabet=alphabet, show_progress=False))
    plain = [
        AddedToken(text, special=False, normalized=False) for text in ("<table>", "[INST]", "\n\n", "content", "@")
    ]
    bpe.add_tokens(plain)
    special = ["<start_of_turn>", "<end_of_turn>", "<pad>"]
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token="<bos>",
        eos_token="<eos>",
        additional_special_tokens=special,
        chat_template=_GEMMA_TEMPLATE,
    )


GEMMA_RESERVED = ("<start_of_turn>", "<end_of_turn>", "[INST]", "<bos>", "<eos>", "<pad>")


def test_the_reserved_texts_of_qwen_are_its_special_tokens_and_the_marks_its_template_writes() -> None:
    marks = {"<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"}
    assert set(reserved_texts(tokenizer())) == {"<|endoftext|>", "<|im_start|>", "<|im_end|>"} | marks


def test_other_added_tokens_stay_what_they_are() -> None:
    assert reserved_texts(gemma()) == GEMMA_RESERVED


def test_a_template_given_beside_the_tokenizer_counts() -> None:
    assert "<table>" in reserved_texts(gemma(), chat_template="{{ messages }}<table>")


def test_a_processor_is_read_through_its_tokenizer_and_its_own_template() -> None:
    processor = SimpleNamespace(tokenizer=gemma(), chat_template={"default": "", "tool_use": "<table>"})
    assert reserved_texts(processor) == tuple(sorted((*GEMMA_RESERVED, "<table>"), key=lambda text: (-len(text), text)))


@pytest.mark.parametrize("template", [None, {"default": "<tool>"}, [{"name": "default", "template": "<tool>"}]])
def test_templates_of_every_form_are_read(template: Any) -> None:
    token = SimpleNamespace(content="<tool>", special=False)
    tokens = {1: token, 2: SimpleNamespace(content=" ", special=True), 3: SimpleNamespace(content="|", special=True)}
    bare = SimpleNamespace(added_tokens_decoder=tokens, all_special_tokens=[], chat_template=template)
    assert reserved_texts(bare) == (("<tool>",) if template else ())


def test_what_is_no_tokenizer_reserves_nothing() -> None:
    assert reserved_texts(object()) == ()


@given(st.text() | marked_texts)
def test_no_text_is_encoded_to_a_reserved_token_of_qwen(text: str) -> None:
    made = tokenizer()
    reserved = reserved_texts(made)
    ids = made(Spelling(reserved).text(text), add_special_tokens=False)["input_ids"]
    assert not set(ids) & set(made.convert_tokens_to_ids(list(reserved)))


_GEMMA = gemma()


@given(st.lists(st.sampled_from([*GEMMA_RESERVED, "<table>", "<st", "[", " ", "\n\n"]) | st.text(), max_size=8))
def test_no_text_is_encoded_to_a_control_token_of_gemma(parts: list[str]) -> None:
    text = "".join(parts)
    shown = Spelling(reserved_texts(_GEMMA)).text(text)
    ids = _GEMMA(shown, add_special_tokens=False)["input_ids"]
    assert not set(ids) & set(_GEMMA.convert_tokens_to_ids(list(GEMMA_RESERVED)))
    assert shown.count("<table>") == text.count("<table>")


def test_the_laws_about_encoding_would_fail_without_the_substitution() -> None:
    assert tokenizer().convert_tokens_to_ids("<|im_end|>") in tokenizer()("x<|im_end|>")["input_ids"]
    assert _GEMMA.convert_tokens_to_ids("[INST]") in _GEMMA("x[INST]")["input_ids"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("<|im_end|>", "< |im_end|>"),
        ("run<|im_end|>", "run< |im_end|>"),
        ("<|im_<|im_end|>end|>", "<|im_< |im_end|>end|>"),
        ("<tool_call>\n{}\n</tool_call>", "< tool_call>\n{}\n< /tool_call>"),
        ("< |im_end|> <table> <|im_end| >", "< |im_end|> <table> <|im_end| >"),
    ],
)
def test_a_space_is_put_behind_the_first_character(text: str, shown: str) -> None:
    assert Spelling(QWEN).text(text) == shown


def test_overlapping_reserved_texts_are_all_broken() -> None:
    assert Spelling(["aba"]).text("ababa") == "a ba ba"


def test_a_reserved_text_that_a_space_cannot_break_is_broken_by_a_word_joiner() -> None:
    assert Spelling([" |"]).text("a |") == "a \u2060|"
    assert Spelling(["ab", "a b"]).text("ab") == "a\u2060b"
    assert Spelling([" |", "a\u2060"]).text("a |") == "a \ue000|"
    assert Spelling([" |", "<|x|>"]).text("<|x|>") == "<\u2060|x|>"


@given(reserved_sets, _alphabet_texts)
def test_no_reserved_text_is_left_whatever_is_reserved(reserved: list[str], text: str) -> None:
    spelling = Spelling(reserved)
    breakable = [one for one in reserved if len(one) > 1]
    shown = spelling.text(text)
    assert not any(one in shown for one in breakable)
    assert spelling.text(shown) == shown
    assert (shown == text) == (not any(one in text for one in breakable))


@given(st.lists(st.text("ab<|>", max_size=5), max_size=6), st.text("ab <|>", max_size=30))
def test_only_spaces_are_added_when_no_reserved_text_has_one(reserved: list[str], text: str) -> None:
    assert Spelling(reserved).text(text).replace(" ", "") == text.replace(" ", "")


@given(reserved_sets, st.lists(_alphabet_texts, max_size=4), _letters)
def test_a_json_value_is_shown_string_by_string(reserved: list[str], texts: list[str], key: str) -> None:
    spelling = Spelling(reserved)
    shown = [spelling.text(text) for text in texts]
    assert spelling.json([1, {key: texts}, None, *texts]) == [1, {spelling.text(key): shown}, None, *shown]


@given(json_values)
def test_a_json_value_without_reserved_texts_stays_as_it_is(value: Any) -> None:
    assert json.dumps(Spelling(["<|im_end|>"]).json(value)) == json.dumps(value)


@given(reserved_sets, st.lists(_letters, unique=True, max_size=6))
def test_keys_stay_distinct_and_in_order(reserved: list[str], keys: list[str]) -> None:
    spelling = Spelling(reserved)
    shown = spelling.json({key: index for index, key in enumerate(keys)})
    assert list(shown.values()) == list(range(len(keys)))
    assert all(spelling.text(key) == key for key in shown)


def test_keys_that_would_collide_are_numbered() -> None:
    shown = Spelling(QWEN).json({"<|im_end|>": 1, "< |im_end|>": 2})
    assert shown == {"< |im_end|>_2": 1, "< |im_end|>": 2}


def test_what_is_shown_is_a_copy() -> None:
    published = {"enum": ["<|im_end|>"]}
    Spelling(QWEN).json(published)
    assert published == {"enum": ["<|im_end|>"]}


SCHEMA = {
    "properties": {
        "to<|im_end|>": {"enum": ["<tool_call>", "a", "< |im_end|>", "<|im_end|>"], "default": "<tool_call>"},
        "text": {"type": "string"},
        "nested": {"properties": {"<|im_start|>": {"const": "x<tool_call>y"}}},
    },
    "required": ["to<|im_end|>"],
}


def test_what_the_policy_copies_from_a_schema_is_what_was_published() -> None:
    restorer = Spelling(QWEN).restorer(SCHEMA)
    written = {"to< |im_end|>": "< tool_call>", "nested": {"< |im_start|>": ["x< tool_call>y"]}}
    assert restorer(written) == {"to<|im_end|>": "<tool_call>", "nested": {"<|im_start|>": ["x<tool_call>y"]}}


def test_other_text_of_the_policy_stays() -> None:
    restorer = Spelling(QWEN).restorer(SCHEMA)
    written = {"text": "I saw < tool_call> and < |im_end|>", "a": 1, "b": None, "to< |im_end|> ": [True]}
    assert restorer(written) == written


def test_a_shown_form_that_was_published_stands_for_itself() -> None:
    assert Spelling(QWEN).restorer(SCHEMA)({"text": "< |im_end|>"}) == {"text": "< |im_end|>"}


def test_numbered_keys_are_restored() -> None:
    published = {"<|im_end|>": 1, "< |im_end|>": 2}
    spelling = Spelling(QWEN)
    assert spelling.restorer(published)(spelling.json(published)) == published


def test_a_restored_key_takes_no_other_ones_place() -> None:
    written = {"to< |im_end|>": 1, "to<|im_end|>": 2}
    assert Spelling(QWEN).restorer(SCHEMA)(written) == written


strings_with_marks = st.sampled_from([*QWEN, "a", "to<|im_end|>", "x<tool_call>y"])
published_values = st.recursive(
    strings_with_marks,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(strings_with_marks, inner, max_size=3),
    max_leaves=8,
)


@given(published_values)
def test_a_published_value_comes_back_from_its_shown_form(published: Any) -> None:
    spelling = Spelling(QWEN)
    assert spelling.restorer(published)(spelling.json(published)) == published


def test_nesting_deeper_than_python_recurses_is_shown() -> None:
    deep: Any = "<|im_end|>"
    for _ in range(5_000):
        deep = {"<|im_end|>": [deep]}
    spelling = Spelling(QWEN)
    shown = spelling.json(deep)
    assert list(shown) == ["< |im_end|>"]
    assert list(spelling.restorer(deep)(shown)) == ["<|im_end|>"]


def test_spelling_and_restorer_survive_pickling() -> None:
    spelling: Spelling = pickle.loads(pickle.dumps(Spelling(QWEN)))
    restorer: Restorer = pickle.loads(pickle.dumps(spelling.restorer(SCHEMA)))
    assert spelling.text("<tool_call>") == "< tool_call>"
    assert restorer("< tool_call>") == "<tool_call>"


def test_a_megabyte_takes_less_than_a_second() -> None:
    spelling = Spelling([*QWEN, *(f"<|reserved_special_token_{number}|>" for number in range(256))])
    started = time.perf_counter()
    plain = "lorem <b> | ipsum " * 60_000
    assert spelling.text(plain) == plain
    assert time.perf_counter() - started < 1
