"""Decides how a server-sent event stream is read: as the standard says, white space included.

The SDK's reader strips all leading white space of every data line, and so damages long indented results.

Flow: `openreward` reads the answer of a tool call through `read_events`.

Source:
    WHATWG HTML, section 9.2.6, "Interpreting an event stream".
"""

from __future__ import annotations

import codecs
from collections.abc import AsyncIterator


async def read_events(chunks: AsyncIterator[bytes]) -> AsyncIterator[tuple[str, str]]:
    """Read the events of a stream.

    Args:
        chunks: The body, in pieces of any size.

    Yields:
        `(event, data)`; the data lines of one event are joined by newlines. An event without its closing blank line is
        not complete and is dropped.
    """
    event, data = "message", list[str]()
    async for line in _read_lines(chunks):
        if not line:
            if data:
                yield event, "\n".join(data)
            event, data = "message", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            event = value
        elif field == "data":
            data.append(value)


async def _read_lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    pending = list[str]()
    async for chunk in chunks:
        *lines, rest = decoder.decode(chunk).split("\n")
        for line in lines:
            yield ("".join(pending) + line).removesuffix("\r")
            pending.clear()
        pending.append(rest)
