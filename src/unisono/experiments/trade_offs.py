"""Named sweeps about latency and its bound, the choice of the slot length, mechanisms against loss, and priorities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from unisono.experiments.drawing import draw_lines
from unisono.experiments.experiment import Experiment, Point, Row, Value
from unisono.experiments.mistakes import DELAYS, GAMMAS, MISTAKES_SCENARIO, WINDOWS, draw_mistakes
from unisono.experiments.sweeps import cross_product, sweep

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# -- every order's latency against its bound -------------------------------------------------------------------

_ORDERS: dict[str, Point] = {
    "vbr": {},
    "vbr with failures": {"group.failures": True},
    "cbr": {"group.order": "cbr", "rate.avg": 50, "rate.burst": 1, "workload.rate": 30, "run.seconds": 1},
    "leader": {"group.order": "leader"},
    "timestamp": {"group.order": "timestamp"},
}
_CENTRE_POINT: Point = {"group.delta": "20ms", "group.gamma": "2ms", "group.slot": "10ms", "group.members": 5}
_VARIATIONS: dict[str, tuple[Value, ...]] = {
    "group.delta": ("10ms", "40ms"),
    "group.gamma": ("1ms", "5ms"),
    "group.slot": ("5ms", "20ms"),
    "group.members": (3, 9),
}
_LATENCY_SCENARIO = """
[group]
name = "latency"
[rate]
avg = 100
burst = 8
[workload]
kind = "poisson"
rate = 50
size = 100
[network]
adversary = "corners"
[clocks]
kind = "adversarial"
[run]
seconds = 0.5
"""


def _orders_points() -> list[Point]:
    around = [
        _CENTRE_POINT,
        *({**_CENTRE_POINT, path: value} for path, values in _VARIATIONS.items() for value in values),
    ]
    return [{"system": name, **order, **point} for name, order in _ORDERS.items() for point in around]


def _draw_orders(figure: Figure, rows: Sequence[Row]) -> None:
    figure.set_size_inches(10, 6.5)
    axes = figure.subplots(2, 2).flat
    centre = {path.rpartition(".")[2]: value for path, value in _CENTRE_POINT.items()}
    for panel, path in zip(axes, _VARIATIONS, strict=True):
        name = path.rpartition(".")[2]
        mine = [row for row in rows if all(row[other] == centre[other] for other in centre if other != name)]
        draw_lines(panel, mine, name, "latency_max_ms", series="system", reference="bound_ms")


# -- the slot's length ---------------------------------------------------------------------------------------


def _draw_slot(figure: Figure, rows: Sequence[Row]) -> None:
    figure.set_size_inches(9, 4)
    left, right = figure.subplots(1, 2)
    draw_lines(left, rows, "slot", "latency_ms", reference="bound_ms")
    draw_lines(right, rows, "slot", "frames_per_message")


# -- mechanisms against loss ---------------------------------------------------------------------------------

_LOSS_SCENARIO = """
[group]
name = "loss"
members = 4
slot = "10ms"
delta = "6ms"
gamma = "1ms"
failures = true
loss_burst = 2
[rate]
avg = 200
burst = 8
[workload]
kind = "poisson"
rate = 100
size = [20, 400]
[network]
delay = "uniform:1ms..5ms"
fifo = false
[[fault]]
kind = "loss"
probability = 0.05
[run]
seconds = 1
"""


def _rmcast(rho: int) -> dict[str, Value]:
    """The parameters of a point with reliable multicast: ρ+1 copies, 6 ms apart.

    Δ is long enough for all of these copies and for those of one take-over.
    """
    delta = f"{6 * rho + 8}ms"
    times: dict[str, Value] = {"reliable.eta": "6ms", "reliable.omega": "2ms", "group.delta": delta}
    return {"reliable.rho": rho, **times, "group.loss_burst": None}


_MECHANISMS: dict[str, dict[str, Value]] = {
    "nothing": {},
    "repetition, 2 copies": {"group.fec": "1/2"},
    "repetition, 3 copies": {"group.fec": "2/3"},
    "FEC 1/5": {"group.fec": "1/5"},
    "FEC 2/10": {"group.fec": "2/10"},
    "FEC 3/10": {"group.fec": "3/10"},
    "RMCast ρ = 1": _rmcast(1),
    "RMCast ρ = 2": _rmcast(2),
    "RMCast ρ = 4": _rmcast(4),
}
_LOSSES = (0.01, 0.05, 0.1)


def _draw_mechanisms(figure: Figure, rows: Sequence[Row]) -> None:
    figure.set_size_inches(10, 6.5)
    axes = figure.subplots(2, 2).flat
    missing: list[Row] = [{**row, "missing_share": 1.0 - float(str(row["delivered_share"]))} for row in rows]
    for panel, name in zip(
        axes, ("missing_share", "latency_ms", "frames_per_message", "bytes_per_message"), strict=True
    ):
        draw_lines(panel, missing, "probability", name, series="remedy")


# -- priorities ----------------------------------------------------------------------------------------------

_PRIORITY_SCENARIO = """
[group]
name = "priority"
slot = "5ms"
delta = "10ms"
gamma = "1ms"
[rate]
avg = 200
burst = 8
[workload]
kind = "poisson"
rate = 20
size = 100
[priority]
levels = [0, 0, 0, 0, 1]
consume = "4ms"
[network]
delay = "exponential:1ms"
[run]
seconds = 2
"""


def _draw_priorities(figure: Figure, rows: Sequence[Row]) -> None:
    figure.set_size_inches(9, 4)
    for panel, name in zip(figure.subplots(1, 2), ("urgent_ms", "plain_ms"), strict=True):
        draw_lines(panel, rows, "members", name, series="order")


TRADE_OFFS: tuple[Experiment, ...] = (
    sweep(
        "orders-latency",
        "Latency against the bound, every order, over Δ, Γ, Θ and members",
        "The longest and the mean latency of every order that promises a bound, beside that bound. Delays are 0 or Δ "
        "and clocks are at their extremes, which is the worst case. One of Δ, Γ, Θ and the number of members varies "
        "at a time. `late` must be 0. The difference between the bound and the longest latency is the slack of the "
        "bound. No bound grows with the number of members.",
        _LATENCY_SCENARIO,
        _orders_points(),
        draw=_draw_orders,
        runs=10,
    ),
    sweep(
        "slot-trade-off",
        "The slot's trade-off: latency against frames per message",
        "Short slots deliver soon and cost frames, most of them empty end-of-slot marks; long slots pack several "
        "messages into a frame and delay them. The VBR order, five members with 50 messages/s each, Θ from 1 to 50 "
        "ms: mean latency beside the bound, and frames and bytes for each message.",
        _LATENCY_SCENARIO,
        [
            {"group.delta": "20ms", "group.gamma": "2ms", "group.members": 5, "group.slot": f"{theta}ms"}
            for theta in (1, 2, 5, 10, 20, 50)
        ],
        draw=_draw_slot,
        runs=10,
    ),
    sweep(
        "loss-remedies",
        "Forward error correction against repetition against RMCast, at equal loss",
        "The question that paper 000 leaves open: what to do about datagrams that the network loses independently, "
        "with 1, 5 and 10 %. Repetition sends a slot's frames twice or three times at once, FEC adds a shares to "
        "every b-a frames, RMCast sends copies 6 ms apart and lets receivers take over. Shown are the share of "
        "messages delivered, over all members, the latency with the Δ that each needs, and the frames and bytes for "
        "each message. Gaps are allowed, so no member waits for a lost message.",
        _LOSS_SCENARIO,
        [
            {"remedy": name, **remedy, "fault.0.probability": loss}
            for loss in _LOSSES
            for name, remedy in _MECHANISMS.items()
        ],
        draw=_draw_mechanisms,
    ),
    sweep(
        "priority-latency",
        "Paper 004, Figure 5: an urgent message among queued ones, by group size",
        "How long it takes until a member has consumed an urgent message, which overtakes queued ones, beside messages "
        "of usual priority; for 2 to 8 members, with acknowledgments to all members and to a coordinator. A consumer "
        "needs 4 ms per message, and one message in five is urgent. The paper measured less than 6 ms for 6 machines "
        "on an Ethernet with a few messages in each queue. The simulated network takes 1 ms on average for each "
        "datagram, so compare the shape of the curves, not the milliseconds.",
        _PRIORITY_SCENARIO,
        [
            {"group.order": order, "group.members": members}
            for order in ("priority", "priority_coordinator")
            for members in (2, 4, 6, 8)
        ],
        draw=_draw_priorities,
        runs=10,
        published_value=lambda point: 6.0 if point["group.members"] == 6 else None,
    ),
    sweep(
        "optimistic-mistakes",
        "Paper 003, §3.2: mistakes of the optimistic delivery against its window w(p)",
        "Two groups of three members send to both groups. A message is delivered early w(p) after its time stamp, and "
        "finally when both groups have agreed. A final delivery is a mistake if its message is not the first of those "
        "that are early and not final yet; a replica then rolls back. `lost_share` counts final deliveries whose "
        "message was not delivered early. Delays are at most 5 ms, or exponential with a mean of 1 ms and no maximum. "
        "Clocks agree, or differ by up to 2 ms. A window longer than every delay plus the clocks' difference avoids "
        "all mistakes. It adds to the latency of early deliveries, and of final ones, because agreement starts when "
        "the window ends.",
        MISTAKES_SCENARIO,
        cross_product({"network.delay": DELAYS, "group.gamma": GAMMAS, "topology.window": WINDOWS}),
        draw=draw_mistakes,
        runs=5,
    ),
)
