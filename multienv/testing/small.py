"""Decides what the scripted-fault server serves when nothing goes wrong: a small ORS environment, and what it counts.

Everything here runs on the server's event loop; what a test reads from another thread is a copy.

Flow: `wire` hands over each `Request`, this gives the `Answer`.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

ENVIRONMENT: Final = "fault"
"""The environment's name on its server."""
SPLIT: Final = "train"
TOOLS: Final = (
    {"name": "win", "description": "Win and finish.", "input_schema": None},
    {
        "name": "work",
        "description": "Work for a while.",
        "input_schema": {
            "type": "object",
            "properties": {"hours": {"type": "integer", "description": "How long."}},
            "required": ["hours"],
        },
    },
)
_WON: Final = {"blocks": [{"type": "text", "text": "won"}], "metadata": None, "reward": 1.0, "finished": True}
_WORKED: Final = {"blocks": [{"type": "text", "text": "worked"}], "metadata": None, "reward": 0.25, "finished": False}


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a server differs from the SDK's own, without being wrong.

    Args:
        names: What `/list_environments` answers; None for a server without that route.
        has_env_name: Whether answers with tasks carry `env_name`.
        has_ranges: Whether `/task_range` and `/tasks` exist.
        redirects_to: Another host to which the opening of sessions is redirected.
    """

    names: Any = (ENVIRONMENT,)
    has_env_name: bool = True
    has_ranges: bool = True
    redirects_to: str | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it came in.

    Args:
        method: The HTTP method.
        path: The whole path.
        headers: By lower-case name.
        body: The decoded JSON, or None.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    body: Any = None

    @property
    def route(self) -> str:
        """The path without the environment's name."""
        return self.path.removeprefix(f"/{ENVIRONMENT}")

    @property
    def session_id(self) -> str:
        """The session it belongs to, or an empty string."""
        return self.headers.get("x-session-id", "")


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer, before a fault has been at it.

    Args:
        content: What becomes JSON.
        status: The HTTP status.
        headers: Beside the content type.
        run_id: For a stream: the id under which the result can be had again.
    """

    content: Any = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    run_id: str | None = None


@dataclass(frozen=True, slots=True)
class ToolRun:
    """A tool that really ran.

    Args:
        session_id: In which session.
        task_index: Of which task.
        tool: Its name.
    """

    session_id: str
    task_index: int
    tool: str


@dataclass(slots=True)
class _Session:
    task_index: int
    heard_at: float
    is_finished: bool = False


class SmallEnvironment:
    """Tasks `{"n": index}` with two tools: `win` (reward 1.0, finished) and `work` (reward 0.25).

    Args:
        num_tasks: Number of tasks of its one split, `train`.
        dialect: How the server speaks.
        reap_after_s: A session that nothing was heard of for so long is forgotten; None to keep all.
    """

    def __init__(self, num_tasks: int, dialect: Dialect, reap_after_s: float | None = None) -> None:
        self.num_tasks = num_tasks
        self.dialect = dialect
        self.reap_after_s = reap_after_s
        self.sessions: dict[str, _Session] = {}
        self.runs: list[ToolRun] = []
        self._results: dict[str, Any] = {}
        self._routes: dict[str, Callable[[Request], Answer]] = {
            "/health": lambda _: Answer({"status": "ok"}),
            "/list_environments": self._list_environments,
            "/create_session": self._create_session,
            "/delete_session": lambda request: Answer({"sid": request.session_id}),
            "/create": self._create,
            "/delete": self._delete,
            "/ping": self._with_session(lambda _: Answer({"status": "ok"})),
            "/splits": lambda _: Answer([{"name": SPLIT, "type": "train"}]),
            "/num_tasks": self._with_split(lambda _: Answer({"num_tasks": self.num_tasks})),
            "/task": self._with_split(self._task),
            "/tasks": self._with_split(lambda _: self._some_tasks(0, self.num_tasks, without_ranges=400)),
            "/task_range": self._with_split(self._task_range),
            "/tools": lambda _: Answer({"tools": TOOLS, "terminal_tool": None}),
            "/task_tools": self._with_session(lambda _: Answer({"tools": TOOLS, "terminal_tool": None})),
            "/prompt": self._with_session(self._prompt),
            "/call": self._with_session(self._call),
        }

    def answer(self, request: Request) -> Answer:
        """Serve a request."""
        self.sessions = self.live_sessions()
        if session := self.sessions.get(request.session_id):
            session.heard_at = time.monotonic()
        serve = self._routes.get(request.route)
        return serve(request) if serve is not None else _error(404, f"no route {request.path}")

    def live_sessions(self) -> dict[str, _Session]:
        """Return the sessions by id, without those the reaper has taken."""
        oldest = -math.inf if self.reap_after_s is None else time.monotonic() - self.reap_after_s
        return {name: session for name, session in self.sessions.copy().items() if session.heard_at > oldest}

    def forget(self, session_id: str | None = None) -> None:
        """Lose a session without tearing it down; None loses all of them."""
        if session_id is None:
            self.sessions.clear()
        else:
            self.sessions.pop(session_id, None)

    def task_of(self, request: Request) -> int | None:
        """Return the task a request is about: that of its session, or the one it wants a session for."""
        if request.route == "/create" and isinstance(request.body, dict):
            return request.body.get("index")
        session = self.sessions.get(request.session_id)
        return None if session is None else session.task_index

    def _with_session(self, serve: Callable[[Request], Answer]) -> Callable[[Request], Answer]:
        def serve_session(request: Request) -> Answer:
            return serve(request) if request.session_id in self.sessions else _error(404, "no such session")

        return serve_session

    def _with_split(self, serve: Callable[[Request], Answer]) -> Callable[[Request], Answer]:
        def serve_split(request: Request) -> Answer:
            return serve(request) if request.body.get("split") == SPLIT else _error(400, "Invalid split")

        return serve_split

    def _list_environments(self, _request: Request) -> Answer:
        return _error(404, "no such route") if self.dialect.names is None else Answer(self.dialect.names)

    def _create_session(self, request: Request) -> Answer:
        if self.dialect.redirects_to is not None:
            return Answer(status=308, headers={"Location": self.dialect.redirects_to + request.path})
        return Answer(run_id=str(uuid.uuid4()))

    def _create(self, request: Request) -> Answer:
        body, session_id = request.body, request.session_id
        if session_id in self.sessions:
            return _error(400, "Session already exists")
        if body.get("split") != SPLIT or not 0 <= body.get("index", -1) < self.num_tasks:
            return _error(400, "Invalid split or index")
        self.sessions[session_id] = _Session(body["index"], heard_at=time.monotonic())
        return Answer({"sid": session_id})

    def _delete(self, request: Request) -> Answer:
        self.forget(request.session_id)
        return Answer({"sid": request.session_id})

    def _task(self, request: Request) -> Answer:
        index = request.body["index"]
        return self._named(task={"n": index}) if 0 <= index < self.num_tasks else _error(400, "Invalid index")

    def _task_range(self, request: Request) -> Answer:
        return self._some_tasks(request.body["start"], request.body["stop"], without_ranges=404)

    def _some_tasks(self, start: int, stop: int, *, without_ranges: int) -> Answer:
        if not self.dialect.has_ranges:
            return _error(without_ranges, "not supported")
        return self._named(tasks=[{"n": index} for index in range(start, min(stop, self.num_tasks))])

    def _named(self, **content: Any) -> Answer:
        return Answer(content | ({"env_name": ENVIRONMENT} if self.dialect.has_env_name else {}))

    def _prompt(self, request: Request) -> Answer:
        index = self.sessions[request.session_id].task_index
        return Answer([{"type": "text", "text": f"Task {index}. Win.", "detail": None}])

    def _call(self, request: Request) -> Answer:
        run_id = request.body.get("task_id")
        if run_id is None:
            run_id = str(uuid.uuid4())
            self._results[run_id] = self._run(request.session_id, request.body["name"], request.body["input"])
        return Answer(self._results.get(run_id), run_id=run_id)

    def _run(self, session_id: str, tool: str, arguments: Any) -> Any:
        session = self.sessions[session_id]
        if session.is_finished:
            return {"ok": False, "error": "the episode has finished", "reason": "episode_finished"}
        if tool not in ("win", "work"):
            return {"ok": False, "error": f"{tool!r} is not a valid tool", "reason": "not_found"}
        if tool == "work" and not isinstance((arguments or {}).get("hours"), int):
            return {"ok": False, "error": "hours must be an integer", "reason": "input_validation"}
        session.is_finished = tool == "win"
        self.runs.append(ToolRun(session_id, session.task_index, tool))
        return {"ok": True, "output": _WON if tool == "win" else _WORKED}


def _error(status: int, detail: str) -> Answer:
    return Answer({"detail": detail}, status)
