"""Records as a long run would leave them: plausible figures, made up from a seed, in the files that a run writes."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

from multienv import Episode, EpisodeStatus, Step
from multienv.reporting import EpisodeRecord

MIXTURE = {"seta": 0.5, "endless-terminals": 0.3, "swe-rebench": 0.2}
BEGAN = 1_790_000_000.0
_COMMANDS = (
    ("ls -la /workspace", "total 12\ndrwxr-xr-x 3 root root 4096 .\n-rw-r--r-- 1 root root  812 solve.py\n"),
    ("python -m pytest -q tests/test_parse.py", "..F.\n1 failed, 3 passed in 0.41s\nE   assert 3 == 4"),
    ("sed -n 1,40p src/parse.py", "def parse(line):\n    head, _, tail = line.partition('=')\n    return head, tail"),
    ("grep -rn 'TODO' src | head", "src/parse.py:12: the last field is lost\n"),
)
_FAILURES = (
    ("ServerUnreachableError", "nobody answers at the server of {name}: connection refused after {n} tries"),
    ("SessionError", "session 99dac882-2158-424e-a1e7-{n:012d} was lost: the server has forgotten it (404)"),
)


def play(rng: random.Random, name: str, step: int | None, skill: float, **fields: Any) -> Episode:
    """Make one episode up, of a policy that succeeds with this probability."""
    task = rng.randrange(24)
    broken, cut = rng.random() < 0.02, rng.random() < 0.06
    steps = []
    for _ in range(rng.randint(1, 5)):
        command, text = rng.choice(_COMMANDS)
        is_refused = rng.random() < 0.05
        arguments = {"cmd": command} if is_refused else {"command": command, "timeout_s": 30}
        shown = "Unknown argument 'cmd'; accepted: command, timeout_s" if is_refused else text
        steps.append(Step("bash", arguments, shown, None, refused=is_refused, duration_s=rng.lognormvariate(-1.5, 0.9)))
    status, reward, error, reason = EpisodeStatus.FINISHED, 0.0, "", ""
    if broken:
        error, reason = rng.choice(_FAILURES)
        status, reason = EpisodeStatus.FAILED, reason.format(name=name, n=rng.randint(2, 9))
    elif cut:
        status, reason = EpisodeStatus.TRUNCATED, "the limit of 5 tool calls was reached"
    elif rng.random() < 0.25 * (1 - skill):
        status = EpisodeStatus.UNFINISHED
    if status is EpisodeStatus.FINISHED:
        reward = 1.0 if rng.random() < skill else round(rng.random() * 0.4, 2)
        passed = {"passed": int(4 * reward), "of": 4}
        steps.append(Step("submit", {}, f"score {reward}", reward, passed, finished=True, duration_s=rng.random()))
    talk: list[dict[str, Any]] = []
    for each in steps:
        function = {"name": each.tool, "arguments": each.arguments}
        talk.append({"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]})
        talk.append({"role": "tool", "name": each.tool, "content": each.text})
    talk[0] |= {"content": "I look at what is there first.", "reasoning_content": "The tests name parse(); find it."}
    return Episode(
        name,
        f"{name}/train/{task}",
        f"{rng.getrandbits(32):08x}",
        tuple(steps),
        status,
        reason=reason,
        error=error,
        open_s=rng.lognormvariate(0.3, 0.7),
        started_at=BEGAN + 90.0 * (step or 0) + rng.random() * 5,
        completion=tuple(talk),
        training_step=step,
        reward=None if broken else reward,
        num_completion_tokens=int(rng.lognormvariate(5.5 - 0.4 * skill, 0.5)),
        **fields,
    )


def write_training(directory: Path, *, num_steps: int = 120, evaluates_every: int = 20, has_log: bool = True) -> int:
    """Write the record and the log of a training on three environments; return how many episodes it has."""
    rng, record, count, log = random.Random(7), EpisodeRecord(directory), 0, []
    owed = dict.fromkeys(MIXTURE, 0.0)
    for step in range(num_steps):
        skills = {
            name: 0.85 / (1 + math.exp(-(step - middle) / 16))
            for name, middle in zip(MIXTURE, (25, 55, 85), strict=True)
        }
        tilt = {name: share * (1.4 - skills[name]) for name, share in MIXTURE.items()}
        asked = {name: share / sum(tilt.values()) for name, share in tilt.items()}
        if evaluates_every and step % evaluates_every == 0:
            evaluated = [play(rng, name, step, skills[name], is_evaluation=True) for name in MIXTURE for _ in range(24)]
            record.add(evaluated)
            count += len(evaluated)
        owed = {name: owed[name] + 6 * asked[name] for name in MIXTURE}
        groups = []
        for _ in range(6):
            groups.append(max(owed, key=lambda name: owed[name]))
            owed[groups[-1]] -= 1
        batch = [
            play(rng, name, step, skills[name], group=place) for place, name in enumerate(groups) for _ in range(8)
        ]
        record.add(batch)
        count += len(batch)
        log.append({"step": step + 1, "loss": 0.0} | {f"env/{name}/groups_asked": 6 * asked[name] for name in MIXTURE})
    if has_log:
        (directory / "log.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in log))
    return count


def write_evaluation(directory: Path, num_rollouts: int = 4) -> int:
    """Write the record of an evaluation; return how many episodes it has."""
    rng, record = random.Random(11), EpisodeRecord(directory)
    skills = dict(zip(MIXTURE, (0.8, 0.45, 0.15), strict=True))
    played = [
        play(rng, name, None, skills[name], is_evaluation=True) for name in MIXTURE for _ in range(24 * num_rollouts)
    ]
    record.add(played)
    return len(played)
