"""Decides how text from an environment is shown, so that none of it becomes a special token of the policy's tokenizer.

This is the one documented substitution, and the only change made to what an environment sends: one space is put behind
the first character of every reserved text, so `<|im_end|>` is shown as `< |im_end|>`. Text that holds no reserved text
is not changed, but for half a surrogate pair, which JSON can carry and no tokenizer can read: it is shown as U+FFFD.

Flow: the caller reads `reserved_texts` off the tokenizer once → `Spelling` shows prompts, schemas and tool outputs →
`Spelling.restorer` turns what the policy copied from a schema back into what was published.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, count
from typing import Any, Final

_SPACE: Final = " "
_WORD_JOINER: Final = "\u2060"
_SURROGATES: Final = re.compile("[\ud800-\udfff]")
_REPLACEMENT: Final = "\ufffd"


def reserved_texts(processing_class: Any, chat_template: str | None = None) -> tuple[str, ...]:
    """Return the texts that a tokenizer reads as tokens with a meaning of their own.

    Those are its special tokens, and of its other added tokens those that a chat template itself writes and that are
    more than a word: the `<tool_call>` of Qwen3, but no HTML tag, run of spaces or `tool` that a tokenizer has added.
    Tokens of one character and tokens of whitespace are not among them.

    Args:
        processing_class: A tokenizer, or a processor that has one as `tokenizer`.
        chat_template: A template that is used besides, or instead of, those of the tokenizer and the processor.

    Returns:
        The texts without repetition, longest first, those of equal length in alphabetical order.
    """
    inner = getattr(processing_class, "tokenizer", None)
    tokenizer = inner if hasattr(inner, "added_tokens_decoder") else processing_class
    owners = (processing_class, tokenizer)
    templates = [
        chat_template or "",
        *chain.from_iterable(_strings(getattr(one, "chat_template", "")) for one in owners),
    ]
    texts = set(map(str, getattr(tokenizer, "all_special_tokens", None) or ()))
    for token in (getattr(tokenizer, "added_tokens_decoder", None) or {}).values():
        text = str(token.content)
        if token.special or (_is_markup(text) and any(text in template for template in templates)):
            texts.add(text)
    return _ordered(text for text in texts if text.strip())


class Spelling:
    """Shows what an environment sends with no reserved text in it.

    A space breaks every reserved text that occurs, for no substring that holds the new space can be reserved as long as
    no reserved text has a space in it. Where one has, and a text shown with spaces would still hold it, U+2060 (word
    joiner, invisible) is put in that text instead of spaces; should a reserved text have that too, the first
    character from U+E000 on that none has.

    Args:
        reserved: The texts that must not occur; those of one character or none are ignored, for nothing can be put
            inside them.

    Example:
        >>> Spelling(["<|im_end|>"]).text("the end: <|im_end|>")
        'the end: < |im_end|>'
    """

    def __init__(self, reserved: Iterable[str] = ()) -> None:
        self.reserved = _ordered(reserved)
        pattern = "|".join(map(re.escape, self.reserved)) or r"(?!)"
        self._anywhere = re.compile(pattern)
        # One character is consumed, so that reserved texts that overlap are all found.
        self._first_characters = re.compile(f"(?=(?:{pattern})).", re.DOTALL)
        letters = set().union(*self.reserved)
        self._fallback = next(mark for mark in chain(_WORD_JOINER, map(chr, count(0xE000))) if mark not in letters)

    def text(self, text: str) -> str:
        """Return a text as it is shown: itself if no reserved text occurs in it.

        What is returned holds no reserved text, so showing it again changes nothing.
        """
        if not text.isascii():
            text = _SURROGATES.sub(_REPLACEMENT, text)
        if not self._anywhere.search(text):
            return text
        shown = self._broken(text, _SPACE)
        return self._broken(text, self._fallback) if self._anywhere.search(shown) else shown

    def json(self, value: Any) -> Any:
        """Return a JSON value with every string shown, keys included.

        The order of keys is kept. Keys stay distinct: where a key would be shown as another one of its object is, it
        gets `_2`, `_3`, ... at its end.
        """
        return _rewritten(value, self.text, self.names)

    def names(self, published: Iterable[Any]) -> list[Any]:
        """Return distinct names, such as the keys of an object, as they are shown: distinct as well, in the same order.

        A name that is shown as it is keeps itself, wherever it stands among the others.
        """
        order = list(published)
        shown = {name: name for name in order if not isinstance(name, str) or self.text(name) == name}
        used = set(shown)
        numbers: dict[str, Iterator[int]] = {}
        for name in order:
            if name not in shown:
                candidate = plain = self.text(name)
                while candidate in used:
                    candidate = self.text(f"{name}_{next(numbers.setdefault(plain, count(2)))}")
                shown[name] = candidate
                used.add(candidate)
        return [shown[name] for name in order]

    def restorer(self, published: Any) -> Restorer:
        """Return the way back for the strings of a published JSON value, such as a tool's schema.

        Args:
            published: The value as the environment sent it.
        """
        strings = dict.fromkeys(_strings(published))
        pairs = [(self.text(string), string) for string in strings]
        pairs += [pair for keys in _objects(published) for pair in zip(self.names(keys), keys, strict=True)]
        # The first of several wins; a shown form that was published as it is stands for itself.
        return Restorer({shown: string for shown, string in reversed(pairs) if shown not in strings})

    def _broken(self, text: str, mark: str) -> str:
        return self._first_characters.sub(lambda found: found[0] + mark, text)


class Restorer:
    """Turns shown strings that the policy wrote back into what the environment published.

    Args:
        published: From the shown to the published string, those that differ.
    """

    def __init__(self, published: Mapping[str, str]) -> None:
        self._published = dict(published)

    def __call__(self, arguments: Any) -> Any:
        """Return a JSON value whose keys and strings are published ones again.

        Only a key or a string that is, as a whole, the shown form of a published one changes. A key stays as it is
        where the object already has the published one.
        """
        return _rewritten(arguments, self._restored, self._restored_keys) if self._published else arguments

    def _restored(self, text: str) -> str:
        return self._published.get(text, text)

    def _restored_keys(self, keys: Iterable[Any]) -> list[Any]:
        order = list(keys)
        used = set(order)
        restored = []
        for key in order:
            name = self._published.get(key, key)
            restored.append(key if name in used else name)
            used.add(name)
        return restored


def _ordered(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({text for text in texts if len(text) > 1}, key=lambda text: (-len(text), text)))


def _is_markup(text: str) -> bool:
    return any(not (character.isalnum() or character.isspace() or character == "_") for character in text)


def _rewritten(value: Any, text: Callable[[str], str], keys: Callable[[Iterable[Any]], list[Any]]) -> Any:
    """Copy a JSON value with its strings and keys replaced; a loop, for JSON may nest deeper than calls can."""
    root = [value]
    todo: list[tuple[Any, Any]] = [(root, 0)]
    while todo:
        container, place = todo.pop()
        item = container[place]
        if isinstance(item, str):
            container[place] = text(item)
        elif isinstance(item, Mapping):
            container[place] = copy = dict(zip(keys(item), item.values(), strict=True))
            todo.extend((copy, key) for key in copy)
        elif isinstance(item, list | tuple):
            container[place] = items = list(item)
            todo.extend((items, index) for index in range(len(items)))
    return root[0]


def _values(value: Any) -> Iterator[Any]:
    """Yield a JSON value and all values in it, in no order that matters."""
    todo = [value]
    while todo:
        item = todo.pop()
        yield item
        if isinstance(item, Mapping):
            todo.extend(item.values())
        elif isinstance(item, list | tuple):
            todo.extend(item)


def _objects(value: Any) -> Iterator[list[Any]]:
    return (list(item) for item in _values(value) if isinstance(item, Mapping))


def _strings(value: Any) -> Iterator[str]:
    """Yield every string of a JSON value, keys included."""
    for item in _values(value):
        found = item if isinstance(item, Mapping) else (item,)
        yield from (string for string in found if isinstance(string, str))
