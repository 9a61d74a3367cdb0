"""Simulates how many turns a second a cluster of turnflow answers.

    python3 examples/scale/simulate.py check examples/scale/measured.json
    python3 examples/scale/simulate.py plan examples/scale/measured.json --passages 100000000 --processes 64 --cores 16

A turn takes time of process 0 (reading it, the operators, the sink), a search of every process's part, and, for each
process but the first, messages on both sides. The measured runs give these times: those of one process at several sizes
that of a turn and of a search, one of two processes that of messages. `check` compares the simulation with all measured
runs. `plan` uses the times for another size: machines of their own, and a network between them.

Times are in seconds. A machine has cores, and each task needs one. A turn also needs a worker of process 0 and then the
thread of the sink. A short search needs a worker too, and a long one only a core. Tasks of a machine are done in the order
in which they come. At most `in_flight` turns are open.
"""

import argparse
import heapq
import json
from dataclasses import dataclass


# The part of a turn's time, without searches, that is the sink's.
SINK = 0.25
# A search that takes longer does not run on a worker.
LONG = 0.0005


@dataclass
class Costs:
    """What a turn costs, in seconds of a core."""

    turn: float  # process 0, without searching
    searches: list[tuple[float, float]]  # a search: passages of the part, seconds
    message: float  # process 0 and another process, each half, for the messages between them

    def search(self, passages: float) -> float:
        """Between two measured sizes, and beyond the last, in proportion."""
        before = (0.0, 0.0)
        for after in self.searches:
            if passages <= after[0]:
                break
            before = after
        else:
            return before[1] * passages / before[0]
        share = (passages - before[0]) / (after[0] - before[0])
        return before[1] + share * (after[1] - before[1])


@dataclass
class Cluster:
    processes: int
    workers: int  # of each process
    cores: int  # of each machine
    together: bool  # whether all processes are on one machine
    latency: float = 0.0  # of the network, one way
    in_flight: int = 64


def simulate(costs: Costs, cluster: Cluster, passages: int, turns: int = 4000) -> float:
    """Turns a second."""
    machines = [0 if cluster.together else process for process in range(cluster.processes)]
    idle = {machine: cluster.cores for machine in machines}
    free = {("worker", process): cluster.workers for process in range(cluster.processes)} | {("sink", 0): 1}
    waiting: dict[int, list] = {machine: [] for machine in machines}
    events: list = []
    order = iter(range(1 << 60))
    now = 0.0
    search = costs.search(passages / cluster.processes)
    half = costs.message / 2
    others = cluster.processes - 1
    missing = {}
    begun = done = 0

    def task(at: float, kind: str, process: int, seconds: float, then) -> None:
        heapq.heappush(events, (at, next(order), "come", (kind, process, seconds, then)))

    def run(machine: int) -> None:
        rest = []
        for kind, process, seconds, then in waiting[machine]:
            slot = (kind, process)
            if idle[machine] > 0 and free.get(slot, 1) > 0:
                idle[machine] -= 1
                if slot in free:
                    free[slot] -= 1
                heapq.heappush(events, (now + seconds, next(order), "end", (kind, process, then)))
            else:
                rest.append((kind, process, seconds, then))
        waiting[machine] = rest

    def begin() -> None:
        nonlocal begun
        turn = begun
        begun += 1
        missing[turn] = others + 1
        kind = "core" if search > LONG else "worker"

        def asked() -> None:
            # Process 0 searches its own part meanwhile.
            for process in range(1, cluster.processes):
                task(now + cluster.latency, "worker", process, half, lambda process=process: there(process))
            task(now, kind, 0, search, lambda: replied(0.0))

        def there(process: int) -> None:
            task(now, kind, process, search, lambda: replied(cluster.latency))

        def replied(latency: float) -> None:
            missing[turn] -= 1
            if missing[turn] == 0:
                task(now + latency, "worker", 0, costs.turn * (1 - SINK) / 2 + others * half / 2, written)

        def written() -> None:
            task(now, "sink", 0, costs.turn * SINK, ended)

        def ended() -> None:
            nonlocal done
            done += 1
            if begun < turns:
                begin()

        task(now, "worker", 0, costs.turn * (1 - SINK) / 2 + others * half / 2, asked)

    for _ in range(min(cluster.in_flight, turns)):
        begin()
    while events:
        now, _, what, (kind, process, *rest) = heapq.heappop(events)
        if what == "come":
            waiting[machines[process]].append((kind, process, *rest))
        else:
            idle[machines[process]] += 1
            if (kind, process) in free:
                free[kind, process] += 1
            rest[0]()
        run(machines[process])
    assert done == turns
    return turns / now


def fit(measured: dict) -> Costs:
    """The costs that explain the runs of one process, and the first one of two."""
    alone = sorted((run["passages"], run["cpu_us"] / 1e6) for run in measured["runs"] if run["processes"] == 1)
    # A search of a hundred passages costs next to nothing.
    turn = alone[0][1]
    costs = Costs(turn, [(passages, max(cpu - turn, 0.0)) for passages, cpu in alone[1:]], 0.0)
    two = next(run for run in measured["runs"] if run["processes"] == 2)
    costs.message = max(two["cpu_us"] / 1e6 - turn - 2 * costs.search(two["passages"] / 2), 0.0)
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["check", "plan"])
    parser.add_argument("measured", help="the measured runs, as JSON")
    parser.add_argument("--passages", type=int, default=100_000_000)
    parser.add_argument("--processes", type=int, nargs="+", default=[16, 32, 64])
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--cores", type=int, default=8, help="of each machine, which has one process")
    parser.add_argument("--latency-us", type=float, default=100.0, help="of the network, one way, in microseconds")
    parser.add_argument("--in-flight", type=int, default=256)
    arguments = parser.parse_args()
    with open(arguments.measured, encoding="utf-8") as file:
        measured = json.load(file)
    costs = fit(measured)
    searches = ", ".join(f"{passages}: {seconds * 1e6:.0f}" for passages, seconds in costs.searches)
    print(f"microseconds of a core: a turn {costs.turn * 1e6:.0f}, messages with a process {costs.message * 1e6:.0f}")
    print(f"a search, by passages: {searches}")
    if arguments.what == "check":
        for run in measured["runs"]:
            cluster = Cluster(run["processes"], run["workers"], measured["cores"], together=True)
            simulated = simulate(costs, cluster, run["passages"])
            ratio = simulated / run["turns_a_second"]
            print(
                f"{run['passages']} passages, {run['processes']} x {run['workers']}: measured {run['turns_a_second']:.0f} turns a"
                f" second, simulated {simulated:.0f} ({ratio:.2f})"
            )
        return
    for processes in arguments.processes:
        cluster = Cluster(
            processes, arguments.workers, arguments.cores, False, arguments.latency_us / 1e6, arguments.in_flight
        )
        rate = simulate(costs, cluster, arguments.passages, 4_000 // max(processes // 8, 1))
        print(f"{arguments.passages} passages on {processes} machines of {arguments.cores} cores: {rate:.0f} turns a second")


if __name__ == "__main__":
    main()
