"""SIMULATE: HOW a mixture would go, played against simulated learners: no model, no server, no key.

Flow: `multienv simulate mixture.yaml` → `read_simulation` → `SimulationSpec.run` → tables and a plot.
"""

from multienv.curriculum.learners import Learner
from multienv.curriculum.simulation import Moment, Simulation, simulate
from multienv.simulate.declaration import BatchSpec, SimulatedEnvSpec, SimulationSpec
from multienv.simulate.reading import read_simulation

__all__ = [
    "BatchSpec",
    "Learner",
    "Moment",
    "SimulatedEnvSpec",
    "Simulation",
    "SimulationSpec",
    "read_simulation",
    "simulate",
]
