"""The whole path on one program: record it, plan, replay with the plan, and compare with the native run.

``python -m examples.demo`` takes about a minute on two cores. The stages below are the ones a user's
own training script goes through.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

import rose_exec
import rose_trace as rose
from examples.demo.compare import Run, alternate
from examples.demo.plot import plot_returns
from examples.demo.program import Config, build
from examples.demo.simulator import TASKS
from rose_exec.probe import probe
from rose_opt.facts import build_facts
from rose_opt.optimize import plan as optimize
from rose_opt.plan import Plan

WARM_UP = 1


def on_gpu(task: str, seed: int, device: str) -> Config:
    """The configuration with policy and trainer on a CUDA device.

    Raises:
        typer.BadParameter: If there is no such device.
    """
    if torch.device(device).type != "cuda" or not torch.cuda.is_available():
        raise typer.BadParameter(
            f"--device: expected cpu, or cuda with a GPU that torch can use, got {device}. Leave it out."
        )
    # Without a workspace of its own, cuBLAS may sum differently from stream to stream.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    return Config.on_device(task, seed, device)


def record(config: Config, trace: Path) -> None:
    """Stage 1: record two native iterations, then measure parts of the next one.

    The probe runs every node of one more iteration in the ways a plan could ask for (other thread
    counts, parts of the batch) on the real inputs, and notes whether the bits stay the same.
    """
    with rose.program():
        program = build(config)
        with rose.record(trace):
            for index in range(2):
                program.iteration(index)
        probe(trace, lambda: program.iteration(2))


def plan(trace: Path, file: Path) -> Plan:
    """Stage 2: decide what overlaps; ``rose-opt plan`` does the same from the command line."""
    chosen = optimize(build_facts(trace))
    chosen.save(file)
    return chosen


def compare(config: Config, file: Path, iterations: int) -> tuple[Run, Run, str]:
    """Stage 3: train two fresh programs from the same seeds, one natively and one with the plan.

    Returns:
        The native run, the planned run, and why the native order ran in both; empty where it did not.
    """
    with rose.program():
        native_program = build(config)
    # The planned program is built inside the replay, which puts its components where the plan says.
    with rose_exec.replay(file, lambda: build(config)) as session:
        native = Run("native", native_program, session.paused)
        planned = Run("planned", session.built, contextlib.nullcontext)
        alternate(native, planned, iterations, WARM_UP)
        return native, planned, session.reason


def uses(config: Config, chosen: Plan) -> list[str]:
    """What each side works with: shapes, threads, processes and cores."""
    task, sizes = TASKS[config.task], config.sizes
    lines = [
        f"task      {task.env_id}: {config.num_envs} environments, {config.epochs} epochs of "
        f"{config.steps} steps an iteration, {config.chunk} actions of {task.actions} joints a step",
        f"policy    {sizes.blocks} blocks over {sizes.instruction + sizes.chunk} tokens of width "
        f"{sizes.width}, then {sizes.denoising_steps} passes of the action head",
        f"machine   {_machine(config.device)}",
        f"native    1 process, torch on {torch.get_num_threads()} threads, simulator on 1",
    ]
    if chosen.kept_native:
        return [*lines, "planned   the same: the native order was kept"]
    lines += [f"planned   {transform}" for transform in chosen.transforms]
    for worker in chosen.workers:
        homes = ", ".join(str(resident) for resident in worker.residents) or "everything else"
        lines.append(f"          {worker.kind} {worker.name}: {homes}")
    lines += [
        f"          {item.path} on {item.threads} threads{' in each group' if item.grouped else ''}"
        for item in chosen.threads
    ]
    return lines


def _machine(device: str) -> str:
    gpu = "" if device == "cpu" else f"{torch.cuda.get_device_name(device)}, "
    return f"{gpu}{os.cpu_count()} cores, torch {torch.__version__}"


def findings(native: Run, planned: Run, chosen: Plan, kept: str) -> dict[str, Any]:
    """What the comparison found; the object that ``--json`` prints."""
    native_rate, planned_rate = native.steps_per_s(WARM_UP), planned.steps_per_s(WARM_UP)
    return {
        "task": native.program.config.task,
        "machine": _machine(native.program.config.device),
        "iterations": len(native.durations_ns) - WARM_UP,
        "native_steps_per_s": round(native_rate, 1),
        "planned_steps_per_s": round(planned_rate, 1),
        "speedup": round(planned_rate / native_rate, 3),
        "weights_identical": native.weights == planned.weights,
        "trajectories_identical": native.trajectories == planned.trajectories,
        "plan_gap": round(chosen.predicted.gap, 4),
        "kept_native": chosen.kept_native or bool(kept),
        "reason": kept or chosen.reason,
        "transforms": [str(transform) for transform in chosen.transforms],
        "first_return": round(native.returns[0], 2),
        "last_return": round(native.returns[-1], 2),
    }


def summary(found: dict[str, Any]) -> list[str]:
    """The findings in words."""
    same = {True: "identical", False: "DIFFERENT"}
    return [
        f"native    {found['native_steps_per_s']:.0f} environment steps/s",
        f"planned   {found['planned_steps_per_s']:.0f} environment steps/s: "
        f"{found['speedup']:.2f} times as fast (median of {found['iterations']} iterations each)",
        f"result    weights {same[found['weights_identical']]}, "
        f"trajectories {same[found['trajectories_identical']]}",
        f"plan      {found['reason']}; {100 * found['plan_gap']:.1f} % above its lower bound",
        f"return    {found['first_return']} in the first iteration, {found['last_return']} in the last",
    ]


def main(
    task: Annotated[str, typer.Option(help=f"MuJoCo task: {' or '.join(TASKS)}.")] = "Pusher-v5",
    policy_heavy: Annotated[
        bool,
        typer.Option(help="A large policy beside little physics: nothing to gain on two cores."),
    ] = False,
    device: Annotated[
        str, typer.Option(help="Where the policy is: cpu, or cuda with a larger policy.")
    ] = "cpu",
    iterations: Annotated[int, typer.Option(min=1, help="Measured iterations of each side.")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="Everything random follows from it.")] = 0,
    out: Annotated[Path, typer.Option(help="Directory of trace and plan.")] = Path("out/demo"),
    plot: Annotated[Path | None, typer.Option(help="Picture of both learning curves.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Last line: one JSON object.")] = False,
) -> None:
    """Record a training loop, plan its overlap, and train with the plan beside the native run."""  # noqa: DOC501
    if task not in TASKS:
        raise typer.BadParameter(
            f"--task: expected {' or '.join(TASKS)}, got {task}. Choose one of these."
        )
    config = Config.policy_heavy(task, seed) if policy_heavy else Config.of(task, seed)
    if device != "cpu":
        config = on_gpu(task, seed, device)
    out.mkdir(parents=True, exist_ok=True)
    trace, file = out / "trace.parquet", out / "plan.json"

    print("recording two native iterations, then measuring their parts ...", flush=True)
    record(config, trace)
    print(f"planning from {trace} ...", flush=True)
    chosen = plan(trace, file)
    print("\n".join(uses(config, chosen)), flush=True)
    print(f"training natively and with {file}, in turn ...", flush=True)
    native, planned, kept = compare(config, file, iterations)

    found = findings(native, planned, chosen, kept)
    print("\n".join(summary(found)))
    if plot is not None:
        plot_returns(plot, {run.name: run.returns for run in (native, planned)}, task)
        print(f"curves    {plot}")
    if as_json:
        print(json.dumps(found))
    if not (found["weights_identical"] and found["trajectories_identical"]):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
