"""Replicas publish what the real environments publish, pay as they pay, and start nothing."""

from __future__ import annotations

import ast
import functools
import itertools
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import multienv.testing.replicas
from multienv import EnvSpec, EpisodeStatus, MultiEnvSpec, errors, preset
from multienv.specs import PRESETS
from multienv.testing import Check, check_environment, replica
from multienv.testing.replicas import solution
from multienv.testing.replicas.assignments import WORDS, make_assignment, make_task_spec
from multienv.testing.replicas.shell import run
from multienv.testing.replicas.tree import MAX_CHARS, FileTree, TreeError
from multienv.types import ToolCallError
from tests.support.published import FIXTURES, fixture_tools
from tests.support.servers import ORSServer

FILES = {"seta": "seta", "endless-terminals": "endlessterminals", "swe-rebench-v2": "swe_rebench_v2"}
NAMES = sorted(FILES)
SUBMITS = {"seta": "submit_solution", "endless-terminals": "submit_answer", "swe-rebench-v2": "submit_answer"}
law = settings(max_examples=200)


def facts(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FIXTURES / f"{FILES[name]}.json").read_text())
    return found


@pytest.fixture(scope="module")
def server() -> Iterator[ORSServer]:
    with ORSServer([replica(name) for name in NAMES]) as made:
        yield made


@pytest.fixture(scope="module", params=["in process", "over HTTP"])
def mixture(request: pytest.FixtureRequest, server: ORSServer) -> Iterator[MultiEnvSpec]:
    """All replicas, declared by their presets."""
    environments = {}
    for name in NAMES:
        where: Any = {"target": replica(name)}
        if request.param == "over HTTP":
            where = {"target": server.url, "env_name": replica(name).__name__}
        environments[name] = preset(name, **where)
    with MultiEnvSpec(environments) as spec:
        yield spec


def types_of(value: Any) -> Any:
    """A task spec's keys and types, as `task_spec_types` of the fixtures writes them."""
    if isinstance(value, Mapping):
        return {key: types_of(item) for key, item in value.items()}
    if isinstance(value, list):
        return [types_of(value[0])] if value else ["<empty list: Arrow infers null>"]
    return type(value).__name__


def distinct(values: list[Any]) -> list[str]:
    return sorted({json.dumps(value, sort_keys=True) for value in values})


def rows(spec: MultiEnvSpec, name: str) -> list[dict[str, Any]]:
    return [row for row in spec.train_dataset if row["environment"] == name]


def play(spec: MultiEnvSpec, row: Mapping[str, Any], calls: list[tuple[str, dict[str, Any]]]) -> Any:
    """An adapter that has made these calls."""
    adapter: Any = spec.environment_factory[row["environment"]]()
    adapter.reset(**row)
    for tool, arguments in calls:
        getattr(adapter, tool)(**arguments)
    return adapter


# What is published


@pytest.mark.parametrize("name", NAMES)
def test_a_replica_publishes_the_tools_of_the_real_environment_to_the_letter(name: str) -> None:
    listing = replica(name).list_tools()
    assert [tool.model_dump() for tool in listing.tools] == fixture_tools(FIXTURES / f"{FILES[name]}.json")
    assert listing.terminal_tool is None


@pytest.mark.parametrize("name", NAMES)
def test_a_replica_has_the_splits_and_the_types_of_the_task_specs_and_all_of_them(
    name: str, mixture: MultiEnvSpec
) -> None:
    cls: Any = replica(name)
    assert [split.name for split in cls.list_splits()] == list(facts(name)["splits"])
    task_specs = [json.loads(row["task"]) for row in rows(mixture, name)]
    assert len(task_specs) == 48
    assert len(distinct(task_specs)) == 48
    assert distinct([types_of(spec) for spec in task_specs]) == distinct(facts(name)["task_spec_types"])


@pytest.mark.parametrize("name", NAMES)
def test_tasks_recur_in_a_few_short_forms_of_few_words(name: str) -> None:
    assignments = [make_assignment(name, make_task_spec(name, index)) for index in range(48)]
    lines = {line for made in assignments for line in made.prompt.splitlines()}
    assert len({made.prompt for made in assignments}) <= 24
    assert len(lines) <= 40
    assert max(len(made.prompt) for made in assignments) < 200
    assert {len(made.calls) for made in assignments} <= {2, 3, 4}
    assert {word for word in WORDS for line in lines if word in line} == set(WORDS)


def test_seta_is_harder_the_more_files_there_are() -> None:
    sizes = {
        spec["difficulty"]: len(make_assignment("seta", spec).wanted)
        for spec in (make_task_spec("seta", index) for index in range(9))
    }
    assert sizes == {"easy": 1, "medium": 2, "hard": 3}


def test_swe_rebench_is_read_by_index_only_as_the_real_one(server: ORSServer) -> None:
    with httpx.Client(base_url=f"{server.url}/swerebenchv2", trust_env=False, timeout=5) as client:
        assert client.post("/tasks", json={"split": "train"}).status_code == 400
        assert client.post("/num_tasks", json={"split": "train"}).json() == {"num_tasks": 48}
        task = client.post("/task", json={"split": "train", "index": 4}).json()["task"]
        assert task == make_task_spec("swe-rebench-v2", 4)
        assert client.post("/task", json={"split": "train", "index": 48}).status_code == 400
        assert client.post("/task", json={"split": "test", "index": 0}).status_code == 400
    with pytest.raises(NotImplementedError):
        replica("swe-rebench-v2").list_tasks("train")


@pytest.mark.parametrize("name", NAMES)
def test_a_replica_keeps_the_standard_in_process_and_over_http(name: str, server: ORSServer) -> None:
    over_http: Any = (server.url, {"env_name": replica(name).__name__})
    for target, options in ((replica(name), {}), over_http):
        report = check_environment(target, finishing_call=(SUBMITS[name], {}), **options)
        assert [finding.ok for finding in report.findings] == [True] * len(Check), str(report)


# What is paid


@pytest.mark.parametrize("name", NAMES)
def test_the_solution_of_a_task_earns_all_of_it_and_only_the_submission_is_scored(
    name: str, mixture: MultiEnvSpec
) -> None:
    for row in rows(mixture, name)[:6]:
        calls = solution(name, json.loads(row["task"]))
        adapter = play(mixture, row, calls)
        assert (adapter.reward, adapter.finished) == (1.0, True), adapter.episode
        assert adapter.rewards == [None] * (len(calls) - 1) + [1.0]
        assert adapter.episode.status is EpisodeStatus.FINISHED
        assert mixture.reward_func(environments=[adapter], environment=[name], prompts=[""], completions=[""]) == [1.0]


def parts(calls: list[Any]) -> list[list[Any]]:
    """All ways to make some of the calls before the last one; the last way is all of them."""
    *work, submit = calls
    return [[*some, submit] for size in range(len(work) + 1) for some in itertools.combinations(work, size)]


def test_a_part_of_setas_solution_earns_its_weight_and_the_weights_add_up(mixture: MultiEnvSpec) -> None:
    earned = {}
    for row in rows(mixture, "seta")[:3]:
        calls = solution("seta", json.loads(row["task"]))
        played = [play(mixture, row, part).reward for part in parts(calls)]
        earned[row["difficulty"]] = [round(reward, 2) for reward in played]
    assert earned == {
        "easy": [0.0, 1.0],
        "medium": [0.0, 0.6, 0.4, 1.0],
        "hard": [0.0, 0.5, 0.25, 0.25, 0.75, 0.75, 0.5, 1.0],
    }


@pytest.mark.parametrize("name", ["endless-terminals", "swe-rebench-v2"])
def test_a_part_of_the_others_solutions_earns_nothing(name: str, mixture: MultiEnvSpec) -> None:
    for row in rows(mixture, name)[:4]:
        calls = solution(name, json.loads(row["task"]))
        *incomplete, complete = [play(mixture, row, part).reward for part in parts(calls)]
        assert (set(incomplete), complete) == ({0.0}, 1.0)


@pytest.mark.parametrize("name", NAMES)
def test_a_rollout_that_never_submits_carries_no_reward_of_the_environment(name: str, mixture: MultiEnvSpec) -> None:
    row = rows(mixture, name)[0]
    *work, _ = solution(name, json.loads(row["task"]))
    adapter = play(mixture, row, work)
    assert (adapter.reward, adapter.finished, adapter.rewards) == (None, False, [None])


def test_a_bash_that_writes_the_files_solves_a_task_too(mixture: MultiEnvSpec) -> None:
    row = rows(mixture, "seta")[2]
    wanted = make_assignment("seta", json.loads(row["task"])).wanted
    line = " && ".join(f"echo {word} > {path}" for path, word in wanted.items())
    adapter = play(mixture, row, [("bash", {"command": line}), ("submit_solution", {})])
    assert adapter.reward == 1.0


def test_two_sessions_of_one_task_do_not_see_each_others_files(mixture: MultiEnvSpec) -> None:
    row = rows(mixture, "endless-terminals")[0]
    call = ("create_file", {"description": "a", "path": "/home/user/mine.txt", "file_text": "amber"})
    first, second = play(mixture, row, [call]), play(mixture, row, [])
    assert first.bash(command="ls", description="a") == "mine.txt\nexit code 0"
    assert second.bash(command="ls", description="a") == "exit code 0"


# The tools


class Session:
    """Calls the tools of one session with arguments by name."""

    def __init__(self, spec: MultiEnvSpec, name: str, index: int = 0) -> None:
        self.adapter = play(spec, rows(spec, name)[index], [])

    def __call__(self, tool: str, **arguments: Any) -> str:
        text: str = getattr(self.adapter, tool)(**arguments)
        return text


def test_setas_tools_work_on_one_file_tree(mixture: MultiEnvSpec) -> None:
    call = Session(mixture, "seta")
    assert call("write", file_path="a/b.txt", content="amber\nbirch\namber\n") == "ok"
    assert call("read", file_path="/app/a/b.txt", offset=2, limit=1) == "birch"
    assert call("read", file_path="c.txt") == "error: c.txt: No such file or directory"
    assert call("read", file_path="a") == "error: a: Is a directory"
    assert call("edit", file_path="a/b.txt", old_string="amber", new_string="cedar").startswith("error: a/b.txt: ")
    assert call("edit", file_path="a/b.txt", old_string="amber", new_string="cedar", replace_all=True) == "ok"
    assert call("bash", command="cat a/b.txt") == "cedar\nbirch\ncedar\nexit code 0"
    edits = [{"old_string": "birch", "new_string": "delta"}, {"old_string": "nowhere", "new_string": ""}]
    assert call("multi_edit", file_path="a/b.txt", edits=edits) == "error: a/b.txt: 'nowhere' is there 0 times"
    assert call("multi_edit", file_path="a/b.txt", edits=[{}]).startswith("error: a/b.txt: an edit needs ")
    assert call("grep", pattern="birch") == "/app/a/b.txt:birch", "a failed series of edits changes nothing"
    assert call("multi_edit", file_path="a/b.txt", edits=edits[:1]) == "ok"
    assert call("grep", pattern="birch", path="/", include="*.txt") == "nothing"
    assert call("glob", pattern="*.txt") == call("glob", pattern="a/*") == "/app/a/b.txt"
    assert call("glob", pattern="*.txt", path="/home") == "nothing"
    assert (call("ls"), call("ls", path="a", ignore=["*.txt"])) == ("a", "nothing")
    assert call("todo_write", todos=[{"content": "amber"}]) == "pending: amber"
    assert call("write", file_path="/app/a/b.txt/c", content="") == "error: /app/a/b.txt: Not a directory"
    with pytest.raises(ToolCallError, match="status"):
        call("todo_write", todos=[{"content": "amber", "status": "asleep"}])


def test_the_containers_tools_work_on_one_file_tree(mixture: MultiEnvSpec) -> None:
    call = functools.partial(Session(mixture, "swe-rebench-v2"), description="task")
    assert call("view", path="/repo") == "one.py"
    assert call("view", path="/repo/one.py") == "name = widgets\nword = amber"
    assert call("view", path="/repo/one.py", view_range=[2, -1]) == "word = amber"
    assert call("view", path="/repo/one.py", view_range=[1, 1]) == "name = widgets"
    assert call("str_replace", path="/repo/one.py", old_str="amb", new_str="emb") == "ok"
    assert call("str_replace", path="/repo/one.py", old_str="ember") == "ok", "new_str is empty by default"
    assert call("bash", command="grep word one.py") == "word = \nexit code 0"
    assert call("str_replace", path="/repo/one.py", old_str="", new_str="x").startswith("error: ")
    assert call("create_file", path="/repo", file_text="") == "error: /repo: Is a directory"


# The shell and the tree


@pytest.mark.parametrize(
    ("line", "printed"),
    [
        ("", "exit code 0"),
        ("true", "exit code 0"),
        ("pwd", "/app\nexit code 0"),
        ("echo amber birch", "amber birch\nexit code 0"),
        ('echo \'a  b\' "c && \\"d" e\\ f > x.txt && cat x.txt', 'a  b c && "d e f\nexit code 0'),
        ("echo a > x\necho b >> x; cat x", "a\nb\nexit code 0"),
        ("echo a > x > y", "bash: >: command not found\nexit code 127"),
        ("echo -n a > x && echo b >> x && cat x", "ab\nexit code 0"),
        ("true > x && cat x && echo '' && ls", "\nx\nexit code 0"),
        ("mkdir -p a/b && echo amber > a/b/c && ls a && cat a/b/c", "b\namber\nexit code 0"),
        ("echo amber > a/b", "echo: a/b: No such file or directory\nexit code 1"),
        ("echo amber > a && mkdir a/b", "mkdir: a/b: Not a directory\nexit code 1"),
        ("cat missing && echo amber", "cat: missing: No such file or directory\nexit code 1"),
        ("cat missing; echo amber", "cat: missing: No such file or directory\namber\nexit code 0"),
        ("cat missing && echo a && echo b; echo c", "cat: missing: No such file or directory\nc\nexit code 0"),
        ("echo amber > x && rm x && ls", "exit code 0"),
        ("rm x", "rm: x: No such file or directory\nexit code 1"),
        ("rm -f x && rm -f", "exit code 0"),
        ("mkdir a && rm a", "rm: a: Is a directory\nexit code 1"),
        ("mkdir -p a/b && rm -rf a && ls", "exit code 0"),
        ("rm -rf / && pwd && echo amber > x && ls", "/app\nx\nexit code 0"),
        ("echo amber > x && grep mbe x && grep -r amber .", "amber\n/app/x:amber\nexit code 0"),
        ("echo amber > x && grep birch x", "exit code 1"),
        ("cat", "cat: missing operand\nexit code 1"),
        ("python -c 1", "bash: python: command not found\nexit code 127"),
        ("echo a | cat", "bash: |: command not found\nexit code 127"),
        ("echo $HOME", "bash: $: command not found\nexit code 127"),
        ("echo `pwd`", "bash: `: command not found\nexit code 127"),
        ("echo 'a", "bash: ': command not found\nexit code 127"),
        ("echo a >", "bash: >: command not found\nexit code 127"),
        ("echo a > && true", "bash: &&: command not found\nexit code 127"),
        ("true &&", "bash: &&: command not found\nexit code 127"),
        ("&& true", "bash: &&: command not found\nexit code 127"),
        ("echo a > x; sudo rm x; cat x", "bash: sudo: command not found\na\nexit code 0"),
    ],
)
def test_the_shell_understands_a_little_and_finds_nothing_else(line: str, printed: str) -> None:
    assert run(line, FileTree("/app", {})) == printed


NASTY = st.text(st.sampled_from("ab ./~*[]!-\\'\"&|;<>()$`\n\t\x0b#")) | st.text()
LINES = NASTY | st.lists(
    st.sampled_from(["echo", "cat", "ls", "mkdir", "-p", "rm", "-rf", "grep", "a", "a/b", "/", ".", ">", ">>", "&&"])
).map(" ".join)


@law
@given(st.lists(LINES, max_size=6))
def test_whatever_is_typed_the_shell_answers_with_an_exit_code_and_the_tree_stays_sound(lines: list[str]) -> None:
    tree = FileTree("/app", {"/app/one.txt": "amber\n"})
    for line in lines:
        last = run(line, tree).rsplit("\n", 1)[-1]
        assert last in {f"exit code {code}" for code in (0, 1, 2, 127)}
        assert {"/", "/app"} <= tree.folders
        assert not tree.folders & set(tree.files)
        assert all(path == tree.path(path) for path in (*tree.files, *tree.folders))


@law
@given(st.text(), NASTY)
def test_what_is_echoed_in_quotes_is_what_the_file_holds(text: str, path: str) -> None:
    tree = FileTree("/app", {})
    quoted = "'" + text.replace("'", "'\\''") + "'"
    try:
        tree.write(path, "")
    except TreeError:
        return
    where = "'" + path.replace("'", "'\\''") + "'"
    assert run(f"echo {quoted} > {where}", tree) == "exit code 0"
    assert tree.read(path) == ("" if text == "-n" else f"{text}\n")


@law
@given(st.lists(st.tuples(NASTY, NASTY), max_size=5), NASTY)
def test_a_pattern_finds_only_files_that_are_there_whatever_it_is(files: list[tuple[str, str]], pattern: str) -> None:
    tree = FileTree("/app", {})
    for path, text in files:
        try:
            tree.write(path, text)
        except TreeError:
            continue
        assert tree.read(path) == text
    assert set(tree.under(".", pattern)) <= set(tree.files.items())
    assert {path for path, _ in tree.under("/")} == set(tree.files)


def test_a_path_of_any_length_is_answered_at_once() -> None:
    tree = FileTree("/app", {})
    for command in ("mkdir -p", "cat", "rm -rf", "ls", "grep -r a", "echo a >"):
        assert run(f"{command} {'a/' * 50_000}b", tree).endswith("a/...: File name too long\nexit code 1")


def test_a_tree_is_full_before_it_costs_anyone_memory() -> None:
    tree = FileTree("/app", {})
    assert run(f"echo {'a' * 9_000} > x", tree) == "exit code 0"
    assert run("cat x x > y", tree) == "cat: No space left on device\nexit code 1"
    for number in itertools.count():
        if run(f"mkdir {number}{'a' * 200}", tree) != "exit code 0":
            break
    with pytest.raises(TreeError, match="No space left"):
        tree.write("z", "a" * MAX_CHARS)
    assert sum(map(len, (*tree.files, *tree.files.values(), *tree.folders))) <= MAX_CHARS


def test_no_module_of_the_replicas_can_start_a_process_or_open_a_file() -> None:
    imported: set[str] = set()
    for path in Path(multienv.testing.replicas.__path__[0]).glob("*.py"):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                imported |= {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(str(node.module).partition(".")[0])
            elif isinstance(node, ast.Name):
                assert node.id not in {"open", "exec", "eval", "__import__"}
    harmless = {"asyncio", "collections", "dataclasses", "fnmatch", "importlib", "math", "posixpath", "re", "typing"}
    assert imported == harmless | {"__future__", "multienv", "openreward", "pydantic"}


# The declaration


def test_there_is_a_replica_and_a_solution_for_each_preset() -> None:
    assert set(PRESETS) == set(FILES)
    for name in PRESETS:
        assert math.isclose(sum(make_assignment(name, make_task_spec(name, 5)).weights), 1.0)
        assert replica(name) is replica(name)


@pytest.mark.parametrize("name", ["Seta", None])
def test_an_unknown_replica_is_answered_with_the_known_ones(name: Any) -> None:
    for ask in (replica, functools.partial(solution, task_spec={})):
        with pytest.raises(errors.SpecError, match=f"there is no replica {name!r}.*known: seta, endless-terminals, "):
            ask(name)


@pytest.mark.parametrize(
    ("name", "task_spec"),
    [
        ("seta", {}),
        ("seta", {"task_id": "x"}),
        ("endless-terminals", {"id": "7"}),
        ("swe-rebench-v2", {"instance_id": None}),
    ],
)
def test_a_task_spec_of_another_environment_is_refused(name: str, task_spec: dict[str, Any]) -> None:
    with pytest.raises(errors.SpecError, match=f"is no task spec of the replica '{name}'.*accepted: "):
        solution(name, task_spec)


def test_a_subclass_has_its_own_number_of_tasks_and_takes_its_time() -> None:
    parent: Any = replica("seta")
    with MultiEnvSpec({"parent": parent}) as spec:
        assert len(spec.train_dataset) == 48
    slow = type("Slow", (parent,), {"num_tasks_per_split": 5, "latency_s": 0.03})
    with MultiEnvSpec({"slow": EnvSpec(slow)}) as spec:
        assert spec.train_dataset["task_index"] == [0, 1, 2, 3, 4]
        adapter = play(spec, rows(spec, "slow")[0], [("ls", {}), ("submit_solution", {})])
        assert adapter.episode.open_s >= 0.03
        assert all(step.duration_s >= 0.03 for step in adapter.episode.steps)
