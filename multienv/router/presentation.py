"""Decides how what an environment sends is shown to the policy: what stays as it is, what is left out, what is spelled.

Flow: `MultiEnvSpec.present_to` says who reads; the adapters show prompts and results through it.
"""

from __future__ import annotations

import base64
import io
import json
import logging
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias

from multienv.errors import SpecError
from multienv.router.spelling import Spelling
from multienv.router.toolbox import Toolbox
from multienv.types import Image, JSONObject, Message, Parts, ToolSpec

logger = logging.getLogger(__name__)

Content: TypeAlias = str | list[JSONObject]
"""The content of a chat message: a text, or content blocks where there are pictures."""

_MOST_TOOLBOXES: Final = 256
_ROLES_WITH_PICTURES: Final = ("user", "tool")
"""Chat templates leave out pictures elsewhere, and processors then find more pictures than places for them."""
_FORMATS: Final = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
"""Formats of pictures that are read; no others, for Pillow starts other programs to read some."""
_MOST_RATIO: Final = 200
"""Longest side in shortest sides; the processors of Qwen's vision models end the run above it."""
_LEAST_SIDE: Final = 4
"""Fewest pixels of a side; transformers takes a height of 1 or 3 pixels for the colours."""


class Presentation:
    """How environments are shown to one policy. Shared by the environments of a mixture; survives pickling.

    Args:
        reserved: Strings of the policy's tokenizer that no environment may write; see `Spelling`.
        has_images: True for a policy that sees pictures.

    Attributes:
        processing_class: The policy's tokenizer or processor, in the process that named it; else None.
        chat_template: The template used instead of its own, in that process; else None.
    """

    processing_class: Any = None
    chat_template: str | None = None

    def __init__(self, reserved: Iterable[str] = (), *, has_images: bool = False) -> None:
        self._warned: set[str] = set()
        self.show_to(reserved, has_images=has_images)

    def show_to(self, reserved: Iterable[str], *, has_images: bool) -> None:
        """Change who reads; what was made for another reader is made anew."""
        self.reserved = tuple(reserved)
        self.spelling = Spelling(self.reserved)
        self.has_images = has_images
        self._toolboxes: dict[str, Toolbox] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Keep who reads; the rest is made anew."""
        return {"reserved": self.reserved, "has_images": self.has_images}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Start anew."""
        self.__init__(state["reserved"], has_images=state["has_images"])  # type: ignore[misc]  # of this very class

    def toolbox(self, tools: Sequence[ToolSpec]) -> Toolbox:
        """Return the toolbox for a set of tools; the same one for the same tools."""
        key = json.dumps([[tool.name, tool.description, tool.input_schema] for tool in tools])
        if key not in self._toolboxes:
            if len(self._toolboxes) >= _MOST_TOOLBOXES:
                self._toolboxes.pop(next(iter(self._toolboxes)))
            self._toolboxes[key] = Toolbox(tools, self.spelling)
        return self._toolboxes[key]

    def message(self, environment: str, message: Message) -> JSONObject:
        """Return a prompt's message as chat templates take it."""
        parts = message.parts
        if self.has_images and message.role not in _ROLES_WITH_PICTURES and not all(isinstance(p, str) for p in parts):
            self._warn(environment, f"shows pictures in a message of role {message.role!r}, where no policy sees any")
            parts = tuple(part if isinstance(part, str) else _left_out(part) for part in parts)
        shown: JSONObject = {
            "role": self.spelling.text(message.role),
            "content": self.content(environment, parts),
        }
        if message.reasoning:
            shown["reasoning_content"] = self.spelling.text(message.reasoning)
        if message.tool_calls:
            shown["tool_calls"] = [
                {"type": "function", "function": self.spelling.json({"name": name, "arguments": arguments})}
                for name, arguments in message.tool_calls
            ]
        if message.role == "tool":
            shown["name"] = self.spelling.text(message.tool)
        return shown

    def check_conversation(self, messages: Sequence[JSONObject], functions: Sequence[JSONObject]) -> None:
        """Render a conversation once, where the policy's template is known; many templates refuse some of them.

        Args:
            messages: The conversation, as `message` made it.
            functions: The tools that are shown beside it.

        Raises:
            Exception: Whatever the template raises, such as that roles must alternate.
        """
        if self.processing_class is None:
            return
        if self.has_images:  # TRL gives content blocks to processors, whose templates may read nothing else
            messages = [{**message, "content": _as_blocks(message["content"])} for message in messages]
        self.processing_class.apply_chat_template(
            list(messages),
            tools=list(functions) or None,
            tokenize=False,
            add_generation_prompt=True,
            chat_template=self.chat_template,
        )

    def content(self, environment: str, parts: Parts, max_chars: int | None = None) -> Content:
        """Return content blocks as the policy takes them.

        Args:
            environment: Whose they are, for the one warning about pictures that are left out.
            parts: The blocks as published.
            max_chars: Most characters of a text that are shown; None for no limit.

        Returns:
            A text, joined by newlines, with a placeholder for each picture the policy cannot see; content blocks where
            it can: `{"type": "text", "text": ...}` and `{"type": "image", "image": PIL.Image.Image}`.
        """
        shown = [part if isinstance(part, str) else self._image(environment, part) for part in parts]
        blocks: list[JSONObject] = []
        texts: list[str] = []

        def end_text() -> None:
            if texts:
                text = shortened(self.spelling.text("\n".join(texts)), max_chars)
                blocks.append({"type": "text", "text": text})
                texts.clear()

        for part in shown:
            if isinstance(part, str):
                texts.append(part)
            else:
                end_text()
                blocks.append({"type": "image", "image": part})
        end_text()
        if any(block["type"] == "image" for block in blocks):
            return blocks
        return str(blocks[0]["text"]) if blocks else ""

    def _image(self, environment: str, image: Image) -> Any:
        """Return a picture, or what stands for it."""
        if not self.has_images:
            self._warn(environment, "shows pictures, and this policy reads text only; a placeholder stands for each")
            return _left_out(image)
        try:
            return _decoded(image)
        except ImportError:
            self._warn(
                environment, "shows pictures, and Pillow, which reads them, is missing: install multienv[vision]"
            )
        except Exception as error:  # noqa: BLE001 - whatever a decoder makes of a stranger's bytes
            self._warn(environment, f"sent a picture that cannot be read, and a placeholder stands for it: {error!r}")
        return f"[image left out: {image.mime_type}, unreadable]"

    def _warn(self, environment: str, what: str) -> None:
        if environment not in self._warned:
            self._warned.add(environment)
            logger.warning("environment %r %s", environment, what)


def _as_blocks(content: Content) -> list[JSONObject]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _left_out(image: Image) -> str:
    return f"[image left out: {image.mime_type}, {image.num_bytes} bytes]"


def _decoded(image: Image) -> Any:
    """Return a picture in RGB, upright, on white where it is transparent, at least `_LEAST_SIDE` pixels each way.

    Raises:
        Exception: Whatever Pillow raises; `ValueError` for a picture too long for its width.
    """
    from PIL import Image as pillow  # noqa: N813, PLC0415 - a module of functions; only vision models need it
    from PIL import ImageOps  # noqa: PLC0415 - see above

    file = io.BytesIO(base64.b64decode("".join(image.data.split()), validate=True))
    with warnings.catch_warnings():  # of the whole process, therefore around no more than this
        warnings.simplefilter("error", pillow.DecompressionBombWarning)
        opened: Any = pillow.open(file, formats=_FORMATS)
    if max(opened.size) > _MOST_RATIO * min(opened.size):
        raise ValueError(f"{opened.size[0]} x {opened.size[1]} pixels is too long for its width")
    if opened.mode.startswith("I;16"):  # which `convert` takes for white from 256 on
        opened = opened.point(lambda value: value / 256).convert("L")
    upright = ImageOps.exif_transpose(opened)
    if upright.has_transparency_data:
        layer = upright.convert("RGBA")
        upright = pillow.new("RGBA", layer.size, "white")
        upright.alpha_composite(layer)
    shown = upright.convert("RGB")
    factor = -(-_LEAST_SIDE // min(shown.size))
    return shown if factor == 1 else shown.resize((shown.width * factor, shown.height * factor), pillow.Resampling.BOX)


def check_policy(processing_class: Any) -> None:
    """Check that something renders a policy's prompts.

    Raises:
        SpecError: It is no tokenizer and no processor, such as the name of one.
    """
    if not hasattr(processing_class, "apply_chat_template"):
        shown = repr(processing_class) if isinstance(processing_class, str) else type(processing_class).__name__
        raise SpecError(
            f"present_to got {shown}, which has no apply_chat_template; accepted: the policy's tokenizer or "
            "processor. Load it first, as in spec.present_to(AutoTokenizer.from_pretrained('Qwen/Qwen3-4B'))"
        )


def shortened(text: str, max_chars: int | None) -> str:
    r"""Return a text of at most so many characters: head and tail, and between them how much is missing.

    Example:
        >>> print(shortened("0123456789" * 100, 60))
        012345678901
        [... 976 characters left out ...]
        890123456789
    """
    if max_chars is None or len(text) <= max_chars:
        return text
    mark = f"\n[... {len(text)} characters left out ...]\n"  # as long as it can get
    kept = max_chars - len(mark)
    head, tail = text[: (kept + 1) // 2], text[len(text) - kept // 2 :]
    return f"{head}\n[... {len(text) - len(head) - len(tail)} characters left out ...]\n{tail}"


def text_of(content: Content) -> str:
    """Return a message's content as a text, with `[image]` for each picture."""
    if isinstance(content, str):
        return content
    return "\n".join(str(block["text"]) if block["type"] == "text" else "[image]" for block in content)
