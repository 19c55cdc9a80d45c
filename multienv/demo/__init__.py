"""Shows the library at work with nothing but this machine: three environments, a tiny model, one training run.

Flow: `multienv.cli` calls `run.run_demo`, which starts `servers`, warms up a `tiny` policy and trains it on them all.
"""
