"""Simulates how many turns a second a cluster of turnflow answers.

    python3 examples/scale/simulate.py check examples/scale/measured.json
    python3 examples/scale/simulate.py plan examples/scale/measured.json --passages 100000000 --processes 64 --cores 16

A turn takes time of process 0 (reading it, the operators, the sink), a search of every process's part, and, for each
process but the first, messages on both sides. `check` fits these times to the measured runs of 1 and 2 processes, and
compares the simulation with the others. `plan` uses them for another size: machines of their own, a network between them.

Times are in seconds. Every process has workers, a machine has cores, and a task needs one of each. Tasks of a machine are
done in the order in which they come. At most `in_flight` turns are open.
"""

import argparse
import heapq
import json
from dataclasses import dataclass


@dataclass
class Costs:
    """What a turn costs, in seconds of a core."""

    turn: float  # process 0, without searching
    search: float  # a search of a part, whatever its size
    passage: float  # a search, for each passage of the part
    ask: float  # process 0, for the messages of another process
    answer: float  # another process, for the messages of a turn


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
    free = [cluster.workers] * cluster.processes
    waiting: dict[int, list] = {machine: [] for machine in machines}
    events: list = []
    order = iter(range(1 << 60))
    now = 0.0
    search = costs.search + costs.passage * passages / cluster.processes
    missing = {}
    begun = done = 0

    def task(at: float, process: int, seconds: float, then) -> None:
        heapq.heappush(events, (at, next(order), "come", (process, seconds, then)))

    def run(machine: int) -> None:
        rest = []
        for process, seconds, then in waiting[machine]:
            if idle[machine] > 0 and free[process] > 0:
                idle[machine] -= 1
                free[process] -= 1
                heapq.heappush(events, (now + seconds, next(order), "end", (process, then)))
            else:
                rest.append((process, seconds, then))
        waiting[machine] = rest

    def begin() -> None:
        nonlocal begun
        turn = begun
        begun += 1
        others = cluster.processes - 1
        missing[turn] = others + 1

        def asked() -> None:
            for process in range(1, cluster.processes):
                task(now + cluster.latency, process, costs.answer + search, lambda: replied(cluster.latency))

        def replied(latency: float) -> None:
            missing[turn] -= 1
            if missing[turn] == 0:
                task(now + latency, 0, costs.turn / 2 + others * costs.ask / 2, ended)

        def ended() -> None:
            nonlocal done
            done += 1
            if begun < turns:
                begin()

        # Process 0 asks, and searches its own part meanwhile.
        def here() -> None:
            asked()
            task(now, 0, search, lambda: replied(0.0))

        task(now, 0, costs.turn / 2 + others * costs.ask / 2, here)

    for _ in range(min(cluster.in_flight, turns)):
        begin()
    while events:
        now, _, kind, what = heapq.heappop(events)
        if kind == "come":
            process = what[0]
            waiting[machines[process]].append(what)
        else:
            process, then = what
            idle[machines[process]] += 1
            free[process] += 1
            then()
        run(machines[process])
    assert done == turns
    return turns / now


def fit(measured: dict) -> Costs:
    """The costs that explain the runs of one and two processes.

    Of one process and one worker: two sizes give the time of a turn and of a passage. Two processes of one worker on the
    same cores give that of messages, which both sides share.
    """
    runs = measured["runs"]
    small, large = sorted({run["passages"] for run in runs})[:2]
    rate = {(run["passages"], run["processes"], run["workers"]): run["turns_a_second"] for run in runs}
    passage = (1 / rate[large, 1, 1] - 1 / rate[small, 1, 1]) / (large - small)
    turn = max(1 / rate[small, 1, 1] - passage * small, 1e-6)
    costs = Costs(turn=turn, search=0.0, passage=max(passage, 0.0), ask=0.0, answer=0.0)
    low, high = 0.0, 0.01
    for _ in range(40):
        costs.ask = costs.answer = (low + high) / 2
        cluster = Cluster(processes=2, workers=1, cores=measured["cores"], together=True)
        if simulate(costs, cluster, small, 1000) > rate[small, 2, 1]:
            low = costs.ask
        else:
            high = costs.ask
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
    parser.add_argument("--in-flight", type=int, default=1024)
    arguments = parser.parse_args()
    with open(arguments.measured, encoding="utf-8") as file:
        measured = json.load(file)
    costs = fit(measured)
    micro = {name: round(value * 1e6, 4) for name, value in vars(costs).items()}
    print(f"fitted, in microseconds: {micro}")
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
        rate = simulate(costs, cluster, arguments.passages, 20_000 // max(processes // 8, 1))
        print(f"{arguments.passages} passages on {processes} machines of {arguments.cores} cores: {rate:.0f} turns a second")


if __name__ == "__main__":
    main()
