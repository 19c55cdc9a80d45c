"""Simulated learners: what they can do, and what becomes of it under a curriculum."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multienv.curriculum import Entry, Outcome, Pick
from multienv.curriculum.batch import Batch
from multienv.curriculum.learners import Learner, SimulatedEnvironment, SimulatedPolicy, signal, sum_abs_advantage
from multienv.curriculum.outages import PROBE_EVERY
from multienv.curriculum.simulation import Simulation, simulate
from multienv.errors import SessionLimitError, SpecError
from multienv.simulate import BatchSpec, SimulatedEnvSpec, SimulationSpec
from multienv.specs import CurriculumSpec, Stage, TaskRules

learners = st.builds(
    lambda ceiling, part, **options: Learner(start=ceiling * part, ceiling=ceiling, **options),
    st.floats(0.1, 1.0),
    st.floats(0.01, 0.99),
    speed=st.floats(0, 2.0),
    spread=st.floats(0, 5.0),
    interference=st.floats(0, 0.5),
    failure_rate=st.floats(0, 1.0),
    outages=st.lists(st.tuples(st.integers(0, 5), st.integers(6, 12)), max_size=2),
)
curricula = st.sampled_from(
    [CurriculumSpec(mixture=name) for name in ("weights", "uniform", "proportional", "temperature")]
    + [CurriculumSpec(adaptive=True)]
)


def played(each: Mapping[str, Learner], spec: CurriculumSpec | None = None, **options: Any) -> Simulation:
    return simulate([Entry(name, 20) for name in each], each, spec or CurriculumSpec(), **options)


@given(st.dictionaries(st.sampled_from("abc"), learners, min_size=1), curricula, st.integers(0, 99))
def test_a_simulation_is_a_function_of_its_seed_and_success_stays_below_the_ceiling(
    each: dict[str, Learner], spec: CurriculumSpec, seed: int
) -> None:
    options = {"num_groups": 5, "num_generations": 4, "num_batches": 15, "seed": seed}
    simulation = played(each, spec, **options)
    assert simulation.to_dict() == played(each, spec, **options).to_dict()
    assert len(simulation.successes) == len(simulation.moments) + 1 == 16
    for moment in simulation.moments:
        assert sum(moment.dispatched.values()) == 5
        assert math.isclose(sum(moment.asked.values()), 1)
    for success in simulation.successes:
        assert all(0 <= success[name] <= learner.ceiling for name, learner in each.items())


@given(learners, st.integers(1, 300), st.integers(0, 99))
def test_before_training_the_mean_success_over_all_tasks_is_the_declared_one(
    learner: Learner, num_tasks: int, seed: int
) -> None:
    environment = SimulatedEnvironment("a", num_tasks, learner, seed)
    each = [environment.success_at(task) for task in range(num_tasks)]
    assert environment.success == pytest.approx(learner.start)
    assert sum(each) / num_tasks == pytest.approx(environment.success)


def test_another_seed_gives_another_simulation() -> None:
    each = {"a": Learner(), "b": Learner()}
    assert played(each, num_batches=20, seed=0).to_dict() != played(each, num_batches=20, seed=1).to_dict()


@given(st.integers(0, 12), st.integers(0, 12))
def test_a_group_teaches_by_how_far_its_rewards_are_apart(num_successes: int, num_failures: int) -> None:
    num_scored = num_successes + num_failures
    outcome = Outcome("a", 0, 12, num_scored=num_scored, num_successes=num_successes)
    gain = SimulatedEnvironment("a", 10, Learner(speed=0.1), 0).gain(outcome)
    assert gain == pytest.approx(0.1 * signal(outcome))
    assert (gain > 0) is (num_successes > 0 and num_failures > 0)
    assert signal(outcome) <= 1


def test_what_carries_no_signal_teaches_nothing_and_makes_nothing_forgotten() -> None:
    certain = Learner(start=1 - 1e-9, spread=0.0)  # every rollout succeeds
    forgetful = Learner(start=0.5, interference=1.0)
    a, b = SimulatedEnvironment("a", 10, certain, 0), SimulatedEnvironment("b", 10, forgetful, 0)
    policy = SimulatedPolicy([a, b], num_generations=8)
    before = a.skill, b.skill
    (outcome,) = policy.train(Batch(0, (Pick("a", 0),), {"a": 1.0}))
    assert (outcome.num_successes, outcome.num_nonzero, outcome.sum_abs_advantage) == (8, 0, 0.0)
    assert (a.skill, b.skill) == before


@pytest.mark.parametrize("learner", [Learner(failure_rate=1.0), Learner(outages=[(0, 30)])])
def test_infrastructure_that_breaks_every_rollout_teaches_nothing(learner: Learner) -> None:
    simulation = played({"a": learner}, num_batches=30)
    assert simulation.final == simulation.successes[0]
    line = simulation.account.lines["a"]
    assert (line.dispatched, line.scored, line.finished, line.tokens) == (480, 0, 0, 0)


def test_rollouts_that_break_are_failed_and_unscored_about_as_often_as_declared() -> None:
    line = played({"a": Learner(failure_rate=0.25)}, num_batches=50).account.lines["a"]
    assert line.scored / line.rollouts == pytest.approx(0.75, abs=0.02)


def test_the_more_an_environment_is_trained_on_the_better_it_goes() -> None:
    weights = {"a": 3.0, "b": 1.0}
    spec = CurriculumSpec(stages=[Stage(weights=weights)])
    simulation = played({"a": Learner(), "b": Learner()}, spec, num_batches=40)
    assert simulation.final["a"] > simulation.final["b"] > 0.2
    assert simulation.worst == "b"


def test_skill_is_lost_while_others_are_trained_on_but_not_what_was_there_at_the_start() -> None:
    each = {"a": Learner(start=0.3, interference=0.01), "b": Learner(speed=0.01)}
    stages = [Stage(weights={"a": 1.0}, until={"a": 0.9}), Stage(weights={"b": 1.0})]
    simulation = played(each, CurriculumSpec(stages=stages), num_batches=300)
    course = [success["a"] for success in simulation.successes]
    assert max(course) > 0.85
    assert course[-1] < max(course) - 0.1
    assert min(course) == pytest.approx(0.3)


def test_what_is_learnt_elsewhere_helps_where_it_is_transferred_to() -> None:
    spec = CurriculumSpec(stages=[Stage(weights={"a": 1.0})])
    alone = played({"a": Learner(), "b": Learner()}, spec, num_batches=30)
    helped = played({"a": Learner(), "b": Learner(transfer={"a": 0.5})}, spec, num_batches=30)
    assert alone.final["b"] == alone.successes[0]["b"]
    assert helped.final["b"] > alone.final["b"] + 0.2
    assert helped.final["a"] == alone.final["a"]


@pytest.mark.parametrize("spec", [CurriculumSpec(), CurriculumSpec(adaptive=True)], ids=["weights", "adaptive"])
def test_during_an_outage_nothing_is_dispatched_but_trials(spec: CurriculumSpec) -> None:
    each = {"up": Learner(), "down": Learner(outages=[(10, 30)])}
    simulation = played(each, spec, num_batches=60)
    known_down = [moment.dispatched.get("down", 0) for moment in simulation.moments[12:30]]
    assert set(known_down) == {0, 1}
    assert sum(known_down) == len(known_down) // PROBE_EVERY
    assert len({success["down"] for success in simulation.successes[10:31]}) == 1
    afterwards = [moment.dispatched.get("down", 0) for moment in simulation.moments[34:44]]
    assert max(afterwards) > 8  # what it is owed, on top of its share


def test_no_batch_has_more_groups_of_an_environment_than_it_may_hold() -> None:
    entries = [Entry("a", 50, sampling_weight=9.0, max_groups=3), Entry("b", 50)]
    simulation = simulate(entries, {"a": Learner(), "b": Learner()}, CurriculumSpec(), num_batches=20)
    assert {moment.dispatched["a"] for moment in simulation.moments} == {3}
    with pytest.raises(SessionLimitError, match="the limits let a hold 3 at once"):
        simulate(entries[:1], {"a": Learner()}, CurriculumSpec(), num_batches=1)


def test_the_goal_is_reached_when_the_worst_environment_reaches_it() -> None:
    simulation = played({"a": Learner(start=0.6), "b": Learner(start=0.1)}, num_batches=100)
    until = simulation.batches_until(0.8)
    assert until is not None
    assert min(simulation.successes[until].values()) >= 0.8
    assert all(min(success.values()) < 0.8 for success in simulation.successes[:until])
    assert simulation.batches_until(0.1) == 0
    assert simulation.batches_until(1.0) is None


@given(st.dictionaries(st.sampled_from("abc"), learners, min_size=1), curricula)
def test_a_simulation_survives_a_round_through_json(each: dict[str, Learner], spec: CurriculumSpec) -> None:
    figures = played(each, spec, num_batches=3, num_groups=4).to_dict()
    again = Simulation.from_dict(json.loads(json.dumps(figures)))
    assert again.to_dict() == figures


@given(st.lists(st.booleans(), min_size=1, max_size=12))
def test_advantages_are_those_that_trl_computes(successes: list[bool]) -> None:
    torch = pytest.importorskip("torch")
    rewards = torch.tensor(successes, dtype=torch.float64)
    theirs = 0.0
    if len(set(successes)) > 1:
        theirs = float(((rewards - rewards.mean()) / (rewards.std() + 1e-4)).abs().sum())
    assert sum_abs_advantage(sum(successes), len(successes)) == pytest.approx(theirs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": 0.0}, "start=0.0; accepted: above 0 and below ceiling=1.0"),
        ({"start": 0.5, "ceiling": 0.4}, "start=0.5; accepted: above 0 and below ceiling=0.4"),
        ({"ceiling": 1.5}, "ceiling=1.5; accepted: a number from 0 to 1"),
        ({"speed": -1}, "speed=-1; accepted: a number from 0"),
        ({"speed": math.nan}, "speed=nan; accepted: a number from 0"),
        ({"spread": True}, "spread=True; accepted: a number from 0"),
        ({"num_tokens": 1.5}, "num_tokens=1.5; accepted: a whole number from 0"),
        ({"transfer": {"b": 2}}, "transfer={'b': 2}; accepted: shares from 0 to 1"),
        ({"outages": [[60, 40]]}, "outages=[[60, 40]]; accepted: pairs of batches"),
        ({"outages": [3]}, "outages=[3]; accepted: pairs of batches"),
    ],
)
def test_a_learner_that_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as refused:
        Learner(**options)
    assert str(refused.value).startswith(message)


def test_learners_and_environments_belong_together() -> None:
    with pytest.raises(SpecError, match="environment 'b' has no learner"):
        simulate([Entry("a", 1), Entry("b", 1)], {"a": Learner()}, CurriculumSpec())
    with pytest.raises(SpecError, match="environments.a.learner.transfer names 'sweb' .did you mean 'swe'"):
        played({"a": Learner(transfer={"sweb": 0.1}), "swe": Learner()})
    with pytest.raises(SpecError, match="transfer names 'a'; accepted: the other environments .b."):
        played({"a": Learner(transfer={"a": 0.1}), "b": Learner()})


def test_what_is_left_to_trl_is_not_simulated() -> None:
    with pytest.raises(SpecError, match="there is no curriculum to simulate"):
        played({"a": Learner()}, CurriculumSpec(mixture="dataset"))


def test_a_declaration_is_played_as_declared_unless_something_else_is_asked_for() -> None:
    spec = SimulationSpec(
        batch=BatchSpec(num_groups=4, num_batches=7, seed=3),
        environments={"a": SimulatedEnvSpec(num_tasks=9, sampling_weight=3.0), "b": SimulatedEnvSpec(num_tasks=9)},
    )
    assert len(spec.run().moments) == 7
    assert spec.run().to_dict() == spec.run("weights", seed=3, num_batches=7).to_dict()
    assert spec.run().moments[0].asked == {"a": 0.75, "b": 0.25}
    assert spec.run("uniform").moments[0].asked == {"a": 0.5, "b": 0.5}
    assert spec.run(seed=4).to_dict() != spec.run().to_dict()
    with pytest.raises(SpecError, match="did you mean 'uniform'"):
        spec.run("unifrom")


def test_the_curriculum_is_told_how_hard_tasks_are_only_where_its_rules_ask() -> None:
    rules = TaskRules(expected_success="pass_rate", hopeless_at=0.2)
    learner = Learner(start=0.3, spread=3.0)
    spec = SimulationSpec(
        environments={"a": SimulatedEnvSpec(num_tasks=64, task_rules=rules, learner=learner)},
        batch=BatchSpec(num_groups=16),
    )
    signals = []
    for each in (spec, SimulationSpec(environments={"a": SimulatedEnvSpec(num_tasks=64, learner=learner)})):
        line = each.run(num_batches=2).account.lines["a"]
        signals.append(line.nonzero / line.scored)
    assert signals[0] > signals[1] + 0.1  # hopeless tasks wait


def test_a_declaration_says_what_is_wrong_with_it() -> None:
    nothing: dict[str, Any] = {}
    misspelt: dict[str, Any] = {"num_group": 3}
    with pytest.raises(SpecError, match="SimulationSpec: environments is missing"):
        SimulationSpec(**nothing)
    with pytest.raises(SpecError, match="BatchSpec: unknown option 'num_group' .did you mean 'num_groups'"):
        BatchSpec(**misspelt)
