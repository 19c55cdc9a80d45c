"""TINY: a policy made on the spot, small enough to train on two cores in minutes.

Flow: `demo`, `offline` → dialogues → a tokenizer and a model warmed up on them.
"""
