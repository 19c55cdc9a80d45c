"""Decides what a tiny policy asks of the process it lives in: one thread for torch, and no chatter.

Flow: `demo`, `offline` and `commands` wrap what they do with a tiny policy in these.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers.utils import logging


@contextmanager
def on_one_thread() -> Iterator[None]:
    """Keep torch on one thread: for a model this small, several spend their time waiting for each other."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


@contextmanager
def quietly() -> Iterator[None]:
    """Hold back what TRL and transformers tell about themselves and nobody here can act on, progress bars included."""
    had_progress_bar = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=FutureWarning, module=r"(transformers|trl)\.")
            warnings.filterwarnings("ignore", message="You are using 'environment_factory'")
            yield
    finally:
        if had_progress_bar:
            logging.enable_progress_bar()
