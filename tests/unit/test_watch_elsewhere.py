"""`tensorpoint.watch` on other threads, in forked processes, and in loops of accelerate."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

import tensorpoint
from tensorpoint import Stop, TensorpointHit
from tests.unit.test_watch import BAD, Log, Net, python


def test_threads_watch_at_the_same_time() -> None:
    hits: list[str] = []
    gate = threading.Barrier(4)

    def work() -> None:
        gate.wait()
        for _ in range(20):
            try:
                with tensorpoint.watch("nonfinite()"):
                    Net()(BAD)
            except TensorpointHit:
                hits.append(threading.current_thread().name)

    threads = [threading.Thread(target=work, name=f"worker {n}") for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(hits) == sorted([f"worker {n}" for n in range(4)] * 20)


def test_a_forked_child_goes_on_watching() -> None:
    code = """
        import os, sys, tensorpoint, torch
        from torch import nn
        class Log(nn.Module):
            def forward(self, x): return x.log()
        with tensorpoint.watch("nonfinite()"):
            pid = os.fork()
            if not pid:
                try:
                    Log()(-torch.ones(2))
                except tensorpoint.TensorpointHit:
                    print("hit", flush=True)
                os._exit(0)
            os.waitpid(pid, 0)
        """
    assert python(code) == "hit"


def test_a_forked_child_watches_by_itself() -> None:
    code = """
        import os, tensorpoint, torch
        from torch import nn
        from torch.nn.modules import module
        class Log(nn.Module):
            def forward(self, x): return x.log()
        model = nn.Sequential(nn.Linear(2, 2), Log())
        nn.init.constant_(model[0].weight, 1.0)
        conditions = 'nonfinite("1")', 'grad_norm("0.weight") > 0', 'update_norm("0.bias") > 0'
        with tensorpoint.watch("nonfinite()"):
            model(torch.full((2,), 9.0))
        pid = os.fork()
        if not pid:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            with tensorpoint.watch(*conditions, on=lambda stop: print(stop.event, stop.step)):
                model(torch.full((2,), -9.0))
                model(torch.full((2,), 9.0)).sum().backward()
                optimizer.step()
            print(len(module._global_forward_hooks), flush=True)
            os._exit(0)
        os.waitpid(pid, 0)
        """
    lines = python(code).splitlines()
    assert lines == ["nonfinite.forward 1", "grad_norm 2", "update_norm 2", "0"]


def test_a_loop_of_accelerate() -> None:
    from accelerate import Accelerator

    layer = nn.Linear(1, 1)
    nn.init.constant_(layer.weight, 1.0)
    model = nn.Sequential(layer, Log())
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    wrapped, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-3))
    stops: list[Stop] = []

    def step(value: float) -> None:
        with accelerator.accumulate(wrapped):
            accelerator.backward(wrapped(torch.full((2, 1), value)).sum())
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(wrapped.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    with tensorpoint.watch("grad_norm() > 0", 'update_norm("0.weight") > 0', on=stops.append):
        step(3.0)
        assert not stops  # of two batches together
        step(3.0)
    assert [(stop.event, stop.module, stop.step) for stop in stops] == [
        ("grad_norm", "", 1),
        ("update_norm", "0", 1),
    ]
    with pytest.raises(TensorpointHit) as caught, tensorpoint.watch("nonfinite()"):
        step(-9.0)
    assert (caught.value.stop.event, caught.value.stop.module) == ("nonfinite.forward", "1")
