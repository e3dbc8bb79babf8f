"""Nodes with `graph=True` on a CUDA device: the bits of eager calls, whatever is captured."""

from __future__ import annotations

import gc
import inspect
import logging
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

import rose_trace as rose
from rose_exec.graphs.calls import Calls

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

Rows = list[dict[str, Any]]
DEVICE = "cuda"
WIDTH = 64


class Action(NamedTuple):
    mean: Any
    extra: dict[str, Any]


@rose.component
class Policy:
    """A small network and a state that its nodes write in place."""

    def __init__(self) -> None:
        torch.manual_seed(3)  # pyright: ignore[reportUnknownMemberType]
        self.net = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU(), torch.nn.Linear(WIDTH, 2 * WIDTH)
        ).to(DEVICE)
        self.hidden = torch.zeros(4, WIDTH, device=DEVICE)
        self.weight = torch.nn.Parameter(torch.ones(WIDTH, device=DEVICE))
        self.weight.grad = torch.zeros_like(self.weight)
        self.scale = 1.0

    @rose.node(reads="weights", rows=True, graph=True)
    def act(self, obs: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self.net(obs) * self.scale

    @rose.node(reads="weights", graph=True)
    def look(self, given: dict[str, Any], *, rows: int) -> Action:
        with torch.no_grad():
            out = self.net(given["obs"][0]).reshape(-1, 2, WIDTH)
            left, right = out.unbind(1)
            return Action(left[:rows], {"right": right, "flag": given["flag"], "mask": left > 0})

    @rose.node(updates="hidden", graph=True)
    def remember(self, obs: torch.Tensor) -> torch.Tensor:
        self.hidden.mul_(0.5).add_(obs)
        return self.hidden.sum(1)

    @rose.node(reads="weights", updates="generator.cuda", graph=True)
    def sample(self, obs: torch.Tensor) -> torch.Tensor:
        noise = torch.randn_like(obs)
        return torch.nn.functional.dropout(obs + noise, 0.5, training=True)

    @rose.node(updates="weight", graph=True)
    def learn(self, obs: torch.Tensor) -> torch.Tensor:
        assert self.weight.grad is not None
        self.weight.grad.zero_()
        loss = (obs * self.weight).square().mean()
        loss.backward()  # pyright: ignore[reportUnknownMemberType]
        with torch.no_grad():
            self.weight.sub_(0.1 * self.weight.grad)
        return loss.detach()

    @rose.node(pure=True, graph=True)
    def reads_a_value(self, obs: torch.Tensor) -> torch.Tensor:
        return obs * float(obs.sum().item())

    @rose.node(pure=True, graph=True)
    def waits_for_the_device(self, obs: torch.Tensor) -> torch.Tensor:
        twice = obs * 2
        torch.cuda.synchronize()
        return twice + 1

    @rose.node(pure=True, graph=True)
    def raises_when_captured(self, obs: torch.Tensor) -> torch.Tensor:
        twice = obs * 2
        if torch.cuda.is_current_stream_capturing():
            raise ValueError("not while somebody captures")
        return twice + 1

    @rose.node(pure=True, graph=True)
    def many(self, obs: torch.Tensor) -> torch.Tensor:
        for _ in range(100):
            obs = obs * 1.001 + 0.5
        return obs


@pytest.fixture
def policy() -> Policy:
    return Policy()


def eager(method: Any) -> Callable[..., Any]:
    """The plain function of a bound node, on the same component."""
    return lambda *args, **kwargs: method.__rose_node__.function(method.__self__, *args, **kwargs)


def captures(method: Any) -> list[Any]:
    """Captures that there are for a bound node."""
    entry = method.__rose_node__.entry
    calls = inspect.getclosurevars(entry).nonlocals["calls"]
    assert isinstance(calls, Calls)
    slots = calls._slots.get(id(method.__self__))
    return [slot.ready[0] for slot in slots.values() if slot.ready is not None] if slots else []


def observations(count: int, rows: int = 4, seed: int = 0) -> list[torch.Tensor]:
    made = torch.Generator(DEVICE).manual_seed(seed)
    return [torch.randn(rows, WIDTH, device=DEVICE, generator=made) for _ in range(count)]


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def test_bits_are_those_of_eager_calls_and_results_survive_later_calls(
    policy: Policy, caplog: pytest.LogCaptureFixture
) -> None:
    given = observations(8)
    results = [policy.act(obs) for obs in given]
    for obs, result in zip(given, results, strict=True):
        assert torch.equal(result, eager(policy.act)(obs))
    assert len({result.data_ptr() for result in results}) == len(results)
    assert len(captures(policy.act)) == 1
    assert not said(caplog)


def test_containers_views_and_strides_are_as_in_eager_calls(policy: Policy) -> None:
    wide = torch.randn(6, 2 * WIDTH, device=DEVICE)
    for call in range(5):
        for obs in (
            wide[:, ::2] + call,
            wide[1:, WIDTH:],
            torch.randn(1, WIDTH, device=DEVICE).expand(6, WIDTH),
        ):
            given: dict[str, Any] = {"obs": [obs, None], "flag": "on"}
            made = policy.look(given, rows=3)
            wanted = eager(policy.look)(given, rows=3)
            assert made.extra["flag"] == "on"
            for mine, other in (
                (made.mean, wanted.mean),
                (made.extra["right"], wanted.extra["right"]),
                (made.extra["mask"], wanted.extra["mask"]),
            ):
                assert torch.equal(mine, other)
                assert (mine.stride(), mine.storage_offset()) == (
                    other.stride(),
                    other.storage_offset(),
                )
            storage = made.mean.untyped_storage().data_ptr()
            assert storage == made.extra["right"].untyped_storage().data_ptr()
    assert len(captures(policy.look)) == 3


def test_shapes_and_settings_have_captures_of_their_own(
    policy: Policy, caplog: pytest.LogCaptureFixture
) -> None:
    for rows in (4, 5, 4, 5, 4, 5, 4, 5, 6):
        (obs,) = observations(1, rows)
        assert torch.equal(policy.act(obs), eager(policy.act)(obs))
    assert len(captures(policy.act)) == 2
    with torch.inference_mode():
        for obs in observations(4):
            assert torch.equal(policy.act(obs), eager(policy.act)(obs))
    assert len(captures(policy.act)) == 3
    with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
        for obs in observations(4):
            result = policy.act(obs)
            assert result.dtype is torch.bfloat16
            assert torch.equal(result, eager(policy.act)(obs))
    assert len(captures(policy.act)) == 4
    assert not said(caplog)


def test_weights_written_in_place_are_seen_and_replaced_ones_are_captured_again(
    policy: Policy,
) -> None:
    for obs in observations(4):
        policy.act(obs)
    (first,) = captures(policy.act)
    (obs,) = observations(1, seed=1)

    policy.net.load_state_dict({k: v + 0.1 for k, v in policy.net.state_dict().items()})
    assert torch.equal(policy.act(obs), eager(policy.act)(obs))
    assert captures(policy.act) == [first]

    def assign() -> None:
        state = {k: v * 1.5 for k, v in policy.net.state_dict().items()}
        policy.net.load_state_dict(state, assign=True)

    def replace_data() -> None:
        for parameter in policy.net.parameters():
            parameter.data = parameter.data * 0.5

    for change in (assign, replace_data, lambda: setattr(policy, "scale", 3.0)):
        (before,) = captures(policy.act)
        change()
        for _ in range(4):
            assert torch.equal(policy.act(obs), eager(policy.act)(obs))
        (after,) = captures(policy.act)
        assert after is not before


def test_weights_that_are_replaced_all_the_time_are_not_captured(
    policy: Policy, caplog: pytest.LogCaptureFixture
) -> None:
    for obs in observations(30):
        policy.net[0].bias = torch.nn.Parameter(torch.rand(WIDTH, device=DEVICE))
        assert torch.equal(policy.act(obs), eager(policy.act)(obs))
    assert not captures(policy.act)
    (message,) = said(caplog)
    assert "another 'self.net._modules['0']._parameters['bias']' again and again" in message


def test_states_are_updated_once_per_call(policy: Policy) -> None:
    other = Policy()
    for obs in observations(7):
        made, wanted = policy.remember(obs), eager(other.remember)(obs)
        assert torch.equal(made, wanted)
        assert torch.equal(policy.hidden, other.hidden)
    assert len(captures(policy.remember)) == 1


def test_draws_from_the_default_generator_are_those_of_eager_calls(policy: Policy) -> None:
    given = observations(7)
    torch.cuda.manual_seed(11)
    wanted = [eager(policy.sample)(obs) for obs in given]
    state = torch.cuda.get_rng_state()
    torch.cuda.manual_seed(11)
    made = [policy.sample(obs) for obs in given]
    assert len(captures(policy.sample)) == 1
    for mine, other in zip(made, wanted, strict=True):
        assert torch.equal(mine, other)
    assert torch.equal(torch.cuda.get_rng_state(), state)


def test_training_with_gradients_in_place_is_captured(policy: Policy) -> None:
    other = Policy()
    for obs in observations(7):
        made, wanted = policy.learn(obs), eager(other.learn)(obs)
        assert torch.equal(made, wanted)
        assert torch.equal(policy.weight, other.weight)
    assert len(captures(policy.learn)) == 1


def check_device() -> None:
    """Draws, allocations and captures work."""
    torch.cuda.synchronize()
    state = torch.cuda.get_rng_state()
    first = torch.rand(1_000, device=DEVICE)
    torch.cuda.set_rng_state(state)
    assert torch.equal(torch.rand(1_000, device=DEVICE), first)
    fresh = Policy()
    for obs in observations(4):
        assert torch.equal(fresh.act(obs), eager(fresh.act)(obs))
        fresh.sample(obs)
    assert len(captures(fresh.act)) == len(captures(fresh.sample)) == 1
    torch.cuda.synchronize()


@pytest.mark.parametrize(
    ("name", "fact"),
    [
        ("reads_a_value", "got the host reads a value of the device (aten._local_scalar_dense"),
        ("waits_for_the_device", "got "),
        ("raises_when_captured", "got ValueError: not while somebody captures. Such calls"),
    ],
)
def test_what_cannot_be_captured_runs_eagerly_with_one_message(
    policy: Policy, caplog: pytest.LogCaptureFixture, name: str, fact: str
) -> None:
    method = getattr(policy, name)
    before = torch.cuda.current_stream()
    for obs in observations(6):
        assert torch.equal(method(obs), eager(method)(obs))
        assert torch.cuda.current_stream() == before
    assert not captures(method)
    (message,) = said(caplog)
    assert f":Policy.{name}, graph=True): expected device work that can be captured" in message
    assert fact in message
    assert message.endswith("or drop graph=True.")
    check_device()


def test_a_failed_capture_leaves_earlier_ones_alone(policy: Policy) -> None:
    given = observations(5)
    for obs in given[:4]:
        policy.sample(obs)
    (capture,) = captures(policy.sample)
    for obs in given:
        policy.waits_for_the_device(obs)
    torch.cuda.manual_seed(5)
    wanted = eager(policy.sample)(given[0])
    torch.cuda.manual_seed(5)
    assert torch.equal(policy.sample(given[0]), wanted)
    assert captures(policy.sample) == [capture]
    reserved = torch.cuda.memory_reserved()
    for _ in range(50):  # memory that another stream has used is given back
        block = torch.empty(1 << 22, device=DEVICE)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        block.record_stream(side)
        del block
        torch.cuda.synchronize()
    assert torch.cuda.memory_reserved() <= reserved + (1 << 26)


def test_arguments_on_the_host_run_eagerly(
    policy: Policy, caplog: pytest.LogCaptureFixture
) -> None:
    @rose.node(pure=True, graph=True)
    def double(x: torch.Tensor) -> torch.Tensor:
        return x.to(DEVICE) * 2

    for _ in range(4):
        assert torch.equal(double(torch.ones(3)).cpu(), torch.full((3,), 2.0))
    (message,) = said(caplog)
    assert "got a tensor on cpu among the arguments" in message


def test_threads_and_streams_share_a_capture(policy: Policy) -> None:
    for obs in observations(3):
        policy.many(obs)
    assert len(captures(policy.many)) == 1
    torch.cuda.synchronize()
    failures: list[BaseException] = []
    start = threading.Barrier(3)

    def work(seed: int) -> None:
        try:
            stream = torch.cuda.Stream()
            start.wait(60)
            with torch.cuda.stream(stream):
                given = observations(50, seed=seed)
                results = [policy.many(obs) for obs in given]
                wanted = [eager(policy.many)(obs) for obs in given]
            stream.synchronize()
            assert all(map(torch.equal, results, wanted))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failures
    assert len(captures(policy.many)) == 1


def test_threads_that_come_first_at_once_get_right_results() -> None:
    policies = [Policy() for _ in range(3)]
    torch.cuda.synchronize()
    failures: list[BaseException] = []
    start = threading.Barrier(len(policies))

    def work(policy: Policy) -> None:
        try:
            start.wait(60)
            with torch.cuda.stream(torch.cuda.Stream()):
                for obs in observations(20):
                    assert torch.equal(policy.many(obs), eager(policy.many)(obs))
                    assert torch.equal(policy.act(obs), eager(policy.act)(obs))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(policy,)) for policy in policies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failures


def test_green_context_streams_have_captures_of_their_own(policy: Policy) -> None:
    from rose_exec.quota.green import GreenQuota
    from rose_exec.quota.quota import QuotaError

    try:
        quota = GreenQuota()
        level = quota.levels[len(quota.levels) // 2]
        quota.stream(level)
    except QuotaError as error:
        pytest.skip(str(error))
    for obs in observations(4):
        policy.act(obs)
    with quota.limit(level):
        for obs in observations(4):
            assert torch.equal(policy.act(obs), eager(policy.act)(obs))
    assert len(captures(policy.act)) == 2
    (obs,) = observations(1)
    assert torch.equal(policy.act(obs), eager(policy.act)(obs))
    torch.cuda.synchronize()


def test_captures_that_draw_take_turns_on_different_streams() -> None:
    policies = [Policy() for _ in range(2)]
    for policy in policies:
        for obs in observations(4):
            policy.sample(obs)
        assert len(captures(policy.sample)) == 1
    (obs,) = observations(1)

    def draws(sample: Callable[[Policy], torch.Tensor]) -> list[torch.Tensor]:
        torch.cuda.manual_seed(23)
        streams = [torch.cuda.Stream() for _ in policies]
        torch.cuda.synchronize()
        made: list[torch.Tensor] = []
        for _ in range(100):
            for policy, stream in zip(policies, streams, strict=True):
                with torch.cuda.stream(stream):
                    made.append(sample(policy))
        torch.cuda.synchronize()
        return made

    wanted = draws(lambda policy: eager(policy.sample)(obs))
    assert all(map(torch.equal, draws(lambda policy: policy.sample(obs)), wanted))


def test_recorded_replays_are_calls_with_results_of_their_own(
    policy: Policy, recorded: Callable[[Callable[[], Any]], Rows]
) -> None:
    given = observations(6)
    rows = recorded(lambda: [policy.act(obs) for obs in given])
    acts = [row for row in rows if row["node"].endswith(".act")]
    assert len(acts) == len(rows) == 6
    assert len({row["outputs"][0]["ref"] for row in acts}) == 6
    assert all(row["outputs"][0]["producer"] == row["span_id"] for row in acts)
    assert len(captures(policy.act)) == 1


def test_memory_goes_with_the_component() -> None:
    def captured_and_dropped() -> int:
        policy = Policy()
        for obs in observations(4, rows=1024):
            policy.act(obs)
        assert len(captures(policy.act)) == 1
        return torch.cuda.memory_allocated()

    def allocated() -> int:
        gc.collect()
        torch.cuda.synchronize()
        native: Any = torch._C
        native._cuda_clearCublasWorkspaces()  # libraries keep those of each stream
        return torch.cuda.memory_allocated()

    captured_and_dropped()
    before = allocated()
    assert captured_and_dropped() > before
    assert allocated() == before


def test_a_launch_bound_node_runs_at_least_twice_as_fast(policy: Policy) -> None:
    (obs,) = observations(1)

    def seconds(call: Callable[[torch.Tensor], torch.Tensor]) -> float:
        times: list[float] = []
        for _ in range(11):
            torch.cuda.synchronize()
            start = time.perf_counter()
            call(obs)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
        return statistics.median(times[4:])

    captured, plain = seconds(policy.many), seconds(eager(policy.many))
    assert len(captures(policy.many)) == 1
    print(f"200 kernels: {plain * 1e3:.3f} ms eager, {captured * 1e3:.3f} ms captured")
    assert captured * 2 < plain
