"""Decides how an OpenAI-compatible endpoint is asked: which fields, under which names, and whose fault a refusal is.

Flow: `play` → `EndpointPolicy.reply` → the `openai` client → the endpoint.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from multienv.errors import AuthenticationError, MultiEnvError, ServerUnreachableError, SpecError, nearest
from multienv.evaluation.declaration import EvalSpec
from multienv.evaluation.policies import Call, PolicyFailedError, PromptTooLongError, Reply
from multienv.types import JSONObject

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_UNFIT: Final = re.compile(r"[^A-Za-z0-9_-]", re.ASCII)
_MOST_NAME: Final = 64
_TOO_LONG: Final = ("context_length", "context length", "maximum context", "max_model_len", "too many tokens")


class EndpointPolicy:
    """A model behind an OpenAI-compatible endpoint.

    Args:
        settings: The model's name, the endpoint and its key, and how it is sampled.

    Raises:
        SpecError: No model is named.
        MultiEnvError: The `openai` client is not installed, or finds no key.
    """

    def __init__(self, settings: EvalSpec) -> None:
        if settings.model is None:
            raise SpecError("evaluation: model is missing; give the model's name at the endpoint")
        try:
            import openai  # noqa: PLC0415 - an extra
        except ImportError:
            raise MultiEnvError(
                "an endpoint is asked with the openai client, which is not installed; install it with: "
                "pip install 'multienv[eval]'"
            ) from None
        self._openai = openai
        self._settings = settings
        self._has_answered = False
        key = settings.api_key.get_secret_value() if settings.api_key is not None else None
        if key is None and settings.base_url is not None:
            key = "none"  # an endpoint of one's own asks for no key, and the client does not do without
        try:
            self._client = openai.AsyncOpenAI(
                base_url=settings.base_url,
                api_key=key,
                timeout=settings.request_timeout_s,
                max_retries=settings.max_retries,
            )
            if settings.base_url is not None:  # what the account's variables say is none of another host's business
                self._client.organization = self._client.project = None
        except openai.OpenAIError:
            raise AuthenticationError(
                "evaluation: there is no key for the endpoint; set OPENAI_API_KEY, or say api_key: $NAME, or base_url: "
                "for an endpoint of your own"
            ) from None

    @property
    def name(self) -> str:
        """The model's name at the endpoint."""
        return str(self._settings.model)

    async def prepare(self) -> None:
        """Ask the endpoint for its models; one that cannot list them is asked for nothing yet.

        Raises:
            ServerUnreachableError: Nobody answers.
            AuthenticationError: It refuses the key.
            SpecError: It has no such model.
        """
        try:
            listed = [model.id async for model in self._client.models.list()]
        except (self._openai.AuthenticationError, self._openai.PermissionDeniedError) as error:
            raise self._refused_key(error) from None
        except self._openai.APIConnectionError:
            raise ServerUnreachableError(
                f"nobody answers at {self._where}; start the endpoint, or correct base_url in evaluation:"
            ) from None
        except (self._openai.APIStatusError, self._openai.APIError, TypeError, AttributeError):
            return
        if listed and self.name not in listed:
            raise SpecError(
                f"evaluation: {self._where} has no model {self.name!r}{nearest(self.name, listed)}; it has "
                f"{', '.join(sorted(listed)[:20])}"
            )

    async def reply(self, messages: Sequence[JSONObject], tools: Sequence[JSONObject], seed: int | None) -> Reply:
        """Ask for the next message; see `Policy.reply`."""
        names = _names(tools)
        started = time.monotonic()
        try:
            answer = await self._client.chat.completions.create(**self._request(messages, tools, names, seed))
        except (self._openai.AuthenticationError, self._openai.PermissionDeniedError) as error:
            raise self._refused_key(error) from None
        except (self._openai.BadRequestError, self._openai.NotFoundError) as error:
            text = _said(error)
            if any(words in text.lower() for words in _TOO_LONG):
                raise PromptTooLongError(text) from None
            if not self._has_answered:
                raise SpecError(f"evaluation: {self._where} refuses the first request: {text}") from None
            raise PolicyFailedError(f"{self._where} refuses the request: {text}") from None
        except self._openai.OpenAIError as error:
            raise PolicyFailedError(f"{self._where}: {type(error).__name__}: {_said(error)}") from None
        except (ValueError, TypeError) as error:
            raise PolicyFailedError(f"{self._where} answered with what is no JSON: {error}") from None
        self._has_answered = True
        try:
            return _read(answer, {short: name for name, short in names.items()}, time.monotonic() - started)
        except (AttributeError, TypeError, ValueError, IndexError) as error:
            raise PolicyFailedError(f"{self._where} answered with what is no completion: {error}") from None

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    def _request(
        self, messages: Sequence[JSONObject], tools: Sequence[JSONObject], names: Mapping[str, str], seed: int | None
    ) -> dict[str, Any]:
        settings = self._settings
        sampling = {
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "max_tokens": settings.max_tokens,
            "seed": seed,
            "extra_body": dict(settings.extra_body) or None,
        }
        request: dict[str, Any] = {"model": self.name, "messages": _sent(messages, names)}
        if tools:
            request["tools"] = [
                {**tool, "function": {**tool["function"], "name": names[tool["function"]["name"]]}} for tool in tools
            ]
        return request | {name: value for name, value in sampling.items() if value is not None}

    @property
    def _where(self) -> str:
        return f"the endpoint {self._client.base_url}"

    def _refused_key(self, error: Exception) -> AuthenticationError:
        status = getattr(error, "status_code", 401)
        return AuthenticationError(
            f"{self._where} refuses the key ({status}); check the variable that api_key names in evaluation:"
        )


def _names(tools: Sequence[JSONObject]) -> dict[str, str]:
    """Return, by shown name, names that the protocol can take: letters, digits, `_` and `-`, at most 64."""
    names: dict[str, str] = {}
    taken = {tool["function"]["name"] for tool in tools if _NAME.fullmatch(tool["function"]["name"])}
    for tool in tools:
        name = tool["function"]["name"]
        if name in taken:
            names[name] = name
            continue
        stem = _UNFIT.sub("_", name)[: _MOST_NAME - 4] or "tool"
        short = next(one for number in range(len(tools) + 1) if (one := f"{stem}_{number}") not in taken)
        taken.add(short)
        names[name] = short
    return names


def _sent(messages: Sequence[JSONObject], names: Mapping[str, str]) -> list[JSONObject]:
    """Return messages as the protocol takes them: calls with an id each, under their sent names, arguments as text.

    An environment's own conversation has no ids: its results are those of the calls before them, in order.
    """
    sent: list[JSONObject] = []
    waiting: list[str] = []
    for place, message in enumerate(messages):
        if calls := message.get("tool_calls"):
            own = [
                {
                    "id": call.get("id") or f"call_{place}_{number}",
                    "type": "function",
                    "function": {
                        "name": names.get(call["function"]["name"], call["function"]["name"]),
                        "arguments": _as_text(call["function"]["arguments"]),
                    },
                }
                for number, call in enumerate(calls)
            ]
            waiting = [str(call["id"]) for call in own]
            sent.append({**message, "tool_calls": own})
        elif message["role"] == "tool" and "tool_call_id" not in message:
            call_id = waiting.pop(0) if waiting else f"call_{place}"
            sent.append({"role": "tool", "tool_call_id": call_id, "content": message["content"]})
        else:
            sent.append(message)
    return sent


def _as_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def _read(answer: Any, names: Mapping[str, str], request_s: float) -> Reply:
    """Read an answer; what is no answer of the protocol is the endpoint's fault."""
    choices = getattr(answer, "choices", None)
    if not choices or choices[0].message is None:
        raise PolicyFailedError("the endpoint answered without a message")
    message = choices[0].message
    calls = tuple(
        _call(call, names) for call in message.tool_calls or () if getattr(call, "function", None) is not None
    )
    text = message.content or ""
    kept: JSONObject = {"role": "assistant", "content": text}
    if calls:
        kept["tool_calls"] = [
            {
                "id": call.call_id,
                "type": "function",
                # What cannot be read is not sent back: a server that reads it again would refuse the conversation.
                "function": {"name": call.tool, "arguments": json.dumps(call.arguments or {})},
            }
            for call in calls
        ]
    usage = getattr(answer, "usage", None)
    return Reply(
        message=kept,
        text=text,
        calls=calls,
        is_cut=choices[0].finish_reason == "length",
        prompt_tokens=getattr(usage, "prompt_tokens", 0) or 0,
        completion_tokens=getattr(usage, "completion_tokens", 0) or 0,
        request_s=request_s,
    )


def _call(call: Any, names: Mapping[str, str]) -> Call:
    tool, raw = names.get(call.function.name, call.function.name), call.function.arguments or "{}"
    try:
        arguments = json.loads(raw)
    except ValueError as error:
        return Call(tool, None, f"the arguments are no JSON: {error}", call.id)
    if not isinstance(arguments, dict):
        return Call(tool, None, f"the arguments are {type(arguments).__name__} in JSON; accepted: an object", call.id)
    return Call(tool, arguments, call_id=call.id)


def _said(error: Exception) -> str:
    body = getattr(error, "body", None)
    said = body.get("message") if isinstance(body, Mapping) else None
    return str(said or error).strip()[:500]
