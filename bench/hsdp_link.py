#!/usr/bin/env python3
"""Times the exchange between the islands of HSDP over a slow link that thinreduce emulates.

    bench/hsdp_link.py --link 1gbit

Two islands of two ranks share a model of 25 M parameters in six blocks; the batch is one row, so a
step is little else than communication. The reduce-scatter inside an island runs unthrottled. All
methods run in the same processes, one after another in each round. The times are medians over steps
of the slowest rank: of the whole step, of the exchange of a rank's shard between the islands once
both have it, and of its part that is spent on the link. `native` is HSDP's own all-reduce, which no
link slows down.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

from local_ranks import leave, parse, reports, slowest, time_rounds

METHODS = ["native", "fp32", "bf16", "dqsg:levels=7", "topk", "powersgd"]
WIDTH, BLOCKS = 2048, 6


def run_rank(args: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    import thinreduce

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    models, states = {}, {}
    for method in args.method:
        torch.manual_seed(1)
        model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(BLOCKS)))
        for block in model:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        if method != "native":
            states[method] = thinreduce.fsdp.attach(
                model, method, link=args.link, transport=args.transport, momentum_inside_ok=True
            )
        models[method] = model
    generator = torch.Generator().manual_seed(dist.get_rank())

    def step(method: str) -> list[float]:
        row = torch.randn(1, WIDTH, generator=generator)
        dist.barrier()
        started = time.monotonic()
        models[method](row).square().mean().backward()
        taken = [time.monotonic() - started, 0.0, 0.0]
        if method in states:
            seconds = states[method].stats()["seconds"]
            taken[1:] = [seconds["total"] - seconds["wait"], seconds["wire"]]
        models[method].zero_grad()
        return slowest(taken)

    times = time_rounds(args.method, step, warmup=args.warmup, steps=args.steps)
    if dist.get_rank() == 0:
        for method, taken_times in times.items():
            report = {
                "method": method,
                "seconds": [statistics.median(stage) for stage in zip(*taken_times)],
                "sent": states[method].stats()["bytes_sent"] if method in states else 0,
            }
            print(json.dumps(report), flush=True)
    leave(states.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--link", default="1gbit", help="link that thinreduce emulates")
    parser.add_argument("--transport", default="auto", choices=["auto", "gloo", "torch"])
    args = parse(parser, METHODS, steps=5, warmup=3)
    if args.inside:
        run_rank(args)
        return
    found = list(reports(4))
    base = next((one["seconds"] for one in found if one["method"] == "fp32"), None)
    print(f"25 M parameters, 2 islands of 2 ranks, a link of {args.link} between the islands\n")
    print(f"{'method':16} {'step':>9} {'exchange':>9} {'on link':>9}   sent per rank")
    for one in found:
        line = f"{one['method']:16}" + "".join(f" {part:7.3f} s" for part in one["seconds"])
        if one["sent"]:
            line += f" {one['sent'] / 1e6:8.1f} MB"
        if base and one["sent"]:
            ratios = [old / new for old, new in zip(base[1:], one["seconds"][1:])]
            line += "   fp32 takes {:.1f}x, on the link {:.1f}x".format(*ratios)
        print(line)


if __name__ == "__main__":
    main()
