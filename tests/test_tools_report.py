"""What `spec.tools_report()` says of the tools of a mixture, on the published interfaces of real environments."""

from __future__ import annotations

from typing import Any

import pytest
from openreward.environments import terminal, tool
from openreward.environments.types import ToolOutput
from pydantic import BaseModel

from multienv import EnvSpec, MultiEnvSpec, ToolsReport, errors
from multienv.checks.differences import drift_of
from multienv.types import ToolListing, ToolSpec
from tests.support.environments import Base, EchoEnvironment, TaskToolsEnvironment, output
from tests.support.foreign import guesses
from tests.support.published import catalogue, published
from tests.support.servers import ORSServer
from tests.support.training import tokenizer

CATALOGUES = {"seta": "seta", "terminals": "endlessterminals", "swe": "swe_rebench_v2"}
SHARED = ("create_file", "str_replace", "submit_answer", "view")


def report(environments: dict[str, Any], processing_class: Any = None) -> ToolsReport:
    with MultiEnvSpec(environments) as spec:
        if processing_class is not None:
            spec.present_to(processing_class)
        return spec.tools_report()


@pytest.fixture(scope="module")
def catalogues() -> ToolsReport:
    """The three environments on servers of their own, over HTTP."""
    servers = {name: ORSServer([catalogue(file)]).start() for name, file in CATALOGUES.items()}
    try:
        return report({name: server.url for name, server in servers.items()})
    finally:
        for server in servers.values():
            server.stop()


def test_every_tool_of_every_environment_is_there_with_its_schema(catalogues: ToolsReport) -> None:
    names = [(row.environment, row.tool) for row in catalogues.rows]
    assert len(names) == len(set(names)) == 20
    assert [tool for name, tool in names if name == "terminals"] == ["bash", *SHARED]
    schemas = {(row.environment, row.tool): row.schema for row in catalogues.rows}
    assert "TodoItem" in str(schemas["seta", "todo_write"])
    assert schemas["swe", "submit_answer"] == {}


def test_the_three_catalogue_environments_collide_as_they_really_do(catalogues: ToolsReport) -> None:
    collisions = {collision.tool: collision for collision in catalogues.collisions}
    assert sorted(collisions) == sorted(("bash", *SHARED))
    bash = collisions["bash"]
    assert bash.environments == ("seta", "terminals", "swe")
    assert not bash.is_same
    (difference,) = bash.differences
    assert difference.startswith(
        "seta and terminals, swe: timeout only in seta; description only in terminals, swe; command: description"
    )
    assert "additionalProperties" in difference
    for tool_name in SHARED:
        assert collisions[tool_name].environments == ("terminals", "swe")
        assert collisions[tool_name].is_same
        assert collisions[tool_name].differences == ()
    assert bash.effects.exact == bash.effects.plain == "none: each row is shown its own environment's tool"
    assert bash.effects.meta == "called seta__bash, terminals__bash, swe__bash"


def test_each_trainer_calls_a_tool_what_the_report_says() -> None:
    parameters = {"type": "object", "properties": {"x": {"type": "string"}}}
    names = ("run-tests", "reset", "go", "<|im_end|>", "bash")
    tools = [{"name": name, "description": "Go.", "input_schema": parameters} for name in names]
    environments = {"a": published("A", tools), "b": EchoEnvironment, "c": catalogue("seta")}
    with MultiEnvSpec(environments) as spec:
        spec.present_to(tokenizer())
        rows = spec.tools_report().rows
        factories, meta = spec.environment_factory, spec.meta_environment_factory
        for row in rows:
            assert callable(getattr(factories[row.environment], row.plain)), "TRL's own name"
            assert callable(getattr(meta, row.meta)), "the single callable's name"
            listing = factories[row.environment]._route.listing  # type: ignore[union-attr]  # no foreign one
            assert spec._presentation.toolbox(listing.tools).shown[row.exact].spec.name == row.tool
    public = {name for name in vars(meta) if not name.startswith("_")}
    assert sorted(public) == sorted(row.meta for row in rows)
    assert {row.meta for row in rows if row.tool == "bash"} == {"a__bash", "c__bash"}


def test_renamed_and_reserved_names_are_told_with_their_effect() -> None:
    names = ("run-tests", "reset", "fine", "<|im_end|>")
    tools = [{"name": name, "description": "Go.", "input_schema": None} for name in names]
    renamed = {one.tool: one for one in report({"env": published("Env", tools)}, tokenizer()).renamed}
    assert list(renamed) == ["run-tests", "reset", "<|im_end|>"]
    assert renamed["reset"].reason == "it is a member of every environment"
    assert renamed["reset"].effects.exact == "called reset"
    assert renamed["reset"].effects.plain == renamed["reset"].effects.meta == "called reset_tool"
    assert renamed["<|im_end|>"].effects.exact == "called < |im_end|>"


def test_tools_that_only_tasks_have_are_told_as_far_as_tasks_are_known() -> None:
    drift = report({"env": EnvSpec(TaskToolsEnvironment, indices=[0, 1])}).drift
    assert [(one.environment, one.tool) for one in drift] == [("env", "special")]
    assert drift[0].differences == ("in task 1, not in what all tasks share and task 0",)
    assert drift[0].effects.exact.startswith("none")
    assert drift[0].effects.plain == "every task is shown it, in the form that is known first"
    assert report({"env": EnvSpec(TaskToolsEnvironment, indices=[0])}).drift == ()


def test_each_further_form_of_a_tool_is_told_once() -> None:
    def form(*names: str, description: str = "Go.") -> ToolListing:
        return ToolListing((ToolSpec("go", description, {"properties": {name: {} for name in names}}),))

    listings: dict[int | str | None, ToolListing] = {None: form("a"), 0: form("a"), 1: form("b"), 2: form("b")}
    listings[3] = form("a", description="Come.")
    assert drift_of(listings) == {
        "go": [
            "from what all tasks share to task 1: a only in what all tasks share, b only in task 1",
            "from what all tasks share to task 3: the description",
        ]
    }
    assert drift_of({None: form("a"), 0: form("a")}) == {}


def test_schemas_that_python_takes_for_equal_are_told_apart() -> None:
    def go(parameters: dict[str, Any], **schema: Any) -> list[dict[str, Any]]:
        schema = {"type": "object", "properties": parameters, **schema}
        return [{"name": "go", "description": "", "input_schema": schema}]

    def told(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> list[str]:
        made = report({"a": published("A", one), "b": published("B", other)})
        listings: dict[int | str | None, ToolListing] = {
            index: ToolListing(tuple(ToolSpec(tool["name"], "", tool["input_schema"]) for tool in tools))
            for index, tools in enumerate((one, other))
        }
        drift = [words.removeprefix("from task 0 to task 1: ") for words in drift_of(listings).get("go", [])]
        collision = [words.removeprefix("a and b: ") for one in made.collisions for words in one.differences]
        assert [words.replace("; ", ", ") for words in collision] == drift
        return drift

    assert told(go({"x": {"const": 1}}), go({"x": {"const": True}})) == ["x: const"]
    assert told(go({"x": {"default": 1}}), go({"x": {"default": 1.0}})) == ["x: default"]
    only_order = ["only the order, or an empty part, of the schema"]
    assert told(go({"x": {}, "y": {}}), go({"y": {}, "x": {}})) == only_order
    assert told(go({"x": {}}, required=[]), go({"x": {}})) == only_order
    assert told(go({"x": {"type": "string", "title": "X"}}), go({"x": {"title": "X", "type": "string"}})) == [
        "x: the order"
    ]
    assert told(go({"x": {"const": 1}}), go({"x": {"const": 1}})) == []


def test_the_report_says_of_which_tasks_the_tools_are_known() -> None:
    def known(**options: Any) -> str:
        made = report({"tasks": EnvSpec(TaskToolsEnvironment, **options), "echo": EchoEnvironment})
        text = str(made).split("Different between tasks")[1].split("Renamed")[0]
        assert all(words in text for words in made.looked_at.values())
        assert made.looked_at["echo"] == "what all tasks share and task 0"
        return made.looked_at["tasks"]

    assert known() == known(num_tasks=2) == "what all tasks share and task 0"
    assert known(indices=[0, 1]) == "what all tasks share and tasks 0, 1"
    assert known(discover_task_tools=False) == "what all tasks share"


class Answer(BaseModel):
    answer: str


class GradedEnvironment(Base):
    """One tool, and the last message is graded."""

    @tool
    def look(self) -> ToolOutput:
        """Look."""
        return output("nothing")

    @terminal
    @tool
    def grade(self, params: Answer) -> ToolOutput:
        """Grade."""
        return output("graded", 1.0, finished=True)


def test_a_terminal_tool_is_listed_and_shown_to_no_policy() -> None:
    made = report({"env": GradedEnvironment})
    assert [(row.tool, row.is_terminal, row.exact) for row in made.rows] == [
        ("look", False, "look"),
        ("grade", True, ""),
    ]
    assert "grade (terminal)" in str(made)


def test_foreign_tools_stand_beside_the_others() -> None:
    made = report({"guess": guesses(), "echo": EchoEnvironment})
    foreign = {row.tool: row for row in made.rows if row.is_foreign}
    assert "guess" in foreign
    assert {row.meta for row in made.rows} == {""}, "one callable cannot stand for this mixture"
    assert foreign["guess"].schema is not None
    assert foreign["guess"].schema["properties"]["number"]["type"] == "integer"


def test_a_server_that_cannot_be_reached_costs_its_own_rows_only() -> None:
    with MultiEnvSpec({"gone": "http://127.0.0.1:9", "echo": EchoEnvironment, "tasks": TaskToolsEnvironment}) as spec:
        made = spec.tools_report()
        (gone,) = [row for row in made.rows if row.environment == "gone"]
        assert gone.failure.startswith("could not be listed: environment 'gone': nobody accepts a connection at")
        assert [row.meta for row in made.rows if row.environment == "echo"] == ["echo"]
        assert all(not row.failure for row in made.rows if row is not gone)
        assert "could not be listed" in str(made)
        with pytest.raises(errors.ServerUnreachableError):
            _ = spec.environment_factory
    assert report({"a": "http://127.0.0.1:9", "b": "http://127.0.0.1:10"}).collisions == ()


def test_what_the_report_fetched_the_factories_need_not_fetch_again() -> None:
    with ORSServer([EchoEnvironment]) as server, MultiEnvSpec({"echo": server.url}) as spec:
        spec.tools_report()
        server.stop()
        assert list(spec.environment_factory) == ["echo"]


def test_the_printed_report_fits_the_terminal_and_names_everything(catalogues: ToolsReport) -> None:
    text = str(catalogues)
    assert max(map(len, text.splitlines())) <= 120
    for row in catalogues.rows:
        assert row.tool in text
    assert "seta__bash" in text
    assert "Renamed: none" in text
    assert text.count("the same") == len(SHARED)


def test_hostile_names_change_nothing_but_their_own_cell() -> None:
    names = ("[bold]x[/bold]", "a\nb\x1b[31m", "y" * 300)
    tools = [{"name": name, "description": "", "input_schema": None} for name in names]
    text = str(report({"env": published("Env", tools)}))
    assert max(map(len, text.splitlines())) <= 120
    assert "\x1b" not in text
    assert "[bold]x[/bold]" in text
