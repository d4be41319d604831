"""The process that is measured: trains a step when told to, and answers what it took.

    python -m tests.bench.worker PORT

It connects to the bench, so that the bench can have several workers, under different debuggers,
take turns: one step each, never two at the same time.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import warnings
from typing import Any, TextIO

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"

import torch

from tests.bench.accounting import Account, accounted, measure_costs
from tests.bench.models import MODELS, Training
from tests.bench.watches import WATCHES


def main(port: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    warnings.filterwarnings("ignore", "Anomaly Detection has been enabled")
    with socket.create_connection(("127.0.0.1", port)) as bench:
        bench.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        serve(bench.makefile("rw", encoding="utf-8"))


def serve(bench: TextIO) -> None:
    """Run what each line asks for until the bench closes the connection."""
    trainings = {name: make() for name, make in MODELS.items()}
    costs = measure_costs()
    answer(bench, {"modules": {name: _modules(t) for name, t in trainings.items()}})
    for line in bench:
        order = json.loads(line)
        training = trainings[order["model"]]
        if not order["account"]:
            answer(bench, {"step": run(training, order["watch"], settle=order["settle"])})
            continue
        step, account = run_accounted(training, order["watch"])
        answer(
            bench,
            {
                "step": step - account.runs * costs.wrapper,
                "hooks": account.nanoseconds - account.runs * costs.interval,
                "plumbing": account.plumbing(costs),
                "runs": account.runs,
            },
        )


def answer(bench: TextIO, body: dict[str, Any]) -> None:
    bench.write(json.dumps(body) + "\n")
    bench.flush()


def run(training: Training, watch: str, *, settle: bool) -> int:
    """CPU nanoseconds of the process for one step."""
    with WATCHES[watch](training.model):
        if settle:  # what a watch does once after it is switched on belongs to no step
            training.step()
        return _timed(training)


def run_accounted(training: Training, watch: str) -> tuple[int, Account]:
    """The same, and what of it the global hooks took."""
    with WATCHES[watch](training.model):
        training.step()
        with accounted(training.model) as account:
            return _timed(training), account


def _timed(training: Training) -> int:
    began = time.process_time_ns()
    training.step()
    return time.process_time_ns() - began


def _modules(training: Training) -> int:
    return sum(1 for _ in training.model.modules())


if __name__ == "__main__":
    main(int(sys.argv[1]))
