"""WHICH task next: plain numbers, a pure function of the seed and of what was observed, equal on all ranks.

Flow: `training` asks for the next tasks and reports what became of each group.
"""
